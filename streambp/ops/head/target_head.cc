#include "streambp/ops/head/target_head.h"

#include <vector>

#include <ATen/record_function.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/fused.h"

namespace streambp {
namespace {

int64_t count_tiles(const Linear& head, int64_t tile) {
  return (head.weight->value.size(0) + tile - 1) / tile;
}

/// What is a thread's of a tensor with a row for each; null where there is none.
template <typename T>
T* row_of(const at::Tensor& rows, int64_t thread) {
  return rows.defined() ? kernel_data<T>(rows) + thread * rows.stride(0) : nullptr;
}

/// Calls body(thread, begin, end) with a share of the tiles for each thread. The shares depend on the number
/// of threads alone, so that a repeated run sums in the same order.
template <typename Body>
void share_tiles(int64_t tiles, int64_t threads, Body body) {
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread)
      body(thread, tiles * thread / threads, tiles * (thread + 1) / threads);
  });
}

}  // namespace

bool TargetHead::serves(const Linear& head, const at::Tensor& x) {
  const at::Tensor& weight = head.weight->value;
  const at::Tensor& gradient = head.weight->gradient;
  const auto dtype = x.scalar_type();
  return head.bias == nullptr && !(head.adapter && head.adapter->enabled) &&
         !(head.trained_rows != nullptr && head.trained_rows->enabled) && (x.is_cpu() || !has_values(x)) &&
         (dtype == at::kFloat || dtype == at::kDouble) && weight.scalar_type() == dtype &&
         weight.is_contiguous() &&
         (!gradient.defined() || (gradient.scalar_type() == dtype && gradient.is_contiguous())) &&
         x.size(1) % cpu::kHeadInputStep == 0 && cpu::has_fast_products();
}

TargetHead::TargetHead(const Linear& head, const at::Tensor& x, const at::Tensor& targets, double temperature,
                       const cpu::KernelSet& kernels)
    : head_(head),
      kernels_(kernels),
      x_(x.contiguous()),
      targets_(targets.contiguous()),
      temperature_(temperature / head.output_scale) {}

template <typename Body>
void TargetHead::with_op(Body body) const {
  launch_for(x_, [&](auto number) {
    using T = cpu::Wide<decltype(number)>;
    const Parameter& weight = *head_.weight;
    const cpu::HeadOperands<T> op{.rows = x_.size(0),
                                  .size = x_.size(1),
                                  .vocabulary = weight.value.size(0),
                                  .x = kernel_data<const T>(x_),
                                  .weight = kernel_data<const T>(weight.value),
                                  .scale = 1.0 / temperature_,
                                  .targets = kernel_data<const int64_t>(targets_),
                                  .columns = kernel_data<T>(columns_),
                                  .panels = kernel_data<T>(panels_),
                                  .exponentials = kernel_data<T>(exponentials_),
                                  .sums = kernel_data<T>(sums_),
                                  .log_sums = kernel_data<double>(log_sums_),
                                  .d_weight = kernel_data<T>(weight.gradient)};
    body(op, kernels_.of<T>().target_head);
  });
}

template <typename T>
cpu::HeadShare<T> TargetHead::share(int64_t thread) const {
  return {row_of<T>(share_largest_, thread), row_of<T>(share_sums_, thread)};
}

template <typename T>
T* TargetHead::workspace(int64_t thread) const {
  return row_of<T>(workspaces_, thread);
}

at::Tensor TargetHead::log_probabilities(bool goes_back) {
  RECORD_FUNCTION("streambp::target_head", (std::vector<c10::IValue>{x_, head_.weight->value, goes_back}));
  const bool trains_weight = goes_back && head_.weight->trainable();
  const int64_t rows = x_.size(0), threads = at::get_num_threads();
  const auto wide = x_.options().dtype(at::kDouble);
  at::Tensor log_probabilities = at::empty({rows}, wide);
  log_sums_ = at::empty({rows, 3}, wide);
  int64_t tiles = 0;
  with_kernel_dtype(x_.scalar_type(), [&](auto number) {
    const auto& kernels = kernels_.of<decltype(number)>().target_head;
    const int64_t columns = kernels.column_count(rows);
    tiles = count_tiles(head_, kernels.tile);
    if (trains_weight) exponentials_ = at::empty({head_.weight->value.size(0), columns}, x_.options());
    const MemoryScope scope("kernel workspace");
    sums_ = at::empty({tiles, 2, columns}, x_.options());
    columns_ = at::empty({kernels.copy_size(rows, x_.size(1))}, x_.options());
    if (trains_weight) panels_ = at::empty_like(columns_);
    share_largest_ = at::empty({threads, columns}, x_.options());
    if (goes_back) share_sums_ = at::empty({threads, rows, x_.size(1)}, x_.options());
    workspaces_ = at::empty({threads, kernels.workspace(rows, x_.size(1))}, x_.options());
  });
  with_op([&](const auto& op, const auto& kernels) {
    double* const result = kernel_data<double>(log_probabilities);
    kernels.copy(op);
    using T = std::remove_cvref_t<decltype(*op.columns)>;
    share_tiles(tiles, threads, [&](int64_t thread, int64_t begin, int64_t end) {
      kernels.forward(op, share<T>(thread), result, workspace<T>(thread), begin, end);
    });
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) { kernels.sum_up(op, result, begin, end); });
  });
  return log_probabilities;
}

at::Tensor TargetHead::backward(const at::Tensor& d_target) {
  RECORD_FUNCTION("streambp::target_head_backward",
                  (std::vector<c10::IValue>{x_, head_.weight->value, head_.weight->trainable()}));
  const int64_t threads = share_largest_.size(0);
  const at::Tensor d = d_target.contiguous();
  at::Tensor d_x = at::empty_like(x_);
  with_op([&](const auto& op, const auto& kernels) {
    using T = std::remove_cvref_t<decltype(*op.columns)>;
    const double* const of_targets = kernel_data<const double>(d);
    if (exponentials_.defined()) {
      share_tiles(sums_.size(0), threads, [&](int64_t thread, int64_t begin, int64_t end) {
        kernels.add_to_weight(op, of_targets, workspace<T>(thread), begin, end);
      });
    }
    std::vector<cpu::HeadShare<T>> shares;
    for (int64_t thread = 0; thread < threads; ++thread) shares.push_back(share<T>(thread));
    at::parallel_for(0, x_.size(0), 16, [&](int64_t begin, int64_t end) {
      kernels.gather(op, of_targets, shares.data(), threads, kernel_data<T>(d_x), begin, end);
    });
  });
  exponentials_.reset();
  return d_x;
}

}  // namespace streambp
