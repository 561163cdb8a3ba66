#include "streambp/ops/rows/rows.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/BFloat16.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Adds row order[i] of dx, or row i where no order is defined, to row sorted[i] of `gradient`, each of these
/// by one block: neither atomic additions nor a wide copy of dx.
void add_by_kernel(const at::Tensor& gradient, const at::Tensor& sorted, const at::Tensor& order,
                   const at::Tensor& dx) {
  launch_for(dx, [&](auto number) {
    using S = decltype(number);
    const auto sums = [&](auto* to) {
      using G = std::remove_pointer_t<decltype(to)>;
      return cuda::RowSums<S, G>{.indices = kernel_data<const int64_t>(sorted),
                                 .order = kernel_data<const int64_t>(order),
                                 .count = dx.size(0),
                                 .from = kernel_data<const S>(dx),
                                 .from_stride = dx.stride(0),
                                 .to = to,
                                 .to_stride = gradient.stride(0),
                                 .size = dx.size(1)};
    };
    const auto& kernels = cuda::kernels()->of<S>().rows;
    const cuda::Queue queue = cuda_queue(dx);
    expect_launched(gradient.scalar_type() == dx.scalar_type()
                        ? kernels.add(queue, sums(kernel_data<S>(gradient)))
                        : kernels.add_to_wide(queue, sums(kernel_data<cuda::Wide<S>>(gradient))),
                    "sums of rows");
  });
}

/// The rows of one index are summed in float64, together with what its row of `gradient` holds, and rounded
/// once: a sum in bfloat16 stands still as soon as it is 256 times what is added to it.
template <typename S, typename G>
void add_on_cpu(const at::Tensor& gradient, const int64_t* indices, const int64_t* order,
                const at::Tensor& dx) {
  const int64_t count = dx.size(0), size = dx.size(1);
  const S* const from = dx.const_data_ptr<S>();
  G* const to = gradient.data_ptr<G>();
  at::parallel_for(0, count, rows_per_thread(size), [&](int64_t begin, int64_t end) {
    std::vector<double> sum(static_cast<size_t>(size));
    while (begin > 0 && begin < end && indices[order[begin]] == indices[order[begin - 1]]) ++begin;
    while (begin < end) {
      const int64_t index = indices[order[begin]];
      G* const row = to + index * gradient.stride(0);
      std::copy_n(row, size, sum.begin());
      do {
        const S* const one = from + order[begin] * dx.stride(0);
        for (int64_t i = 0; i < size; ++i) sum[static_cast<size_t>(i)] += static_cast<double>(one[i]);
      } while (++begin < count && indices[order[begin]] == index);
      std::transform(sum.begin(), sum.end(), row, [](double x) { return static_cast<G>(x); });
    }
  });
}

/// add_on_cpu for the dtypes of both.
void add_on_cpu(const at::Tensor& gradient, const int64_t* indices, const int64_t* order,
                const at::Tensor& dx) {
  const bool is_wide = gradient.scalar_type() == at::kFloat;
  switch (dx.scalar_type()) {
    case at::kDouble:
      return add_on_cpu<double, double>(gradient, indices, order, dx);
    case at::kFloat:
      return add_on_cpu<float, float>(gradient, indices, order, dx);
    default:
      return is_wide ? add_on_cpu<at::BFloat16, float>(gradient, indices, order, dx)
                     : add_on_cpu<at::BFloat16, at::BFloat16>(gradient, indices, order, dx);
  }
}

