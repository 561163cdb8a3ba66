# cmake --install: the library with its public headers and the files that find_package(streambp) reads, and the programs that were
# built.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS streambp streambp_distributed streambp_files streambp_cpu streambp_error streambp_fmt EXPORT streambp-targets
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Public are all headers but what a room keeps to itself: kernels, files that read JSON, what the methods share.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/streambp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT streambp_headers
  FILES_MATCHING PATTERN "*.h"
  PATTERN distributed/transport/gloo_declarations EXCLUDE
  PATTERN examples EXCLUDE
  PATTERN interop EXCLUDE
  PATTERN ops/cpu EXCLUDE
  PATTERN ops/cuda EXCLUDE
  PATTERN backprop/passes.h EXCLUDE
  PATTERN model/config/read/config_reader.h EXCLUDE
  PATTERN model/config/rope_defaults.h EXCLUDE
  PATTERN model/config/presets/presets_longrope.h EXCLUDE
  PATTERN model/config/presets/presets_recurrent.h EXCLUDE
  PATTERN model/files/stored_parts.h EXCLUDE
  PATTERN model/files/strict_json.h EXCLUDE
  PATTERN torch_headers.h EXCLUDE)
if(STREAMBP_BUILD_PROGRAMS)
  install(TARGETS streambp-bench streambp-verify)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench/pages/ DESTINATION ${CMAKE_INSTALL_BINDIR}/streambp-pages PATTERN __pycache__ EXCLUDE)
  if(TARGET streambp_cuda)
    install(TARGETS streambp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})  # programs load it from their own folder
  endif()
endif()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/streambp)
install(EXPORT streambp-targets NAMESPACE streambp:: DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/scripts/cmake/streambp-config.cmake.in
  ${PROJECT_BINARY_DIR}/generated/streambp-config.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/streambp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/generated/streambp-config.cmake
  ${PROJECT_BINARY_DIR}/generated/streambp-config-version.cmake
  ${PROJECT_SOURCE_DIR}/scripts/cmake/StreambpTorch.cmake
  DESTINATION ${package_folder})
