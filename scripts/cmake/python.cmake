# The Python package's build: which torch it is for, and what of the build is a part of it.

# streambp_torch_of_interpreter(TORCH): the folder of the torch that the Python which builds the package (scikit-build-core) would import.
function(streambp_torch_of_interpreter torch)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  # Found, not imported: that may need libraries of GPUs.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as util; spec = util.find_spec('torch'); print(spec.submodule_search_locations[0] if spec else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT found)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no torch to build streambp with: install torch there, and then build with \
`pip install --no-build-isolation .` (without that flag pip builds in an environment of its own, which has none)")
  endif()
  set(${torch} ${found} PARENT_SCOPE)
endfunction()

# The libraries and programs as a part of the package, with the version of torch next to them, which is read before they are loaded, and the
# module of the package's former name.
function(streambp_install_python)
  set(libraries streambp_torch streambp_judge)
  if(TARGET streambp_cuda)
    list(APPEND libraries streambp_cuda)
  endif()
  install(TARGETS ${libraries} LIBRARY DESTINATION streambp_bench/lib COMPONENT streambp_python)
  set(programs streambp_plan)
  if(STREAMBP_BUILD_PROGRAMS)
    list(APPEND programs streambp-bench streambp-verify)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench/pages/ DESTINATION streambp_bench/lib/streambp-pages COMPONENT streambp_python
      PATTERN __pycache__ EXCLUDE)
  endif()
  install(TARGETS ${programs} RUNTIME DESTINATION streambp_bench/lib COMPONENT streambp_python)
  install(FILES ${PROJECT_BINARY_DIR}/lib/libstreambp_torch.torch DESTINATION streambp_bench/lib COMPONENT streambp_python)
  install(FILES ${PROJECT_SOURCE_DIR}/streambp/python/streambp.py DESTINATION . COMPONENT streambp_python)
endfunction()
