// stdin, stdout and stderr of a program: there, whatever the caller closed, and never the end of a run.
#pragma once

#include <string>

namespace streambp {

/// The first thing that every program does.
///
/// /dev/null is opened on those of the descriptors 0 to 2 that are closed: else the next file that is opened,
/// such as results.jsonl, would get what is printed. A pipe that nobody reads (SIGPIPE) and a limit on file
/// sizes (SIGXFSZ) become errors of write(). What can't be written to stdout or stderr is dropped, where
/// fmt::print would throw in the middle of a run: end_program() tells of it.
void open_standard_streams();

/// The last thing that a program does: flushes stdout and ends the process with `code`, or, where a part of
/// what was printed since open_standard_streams() was lost, says so on stderr in one line and ends it with
/// kExitBadInput.
[[noreturn]] void end_program(const std::string& program, int code);

}  // namespace streambp
