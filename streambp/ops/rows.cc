#include "streambp/ops/rows.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <c10/util/BFloat16.h>

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

/// A place's rows are summed in float64, together with what its row of `gradient` holds, and rounded once: a
/// sum in bfloat16 stands still as soon as it is 256 times what is added to it.
template <typename S, typename G>
void add_on_cpu(const at::Tensor& gradient, const int64_t* places, const int64_t* order,
                const at::Tensor& dx) {
  const int64_t count = dx.size(0), size = dx.size(1);
  const S* const from = dx.const_data_ptr<S>();
  G* const to = gradient.data_ptr<G>();
  at::parallel_for(0, count, rows_per_thread(size), [&](int64_t begin, int64_t end) {
    std::vector<double> sum(static_cast<size_t>(size));
    while (begin > 0 && begin < end && places[order[begin]] == places[order[begin - 1]]) ++begin;
    while (begin < end) {
      const int64_t place = places[order[begin]];
      G* const row = to + place * gradient.stride(0);
      std::copy_n(row, size, sum.begin());
      do {
        const S* const one = from + order[begin] * dx.stride(0);
        for (int64_t i = 0; i < size; ++i) sum[static_cast<size_t>(i)] += static_cast<double>(one[i]);
      } while (++begin < count && places[order[begin]] == place);
      std::transform(sum.begin(), sum.end(), row, [](double x) { return static_cast<G>(x); });
    }
  });
}

/// add_on_cpu for the dtypes of both.
void add_on_cpu(const at::Tensor& gradient, const int64_t* places, const int64_t* order,
                const at::Tensor& dx) {
  const bool is_wide = gradient.scalar_type() == at::kFloat;
  switch (dx.scalar_type()) {
    case at::kDouble:
      return add_on_cpu<double, double>(gradient, places, order, dx);
    case at::kFloat:
      return add_on_cpu<float, float>(gradient, places, order, dx);
    default:
      return is_wide ? add_on_cpu<at::BFloat16, float>(gradient, places, order, dx)
                     : add_on_cpu<at::BFloat16, at::BFloat16>(gradient, places, order, dx);
  }
}

void accumulate_unsorted(const at::Tensor& gradient, const at::Tensor& places, const at::Tensor& dx) {
  const MemoryScope scope("kernel workspace");
  if (!is_for_cuda(dx)) {
    const at::Tensor order = at::empty({places.size(0)}, dx.options().dtype(at::kLong));
    if (dx.is_meta()) return;
    const int64_t* const place = places.const_data_ptr<int64_t>();
    int64_t* const first = order.data_ptr<int64_t>();
    std::iota(first, first + order.size(0), 0);
    std::sort(first, first + order.size(0),
              [&](int64_t a, int64_t b) { return std::pair(place[a], a) < std::pair(place[b], b); });
    return add_on_cpu(gradient, place, first, dx);
  }
  if (dx.is_meta()) {  // at::sort has no Meta kernel; it takes as much again as it gives
    at::empty({4, places.size(0)}, dx.options().dtype(at::kLong));
    return;
  }
  const auto [sorted, order] = at::sort(places, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  add_by_kernel(gradient, sorted, order, dx);
}

/// The same where neither takes them: of other dtypes, or on a GPU whose kernels are not loaded.
void accumulate_by_aten(const at::Tensor& gradient, const at::Tensor& places, const at::Tensor& dx) {
  const auto wide = dx.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (dx.is_meta()) {  // unique has no Meta kernel; here every place is another
    at::empty({2, places.size(0), dx.size(1)}, dx.options().dtype(wide));
    return;
  }
  const auto [different, which, counts] = at::_unique2(places, /*sorted=*/true, /*return_inverse=*/true);
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

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& places) {
  const at::NoGradGuard no_grad;
  if (x.is_meta())
    return at::empty({places.size(0), x.size(1)}, x.options());  // index_select has no Meta kernel
  return x.index_select(0, places);
}

void accumulate_rows(Parameter& parameter, const at::Tensor& places, const at::Tensor& dx) {
  if (!parameter.trainable()) return;
  if (is_sortable(parameter.gradient, dx)) return accumulate_unsorted(parameter.gradient, places, dx);
  accumulate_by_aten(parameter.gradient, places, dx);
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
  if (is_for_cuda(sum) && is_sortable(sum, rows)) {
    add_by_kernel(sum, places, {}, rows);
  } else {
    sum.index_add_(0, places, rows);
  }
}

}  // namespace streambp
