// What a target does before libFuzzer's main() looks at its arguments.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "verify/tests/fuzz/corpus_files.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  try {
    if (streambp::fuzz::run_corpus_command({*argv + 1, *argv + *argc})) std::exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(2);
  }
  return 0;
}
