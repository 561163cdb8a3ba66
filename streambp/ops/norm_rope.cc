#include "streambp/ops/norm_rope.h"

#include <algorithm>
#include <utility>

#include "streambp/ops/cuda/scratch.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Rows that are worth a block of their own.
constexpr int64_t kRowsOfPart = 8;

/// The longest rows that a norm's backward pass takes on a GPU: a block sums their terms of the weight's
/// gradient in its shared memory, next to a few numbers of its warps.
int64_t longest_row(const at::Tensor& x) {
  constexpr int64_t kLongest = 24576, kOfWarps = 16;
  const auto bytes = static_cast<int64_t>(c10::elementSize(sum_dtype(x)));
  return std::min(kLongest, cuda::card().shared_bytes / bytes - kOfWarps);
}

/// x with each head's numbers side by side.
at::Tensor with_whole_heads(const at::Tensor& x) {
  return x.stride(2) == 1 ? x : x.contiguous();
}

template <typename S>
cpu::Heads<const S> heads_of(const at::Tensor& x) {
  if (!x.defined()) return {nullptr, 0, 0};
  return {kernel_data<const S>(x), x.stride(0), x.stride(1)};
}

/// The kernels' arguments; `shaped` is any tensor [n, heads, E] of the op.
template <typename S>
cpu::NormRope<S> kernel_args(const NormAndRope& op, const at::Tensor& shaped, const at::Tensor& rstd) {
  cpu::NormRope<S> args;
  args.heads = shaped.size(1);
  args.size = shaped.size(2);
  if (op.norm != nullptr) {
    args.weight = kernel_data<const S>(op.norm->weight->value);
    args.adds_one = op.norm->adds_one;
    args.eps = op.norm->eps;
    args.rstd = kernel_data<cpu::Wide<S>>(rstd);
  }
  if (op.table != nullptr) {
    args.cosine = kernel_data<const S>(op.table->cosine);
    args.sine = kernel_data<const S>(op.table->sine);
    args.half = op.table->cosine.size(1);
    args.table_stride = op.table->cosine.stride(0);
  }
  return args;
}

}  // namespace

bool NormAndRope::is_fused(const at::Tensor& x) const {
  const auto is_row = [](const at::Tensor& angles) { return angles.size(1) <= 1 || angles.stride(1) == 1; };
  return has_fused_kernels({x, norm == nullptr ? at::Tensor() : norm->weight->value,
                            table == nullptr ? at::Tensor() : table->cosine,
                            table == nullptr ? at::Tensor() : table->sine}) &&
         (norm == nullptr || (norm->weight->value.is_contiguous() && !norm->centers)) &&
         (!is_for_cuda(x) || x.size(-1) <= longest_row(x)) &&
         (table == nullptr ||
          (is_row(table->cosine) && is_row(table->sine) && table->cosine.stride(0) == table->sine.stride(0)));
}

at::Tensor norm_rope_forward(const at::Tensor& x, const NormAndRope& op, const at::Tensor& residual,
                             at::Tensor& rstd, bool overwrite) {
  const at::NoGradGuard no_grad;
  const at::Tensor input = with_whole_heads(x.detach());
  const bool in_place = overwrite && op.norm == nullptr && input.is_contiguous();
  const at::Tensor y = in_place ? input : at::empty(input.sizes(), input.options());
  if (op.norm != nullptr) {
    rstd = at::empty({x.size(0), x.size(1), 1}, x.options().dtype(sum_dtype(x)));
  }
  const at::Tensor other = residual.defined() ? residual.contiguous() : residual;
  launch_for(x, [&](auto number) {
    using S = decltype(number);
    const auto args = kernel_args<S>(op, y, rstd);
    if (is_for_cuda(x)) {
      const auto launch = cuda::kernels()->of<S>().norm_rope.forward;
      return expect_launched(launch(cuda_queue(x), args, heads_of<S>(input), kernel_data<const S>(other),
                                    kernel_data<S>(y), x.size(0)),
                             "norm and rotation");
    }
    const auto run = cpu::kernels().of<S>().elementwise.norm_rope.forward;
    at::parallel_for(0, x.size(0), rows_per_thread(args.heads * args.size), [&](int64_t begin, int64_t end) {
      run(args, heads_of<S>(input), kernel_data<const S>(other), kernel_data<S>(y), begin, end);
    });
  });
  return y;
}

