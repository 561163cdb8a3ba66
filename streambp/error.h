// The two ways a run can end that are not a defect of this program: the input is wrong, or memory ran out.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <new>
#include <stdexcept>
#include <string>

namespace streambp {

/// Bad input: a file, a flag or a tensor that is not what it has to be. The message is one line that says
/// what, where, and what was expected; the drivers print it and exit with status 2. Names and paths of
/// others may be in it: what() is printable() (streambp/printable.h), safe for a terminal and not long.
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& message);

  template <typename... Args>
  explicit InputError(fmt::format_string<Args...> format, Args&&... args)
      : InputError(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// Memory ran out, really or by the meter's limit. A result, not a failure: the drivers record it with status
/// `oom`.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace streambp
