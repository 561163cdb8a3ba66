// Dry runs: on the meta device, whose tensors are shapes without storage, a pass makes the allocations of the
// real one and computes nothing. Whatever the engine does differently there it asks of this file; all else is
// the code that trains. Kernels of ours are not launched on tensors without values (with_kernel_dtype in
// fused.h); ops of ATen that have no Meta kernel in C++ get one in dry_run.cc.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Whether tensors have numbers, or shapes alone.
inline bool has_values(c10::Device device) {
  return !device.is_meta();
}
inline bool has_values(const at::Tensor& x) {
  return !x.is_meta();
}

/// The number of x [], 0 in a dry run.
double item_or_zero(const at::Tensor& x);

/// How many of `count` equal steps the next one stands for: 1, or all of them in a dry run, where each would
/// allocate the same and free it again.
inline int64_t steps_in_one(c10::Device device, int64_t count) {
  return has_values(device) ? 1 : count;
}

/// Which of the steps 0, ..., count - 1 to run, ascending: all, or in a dry run one of each kind, where the
/// peak of memory is that of the costliest. `kind_of(i)` is an ordered value, the same for steps that differ
/// in cost_of(i) alone; of equal costs the first step is run.
template <typename KindOf, typename CostOf>
std::vector<int64_t> steps_to_run(c10::Device device, int64_t count, KindOf kind_of, CostOf cost_of) {
  std::vector<bool> runs(static_cast<size_t>(count), has_values(device));
  if (!has_values(device)) {
    std::map<decltype(kind_of(int64_t{0})), std::pair<int64_t, int64_t>> costliest;  // cost and step
    for (int64_t i = 0; i < count; ++i) {
      const int64_t cost = cost_of(i);
      const auto [known, is_new] = costliest.try_emplace(kind_of(i), cost, i);
      if (!is_new && cost > known->second.first) known->second = {cost, i};
    }
    for (const auto& [kind, step] : costliest) runs[static_cast<size_t>(step.second)] = true;
  }
  std::vector<int64_t> steps;
  for (int64_t i = 0; i < count; ++i) {
    if (runs[static_cast<size_t>(i)]) steps.push_back(i);
  }
  return steps;
}

}  // namespace streambp
