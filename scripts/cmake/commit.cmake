# Writes OUTPUT, a header that says which commit SOURCE is at and whether what the programs are built from differs from it. Run at every
# build; the file is touched only when its text changes, so that nothing is compiled again without need.
set(commit unknown)
set(modified false)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse HEAD WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE head ERROR_QUIET RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(commit ${head})
    # Pictures and texts are no part of a program: only what is compiled counts.
    execute_process(
      COMMAND ${GIT} status --porcelain -- CMakeLists.txt CMakePresets.json scripts/cmake streambp bench reference verify ":!*.md"
      WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE changes ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT "${changes}" STREQUAL "")
      set(modified true)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#pragma once

namespace streambp {

inline constexpr const char* kCommit = "@commit@";
inline constexpr bool kModified = @modified@;

}  // namespace streambp
]])
