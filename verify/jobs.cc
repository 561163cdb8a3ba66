#include "verify/jobs.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>

namespace streambp::verify {

void run_jobs(const std::vector<size_t>& indices, int jobs, const std::function<void(size_t)>& work) {
  if (jobs <= 1) {
    for (const size_t i : indices) work(i);
    return;
  }
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto run = [&] {
    at::set_num_threads(1);
    try {
      for (size_t i = next++; i < indices.size(); i = next++) work(indices[i]);
    } catch (...) {
      next = indices.size();
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int job = 0; job < jobs; ++job) threads.emplace_back(run);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace streambp::verify
