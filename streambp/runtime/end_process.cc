#include "streambp/runtime/end_process.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace streambp {

void end_process(int code) {
  std::cout.flush();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(code);
#else
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}

}  // namespace streambp
