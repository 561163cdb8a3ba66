# The PyPI wheel of torch as a CMake target. The wheel's own TorchConfig.cmake requires a CUDA toolkit; the libraries do not.
# Used by this project's build and, installed, by find_package(streambp).

# streambp_find_torch(FOLDER VERSION PROBLEM): the wheel's folder and version into the named variables; where there is none, what is
# wrong into PROBLEM. Looks at STREAMBP_TORCH (the folder that holds include/ and lib/) and then at STREAMBP_VENV (a virtual
# environment with the wheel), first as CMake variables, then as environment variables, and last at the folders given as arguments.
function(streambp_find_torch folder version problem)
  set(candidates)
  foreach(place IN ITEMS "${STREAMBP_TORCH}" "$ENV{STREAMBP_TORCH}")
    if(place)
      list(APPEND candidates "${place}")
    endif()
  endforeach()
  foreach(place IN ITEMS "${STREAMBP_VENV}" "$ENV{STREAMBP_VENV}")
    if(place)
      file(GLOB found "${place}/lib/python3*/site-packages/torch")
      list(APPEND candidates ${found} "${place}/lib/python3*/site-packages/torch")
    endif()
  endforeach()
  list(APPEND candidates ${ARGN})
  foreach(place IN LISTS candidates)
    if(EXISTS "${place}/version.py" AND EXISTS "${place}/lib/libtorch_cpu.so")
      file(READ "${place}/version.py" text)
      string(REGEX MATCH "__version__ = '([^']+)'" _ "${text}")
      set(${folder} "${place}" PARENT_SCOPE)
      set(${version} "${CMAKE_MATCH_1}" PARENT_SCOPE)
      set(${problem} "" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  list(JOIN candidates "\n  " looked_at)
  set(${problem} "no torch wheel found; set STREAMBP_VENV to a virtual environment that has one, or STREAMBP_TORCH to the folder \
that holds its include/ and lib/. Looked at:\n  ${looked_at}" PARENT_SCOPE)
endfunction()

# streambp_import_torch(FOLDER): makes the target streambp::torch: libtorch_cpu, libc10, and their headers as system headers.
function(streambp_import_torch folder)
  if(TARGET streambp::torch)
    return()
  endif()
  add_library(streambp::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(streambp::torch INTERFACE ${folder}/include ${folder}/include/torch/csrc/api/include)
  # at::parallel_for is compiled where it is called: with OpenMP, and with the runtime that the wheel brings, so that there is one
  # pool of threads.
  target_link_libraries(streambp::torch INTERFACE ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so ${folder}/lib/libgomp.so.1)
  target_compile_options(streambp::torch INTERFACE -fopenmp)
  # The wheel's CUDA libraries are next to it in the virtual environment; without a toolkit the linker can't see all of them.
  target_link_options(streambp::torch INTERFACE
    "LINKER:--unresolved-symbols=ignore-in-shared-libs" "LINKER:--disable-new-dtags")
  file(GLOB nvidia_folders ${folder}/../nvidia/*/lib)
  foreach(libraries IN ITEMS ${folder}/lib ${nvidia_folders})
    target_link_options(streambp::torch INTERFACE "LINKER:-rpath,${libraries}" "LINKER:-rpath-link,${libraries}")
  endforeach()
endfunction()
