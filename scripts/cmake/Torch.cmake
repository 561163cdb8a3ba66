# The PyPI wheel of torch as CMake targets. Its own TorchConfig.cmake insists on a CUDA toolkit; the libraries don't.
#   torch::cpu   libtorch_cpu and libc10, their headers as system headers
#   STREAMBP_FMT_INCLUDE  a folder with the headers of the fmt that the wheel carries: one version in every target, with or without torch

file(GLOB torch_roots ${STREAMBP_VENV}/lib/python3*/site-packages/torch)
list(LENGTH torch_roots torch_root_count)
if(NOT torch_root_count EQUAL 1)
  message(FATAL_ERROR "no torch wheel under ${STREAMBP_VENV}: run scripts/setup.sh, or set STREAMBP_VENV")
endif()
list(GET torch_roots 0 torch_root)
file(READ ${torch_root}/version.py torch_version_py)
string(REGEX MATCH "__version__ = '([^']+)'" _ "${torch_version_py}")
set(TORCH_VERSION ${CMAKE_MATCH_1})
message(STATUS "torch ${TORCH_VERSION} in ${torch_root}")

add_library(torch_c10 SHARED IMPORTED)
set_target_properties(torch_c10 PROPERTIES IMPORTED_LOCATION ${torch_root}/lib/libc10.so)
add_library(torch_cpu SHARED IMPORTED)
set_target_properties(torch_cpu PROPERTIES
  IMPORTED_LOCATION ${torch_root}/lib/libtorch_cpu.so
  INTERFACE_LINK_LIBRARIES torch_c10)
# at::parallel_for is compiled where it is called: with OpenMP, and with the runtime that the wheel brings, so that there is one pool of
# threads.
add_library(torch_openmp SHARED IMPORTED)
set_target_properties(torch_openmp PROPERTIES IMPORTED_LOCATION ${torch_root}/lib/libgomp.so.1)

add_library(torch_interface INTERFACE)
add_library(torch::cpu ALIAS torch_interface)
target_include_directories(torch_interface SYSTEM INTERFACE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_link_libraries(torch_interface INTERFACE torch_cpu torch_openmp)
target_compile_options(torch_interface INTERFACE -fopenmp)
# The wheel's CUDA libraries sit beside it in the virtual environment; without a toolkit the linker can't see all of them.
file(GLOB nvidia_library_folders ${torch_root}/../nvidia/*/lib)
set(torch_link_folders ${torch_root}/lib ${nvidia_library_folders})
target_link_options(torch_interface INTERFACE
  "LINKER:--unresolved-symbols=ignore-in-shared-libs" "LINKER:--disable-new-dtags")
foreach(folder IN LISTS torch_link_folders)
  target_link_options(torch_interface INTERFACE "LINKER:-rpath,${folder}" "LINKER:-rpath-link,${folder}")
endforeach()

# The include folder of the wheel holds far more than fmt: show other targets that one library alone.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${torch_root}/include/fmt ${PROJECT_BINARY_DIR}/include/fmt SYMBOLIC)
set(STREAMBP_FMT_INCLUDE ${PROJECT_BINARY_DIR}/include)
