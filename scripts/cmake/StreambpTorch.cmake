# The PyPI wheel of torch as a CMake target. The wheel's own TorchConfig.cmake requires a CUDA toolkit; the libraries do not.
# Used by this project's build and, installed, by find_package(streambp).

# streambp_find_torch(FOLDER VERSION PROBLEM [DEFAULT]): the wheel's folder and version into the named variables, or what is wrong into
# PROBLEM. The first of these that is set says where to look: STREAMBP_TORCH, the folder that holds the wheel's include/ and lib/;
# STREAMBP_VENV, a virtual environment with the wheel; the environment variables of these names; the folder DEFAULT.
function(streambp_find_torch folder version problem)
  set(default ${ARGN})
  if(STREAMBP_TORCH)
    set(looked_at "${STREAMBP_TORCH}")
  elseif(STREAMBP_VENV)
    set(looked_at "${STREAMBP_VENV}/lib/python3*/site-packages/torch")
  elseif(DEFINED ENV{STREAMBP_TORCH})
    set(looked_at "$ENV{STREAMBP_TORCH}")
  elseif(DEFINED ENV{STREAMBP_VENV})
    set(looked_at "$ENV{STREAMBP_VENV}/lib/python3*/site-packages/torch")
  else()
    set(looked_at "${default}")
  endif()
  file(GLOB found "${looked_at}/lib/libtorch_cpu.so")
  list(LENGTH found count)
  if(NOT count EQUAL 1)
    set(${problem} "no torch wheel in '${looked_at}': set STREAMBP_VENV to a virtual environment that has one, or STREAMBP_TORCH to the \
folder of its include/ and lib/" PARENT_SCOPE)
    return()
  endif()
  cmake_path(GET found PARENT_PATH libraries)
  cmake_path(GET libraries PARENT_PATH torch)
  file(READ "${torch}/version.py" text)
  string(REGEX MATCH "__version__ = '([^']+)'" _ "${text}")
  set(${folder} "${torch}" PARENT_SCOPE)
  set(${version} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
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
