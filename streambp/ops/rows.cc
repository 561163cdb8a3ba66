#include "streambp/ops/rows.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/fused.h"

namespace streambp {
namespace {

/// Adds row order[i] of dx, or row i where no order is defined, to row sorted[i] of `gradient`, each of these
/// by one block: neither atomic additions nor a wide copy of dx.
void add_by_kernel(const at::Tensor& gradient, const at::Tensor& sorted, const at::Tensor& order,
                   const at::Tensor& dx) {
  with_kernel_dtype(dx.scalar_type(), [&](auto number) {
    using S = decltype(number);
    const auto sums = [&](auto* to) {
      using G = std::remove_pointer_t<decltype(to)>;
      return cuda::RowSums<S, G>{kernel_data<const int64_t>(sorted),
                                 kernel_data<const int64_t>(order),
                                 dx.size(0),
                                 kernel_data<const S>(dx),
                                 dx.stride(0),
                                 to,
                                 gradient.stride(0),
                                 dx.size(1)};
    };
    const auto& kernels = cuda::kernels()->of<S>().rows;
    const cuda::Queue queue = cuda_queue(dx);
    expect_launched(gradient.scalar_type() == dx.scalar_type()
                        ? kernels.add(queue, sums(kernel_data<S>(gradient)))
                        : kernels.add_to_wide(queue, sums(kernel_data<cuda::Wide<S>>(gradient))),
                    "sums of rows");
  });
}

void accumulate_unsorted(const at::Tensor& gradient, const at::Tensor& places, const at::Tensor& dx) {
  const MemoryScope scope("kernel workspace");
  if (dx.is_meta()) {  // at::sort has no Meta kernel; it takes as much again as it gives
    at::empty({4, places.size(0)}, dx.options().dtype(at::kLong));
    return;
  }
  const auto [sorted, order] = at::sort(places, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  add_by_kernel(gradient, sorted, order, dx);
}

/// Whether the kernel above takes them.
bool is_sortable(const at::Tensor& gradient, const at::Tensor& dx) {
  const auto is_rows = [](const at::Tensor& x) { return x.dim() == 2 && x.stride(1) == 1; };
  return is_for_cuda(dx) && has_fused_kernels({dx}) && is_rows(dx) && is_rows(gradient) &&
         (gradient.scalar_type() == dx.scalar_type() || gradient.scalar_type() == at::kFloat);
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& places) {
  const at::NoGradGuard no_grad;
  if (x.is_meta())
    return at::empty({places.size(0), x.size(1)}, x.options());  // index_select has no Meta kernel
  return x.index_select(0, places);
}

void accumulate_rows(Parameter& parameter, const at::Tensor& places, const at::Tensor& dx) {
  if (!parameter.trainable()) return;
  if (is_sortable(parameter.gradient, dx)) return accumulate_unsorted(parameter.gradient, places, dx);
  const at::Tensor wide = dx.to(parameter.gradient.scalar_type());
  if (!wide.is_meta()) parameter.gradient.index_add_(0, places, wide);
}

void TrainedRows::write() const {
  const at::NoGradGuard no_grad;
  if (!whole->value.is_meta()) whole->value.index_copy_(0, places, enabled ? delta->value : original);
}

void accumulate_trained_rows(const TrainedRows& rows, const at::Tensor& tokens, const at::Tensor& dx) {
  if (!rows.enabled || !rows.delta->trainable()) return;
  // One row more takes what belongs to no trained row: the sizes don't depend on the tokens.
  const int64_t count = rows.places.size(0);
  Parameter sums;
  sums.gradient = at::zeros({count + 1, dx.size(1)}, rows.delta->gradient.options());
  const at::Tensor slots = tokens.is_meta() ? at::empty_like(tokens) : rows.slots.index_select(0, tokens);
  accumulate_rows(sums, slots, dx);
  rows.delta->gradient.add_(sums.gradient.narrow(0, 0, count));
}

void accumulate_trained_product(const TrainedRows& rows, const at::Tensor& dy, const at::Tensor& x) {
  if (!rows.enabled) return;
  const at::Tensor columns = dy.is_meta() ? at::empty({dy.size(0), rows.places.size(0)}, dy.options())
                                          : dy.index_select(1, rows.places);
  accumulate_product(*rows.delta, columns, x);
}

void add_sorted_rows(at::Tensor& sum, const at::Tensor& places, const at::Tensor& rows) {
  if (sum.is_meta()) return;
  if (is_sortable(sum, rows)) {
    add_by_kernel(sum, places, {}, rows);
  } else {
    sum.index_add_(0, places, rows);
  }
}

}  // namespace streambp
