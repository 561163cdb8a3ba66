#include "bench/chooser.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"

namespace streambp::bench {
namespace {

constexpr double kUsableMemory = 0.95;

Bench dry_bench(const Bench& bench) {
  Bench dry = bench;
  dry.options.device = "meta";
  dry.device = at::kMeta;
  dry.options.trace = dry.options.snapshot = dry.options.timeline = {};
  return dry;
}

}  // namespace

int64_t usable_part(int64_t bytes) {
  return static_cast<int64_t>(kUsableMemory * static_cast<double>(bytes));
}

Budget budget_of(const Bench& bench) {
  const SweepOptions& options = bench.options;
  Budget budget{0, options.host_budget.value_or(0)};
  if (bench.device.is_cuda() && !options.host_budget) budget.host = usable_part(available_memory());
  if (options.budget || options.memory_limit) {
    budget.device = options.budget ? *options.budget : *options.memory_limit;
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

Chooser::Chooser(const Bench& bench)
    : bench_(bench),
      dry_(dry_bench(bench)),
      budget_(budget_of(bench)),
      threads_(at::get_num_threads()),
      meta_limit_(memory_limit(c10::DeviceType::Meta)) {
  set_memory_limit(c10::DeviceType::Meta, 0);  // a dry run that goes beyond it says by how much
  predictor_.emplace(dry_);
}

Chooser::~Chooser() {
  predictor_.reset();
  set_memory_limit(c10::DeviceType::Meta, meta_limit_);
  at::set_num_threads(threads_);
}

Choice Chooser::choose(const Cell& asked) {
  return bench::choose(bench_, *predictor_, asked, budget_);
}

}  // namespace streambp::bench
