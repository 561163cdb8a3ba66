#include "bench/budget.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"

namespace streambp::bench {
namespace {

constexpr double kUsableMemory = 0.95;

}  // namespace

int64_t usable_part(int64_t bytes) {
  return static_cast<int64_t>(kUsableMemory * static_cast<double>(bytes));
}

plan::Budget budget_of(const Bench& bench) {
  const SweepOptions& options = bench.options;
  plan::Budget budget{0, options.host_budget.value_or(0)};
  if (bench.device.is_cuda() && !options.host_budget) budget.host = usable_part(available_memory());
  if (options.budget || options.memory_limit) {
    budget.device = options.budget ? *options.budget : *options.memory_limit;
    // A limit of a GPU's allocator also holds what libraries take for themselves.
    if (bench.device.is_cuda() && !options.budget) budget.device = usable_part(budget.device);
  } else if (bench.device.is_cpu()) {
    budget.device = memory_limit(bench.device.type());
  } else if (bench.device.is_cuda()) {
    auto* const allocator = c10::getDeviceAllocator(bench.device.type());
    budget.device = usable_part(static_cast<int64_t>(allocator->getMemoryInfo(bench.device.index()).first));
  } else {
    throw InputError("--method auto: the meta device has no memory to fit, expected --budget, such as 80GiB");
  }
  return budget;
}

bool knows_budget(const Bench& bench) {
  return bench.device.is_cuda() || bench.options.budget || bench.options.memory_limit;
}

}  // namespace streambp::bench