at::Tensor norm_rope_backward(const at::Tensor& dy, const NormAndRope& op, const at::Tensor& x,
                              const at::Tensor& rstd) {
  const at::NoGradGuard no_grad;
  const at::Tensor d = with_whole_heads(dy), input = x.defined() ? with_whole_heads(x) : x;
  at::Tensor dx = at::empty(d.sizes(), d.options());
  // Each thread (on a GPU, each block) adds up its own rows: the same sums whenever there are as many.
  const int64_t rows = d.size(0);
  if (is_for_cuda(d)) {
    const bool sums_weight = op.norm != nullptr && op.norm->weight->trainable();
    const int64_t most = 2 * cuda::card().multiprocessors;  // blocks that add up terms for the weight
    const int64_t parts = std::clamp<int64_t>(rows * d.size(1) / kRowsOfPart, 1, most);
    const at::Tensor sums = sums_weight ? at::empty({parts, d.size(2)}, rstd.options()) : at::Tensor();
    launch_for(d, [&](auto number) {
      using S = decltype(number);
      const auto launch = cuda::kernels()->of<S>().norm_rope.backward;
      expect_launched(launch(cuda_queue(d), kernel_args<S>(op, d, rstd), heads_of<S>(input), heads_of<S>(d),
                             kernel_data<S>(dx), kernel_data<cuda::Wide<S>>(sums), parts, rows),
                      "norm and rotation backward");
    });
    if (sums_weight) accumulate_sum(*op.norm->weight, sums);
    return dx;
  }
  const int64_t least = rows_per_thread(d.size(1) * d.size(2));
  const int64_t parts = std::clamp<int64_t>(rows / least, 1, at::get_num_threads());
  at::Tensor recent, total;
  if (op.norm != nullptr && op.norm->weight->trainable()) {
    recent = at::zeros({parts, d.size(2)}, rstd.options());
    total = at::zeros({parts, d.size(2)}, d.options().dtype(at::kDouble));
  }
  launch_for(d, [&](auto number) {
    using S = decltype(number);
    const auto args = kernel_args<S>(op, d, rstd);
    const auto run = cpu::kernels().of<S>().elementwise.norm_rope.backward;
    at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        cpu::WeightSums<S> sums;
        if (total.defined())
          sums = {kernel_data<cpu::Wide<S>>(recent) + part * args.size,
                  kernel_data<double>(total) + part * args.size};
        run(args, heads_of<S>(input), heads_of<S>(d), kernel_data<S>(dx), sums, rows * part / parts,
            rows * (part + 1) / parts);
      }
    });
  });
  if (total.defined()) accumulate_sum(*op.norm->weight, total);
  return dx;
}

at::Tensor normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table, bool overwrite) {
  if (!NormAndRope{norm, &table}.is_fused(x)) return rope(norm == nullptr ? x : rms_norm(x, *norm), table);
  at::Tensor rstd;
  at::Tensor y = norm_rope_forward(x, {norm, &table}, {}, rstd, overwrite);
  const at::Tensor kept = norm == nullptr ? at::Tensor() : x.detach();
  return differentiable(
      {x}, std::move(y), "normed_rope", [norm, table, kept, rstd](std::vector<at::Tensor>&& dy) {
        return std::vector<at::Tensor>{norm_rope_backward(dy[0], {norm, &table}, kept, rstd)};
      });
}

}  // namespace streambp
