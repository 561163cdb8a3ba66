// The end of a program that loaded LibTorch.
#pragma once

namespace streambp {

/// Ends the process with `code`, after std::cout and the C library's streams are flushed. Global objects are
/// not destroyed: LibTorch's, its table of operators first, take 0.3 s, 40 % of a program that does nothing
/// else. Programs with sanitizers, which look for leaks after that, end as usual.
[[noreturn]] void end_process(int code);

}  // namespace streambp
