#include "bench/sweep/budget.h"

#include <cctype>
#include <fmt/ranges.h>

#include "bench/cli/command_line.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::bench {
namespace {

constexpr double kUsableMemory = 0.95;

}  // namespace

int64_t usable_part(int64_t bytes) {
  return static_cast<int64_t>(kUsableMemory * static_cast<double>(bytes));
}

GivenBudget parse_budget(const std::string& text, const std::string& device) {
  const plan::Card* const card = plan::find_card(text);
  if (card != nullptr) {
    if (device.starts_with("meta")) cuda::set_card(card->limits);
    return {card->memory, card};
  }
  try {
    return {parse_bytes(text, "--budget"), nullptr};
  } catch (const InputError& error) {
    if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) != 0) throw;
    std::vector<std::string> names;
    for (const plan::Card& one : plan::cards()) names.emplace_back(one.name);
    throw InputError("--budget '{}': expected a size such as 80GB, or a card: {}", text,
                     fmt::join(names, ", "));
  }
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
    budget.device = usable_part(torch_private::gpu_memory(bench.device).free);
  } else {
    throw InputError("--method auto: the meta device has no memory to fit, expected --budget, such as 80GiB");
  }
  return budget;
}

bool knows_budget(const Bench& bench) {
  return bench.device.is_cuda() || bench.options.budget || bench.options.memory_limit;
}

}  // namespace streambp::bench
