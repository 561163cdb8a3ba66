#include "bench/cli/threads.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "bench/cli/environment.h"
#include "streambp/error.h"

namespace streambp {

int most_threads() {
  return std::max(1024, 4 * usable_cores());
}

void set_threads(int threads, const std::string& program) {
  const int cores = usable_cores();
  if (threads < 1 || threads > most_threads())
    throw InputError("--threads {}: expected 1 to {}, this process may use {} cores", threads, most_threads(),
                     cores);
  if (threads > cores) {
    fmt::print(
        stderr,
        "{}: warning: --threads {}: this process may use {} cores; times are those of threads that wait\n",
        program, threads, cores);
  }
  at::set_num_threads(threads);
}

}  // namespace streambp