void accumulate_unsorted(const at::Tensor& gradient, const at::Tensor& indices, const at::Tensor& dx) {
  const MemoryScope scope("kernel workspace");
  if (!is_for_cuda(dx)) {
    const at::Tensor order = at::empty({indices.size(0)}, dx.options().dtype(at::kLong));
    if (!has_values(dx)) return;
    const int64_t* const index = indices.const_data_ptr<int64_t>();
    int64_t* const first = order.data_ptr<int64_t>();
    std::iota(first, first + order.size(0), 0);
    std::sort(first, first + order.size(0),
              [&](int64_t a, int64_t b) { return std::pair(index[a], a) < std::pair(index[b], b); });
    return add_on_cpu(gradient, index, first, dx);
  }
  if (!has_values(dx)) {  // a GPU's sort takes as much again as it gives
    at::empty({4, indices.size(0)}, dx.options().dtype(at::kLong));
    return;
  }
  const auto [sorted, order] = at::sort(indices, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  add_by_kernel(gradient, sorted, order, dx);
}

/// The same where neither takes them: of other dtypes, or on a GPU whose kernels are not loaded.
void accumulate_by_aten(const at::Tensor& gradient, const at::Tensor& indices, const at::Tensor& dx) {
  const at::ScalarType wide = sum_dtype(dx);
  if (!has_values(dx)) {  // as if all indices were different
    at::empty({2, indices.size(0), dx.size(1)}, dx.options().dtype(wide));
    return;
  }
  const auto [different, which, counts] = at::_unique2(indices, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor sums = gradient.index_select(0, different).to(wide);
  sums.index_add_(0, which, dx.to(wide));
  gradient.index_copy_(0, different, sums.to(gradient.scalar_type()));
}

/// Whether our kernels take them.
bool is_sortable(const at::Tensor& gradient, const at::Tensor& dx) {
  const auto is_rows = [](const at::Tensor& x) { return x.dim() == 2 && x.stride(1) == 1; };
  return has_fused_kernels({dx}) && is_rows(dx) && is_rows(gradient) &&
         (gradient.scalar_type() == dx.scalar_type() ||
          (gradient.scalar_type() == at::kFloat && dx.scalar_type() == at::kBFloat16));
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& indices) {
  const at::NoGradGuard no_grad;
  return x.index_select(0, indices);
}

void accumulate_rows(Parameter& parameter, const at::Tensor& indices, const at::Tensor& dx,
                     std::optional<int64_t> constant) {
  if (!parameter.trainable()) return;
  if (constant) {
    const at::Tensor row = parameter.gradient.narrow(0, *constant, 1);
    const at::Tensor kept = row.clone();
    accumulate_rows(parameter, indices, dx);
    row.copy_(kept);
    return;
  }
  if (is_sortable(parameter.gradient, dx)) return accumulate_unsorted(parameter.gradient, indices, dx);
  accumulate_by_aten(parameter.gradient, indices, dx);
}

void TrainedRows::write() const {
  const at::NoGradGuard no_grad;
  whole->value.index_copy_(0, indices, enabled ? delta->value : original);
}

void accumulate_trained_rows(const TrainedRows& rows, const at::Tensor& tokens, const at::Tensor& dx) {
  if (!rows.enabled || !rows.delta->trainable()) return;
  // One row more takes what belongs to no trained row: the sizes don't depend on the tokens.
  const int64_t count = rows.indices.size(0);
  Parameter sums;
  sums.gradient = at::zeros({count + 1, dx.size(1)}, rows.delta->gradient.options());
  accumulate_rows(sums, rows.slots.index_select(0, tokens), dx);
  rows.delta->gradient.add_(sums.gradient.narrow(0, 0, count));
}

void accumulate_trained_product(const TrainedRows& rows, const at::Tensor& dy, const at::Tensor& x) {
  if (!rows.enabled) return;
  accumulate_product(*rows.delta, dy.index_select(1, rows.indices), x);
}

void add_sorted_rows(at::Tensor& sum, const at::Tensor& indices, const at::Tensor& rows) {
  if (is_for_cuda(sum) && is_sortable(sum, rows)) {
    add_by_kernel(sum, indices, {}, rows);
  } else {
    sum.index_add_(0, indices, rows);
  }
}

void add_ordered_rows(const at::Tensor& sum, const at::Tensor& indices, const at::Tensor& order,
                      const at::Tensor& rows) {
  if (is_for_cuda(sum) && is_sortable(sum, rows)) return add_by_kernel(sum, indices, order, rows);
  Parameter of_sum;
  of_sum.gradient = sum;
  accumulate_rows(of_sum, indices, gather_rows(rows, order));
}

}  // namespace streambp
