# cmake -DPROJECT=FOLDER -P cuda_architectures.cmake: which code is built with which nvcc.
include(${PROJECT}/scripts/cmake/cuda.cmake)

function(expect version given wanted)
  streambp_cuda_architectures(found "${version}" "${given}")
  if(NOT "${found}" STREQUAL "${wanted}")
    message(FATAL_ERROR "nvcc ${version}, given '${given}': '${found}', expected '${wanted}'")
  endif()
endfunction()

expect(13.0.88 "" "80-real;86-real;89-real;90-real;100-real;120")
expect(12.8.61 "" "80-real;86-real;89-real;90-real;100-real;120")
expect(12.4.131 "" "80-real;86-real;89-real;90")
expect(13.0.88 "90" "90")
expect(13.0.88 "80-real;90a" "80-real;90a")
