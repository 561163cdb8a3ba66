#include "bench/cli/standard_streams.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ext/stdio_sync_filebuf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <iostream>
#include <poll.h>
#include <system_error>
#include <unistd.h>

#include "bench/cli/command_line.h"
#include "streambp/runtime/end_process.h"

namespace streambp {
namespace {

std::atomic<int> first_error = 0;  // of stdout

/// Writes all of it, to a descriptor that may be non-blocking. Returns 0 or an error number.
int write_all(int descriptor, const char* text, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, text, size);
    if (written >= 0) {
      text += written;
      size -= static_cast<size_t>(written);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd wanted{descriptor, POLLOUT, 0};
      ::poll(&wanted, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Both say that all was written, always: end_program() tells of what was not.
ssize_t write_stdout(void*, const char* text, size_t size) {
  if (first_error == 0) first_error = write_all(STDOUT_FILENO, text, size);
  return static_cast<ssize_t>(size);
}

ssize_t write_stderr(void*, const char* text, size_t size) {
  write_all(STDERR_FILENO, text, size);
  return static_cast<ssize_t>(size);
}

/// Replaces the C library's stream, and what the C++ library's writes to.
void replace(std::FILE*& stream, std::ostream& same, cookie_write_function_t* write, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write;
  std::FILE* const ours = fopencookie(nullptr, "w", functions);
  if (ours == nullptr) return;
  std::setvbuf(ours, nullptr, buffering, BUFSIZ);
  stream = ours;
  same.rdbuf(new __gnu_cxx::stdio_sync_filebuf<char>(ours));  // used until the very end of the process
}

}  // namespace

void open_standard_streams() {
  for (;;) {  // the lowest number that is free is given next
    const int descriptor = ::open("/dev/null", O_RDWR);
    if (descriptor < 0) std::_Exit(2);  // there may be nowhere to say why
    if (descriptor <= STDERR_FILENO) continue;
    ::close(descriptor);
    break;
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  replace(stdout, std::cout, write_stdout, ::isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF);
  replace(stderr, std::cerr, write_stderr, _IONBF);
}

void end_program(const std::string& program, int code) {
  std::cout.flush();
  std::fflush(stdout);
  if (first_error != 0) {
    fmt::print(stderr, "{}: stdout: a part of the output was lost: {}\n", program,
               std::generic_category().message(first_error));
    code = kExitBadInput;
  }
  end_process(code);
}

}  // namespace streambp
