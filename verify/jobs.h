// Independent checks of a command, several at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace streambp::verify {

/// Calls work(i) for every i of `indices`, in their order, from `jobs` threads. With more than one job ATen's
/// operations have one thread each. The first exception stops the jobs after what they are doing, and is
/// thrown.
void run_jobs(const std::vector<size_t>& indices, int jobs, const std::function<void(size_t)>& work);

}  // namespace streambp::verify
