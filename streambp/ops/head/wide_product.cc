#include "streambp/ops/head/wide_product.h"

#include <algorithm>
#include <cstdint>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/rows/row_runs.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {
namespace {

/// Rows and columns of the sum that one call of oneDNN's kernel adds to: what it reads stays in the second
/// cache.
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 64;
/// Terms of a call, and of what the last one's are a multiple: oneDNN compiles a kernel for each number of
/// them, and keeps it.
constexpr int64_t kDepth = 256;
constexpr int64_t kDepthStep = 32;
/// Products of two numbers that are worth a thread's while.
constexpr int64_t kThreadsWork = int64_t{1} << 20;
/// Numbers of a sum that are widened at a time where there is no such kernel.
constexpr int64_t kWidened = int64_t{1} << 22;

/// Whether the CPU (or the meta device, which stands for it) multiplies bfloat16 into float32.
bool multiplies_on_cpu(const at::Tensor& rows) {
#ifdef __x86_64__
  static const bool is_supported = __builtin_cpu_supports("avx512bf16");
#else
  constexpr bool is_supported = false;
#endif
  return is_supported && is_for_cpu(rows) && rows.scalar_type() == at::kBFloat16 &&
         at::globalContext().userEnabledMkldnn();
}

/// Whether tensor cores multiply half precision into float32.
bool multiplies_on_gpu(const at::Tensor& rows) {
  return !rows.is_cpu() && is_for_cuda(rows);
}

/// The operands as oneDNN's kernel reads them: the products of one number of rows^T and one of `inputs` are
/// taken two by two.
class PairedOperands {
 public:
  PairedOperands(const at::Tensor& rows, const at::Tensor& inputs)
      : rows_(rows.contiguous()),
        inputs_(inputs.contiguous()),
        count_(rows.size(0)),
        size_(rows.size(1)),
        width_(inputs.size(1)),
        depth_((count_ + kDepthStep - 1) / kDepthStep * kDepthStep) {
    const MemoryScope scope("kernel workspace");
    const int64_t tiles = (size_ + kTileRows - 1) / kTileRows;
    threads_ = std::clamp<int64_t>(depth_ * size_ * width_ / kThreadsWork, 1,
                                   std::min<int64_t>(at::get_num_threads(), tiles));
    paired_inputs_ = at::empty({depth_ / 2, width_, 2}, inputs.options());
    paired_rows_ = at::empty({threads_, (depth_ + kDepth - 1) / kDepth, kTileRows, kDepth}, rows.options());
    if (has_values(inputs_)) pair_inputs();
  }

  /// Calls body(thread, begin, count, add) for tiles of rows of the sum, on threads() threads: add(tile) adds
  /// their product to `tile`, [count, in] numbers next to each other.
  template <typename Body>
  void for_each_tile(Body body) const {
    if (!has_values(inputs_)) return;
    const int64_t tiles = (size_ + kTileRows - 1) / kTileRows;
    at::parallel_for(0, threads_, 1, [&](int64_t first, int64_t last) {
      for (int64_t thread = first; thread < last; ++thread) {
        for (int64_t tile = tiles * thread / threads_; tile < tiles * (thread + 1) / threads_; ++tile) {
          const int64_t begin = tile * kTileRows, count = std::min(kTileRows, size_ - begin);
          pair_rows(thread, begin, count);
          body(thread, begin, count, [&](float* sum) { add(thread, count, sum); });
        }
        torch_private::release_bfloat16_product();
      }
    });
  }

  int64_t threads() const { return threads_; }

 private:
  static const uint16_t* bits_of(const at::Tensor& x) {
    return reinterpret_cast<const uint16_t*>(x.const_data_ptr<at::BFloat16>());
  }
  static uint16_t* bits_in(const at::Tensor& x) {
    return reinterpret_cast<uint16_t*>(x.data_ptr<at::BFloat16>());
  }

  /// Zeros stand for inputs that are not there.
  void pair_inputs() const {
    const uint16_t* const from = bits_of(inputs_);
    uint16_t* const to = bits_in(paired_inputs_);
    at::parallel_for(0, depth_ / 2, rows_per_thread(2 * width_), [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const uint16_t* const first = from + 2 * pair * width_;
        uint16_t* const both = to + 2 * pair * width_;
        if (2 * pair + 1 < count_) {
          for (int64_t i = 0; i < width_; ++i) {
            both[2 * i] = first[i];
            both[2 * i + 1] = first[width_ + i];
          }
        } else {
          for (int64_t i = 0; i < width_; ++i) {
            both[2 * i] = 2 * pair < count_ ? first[i] : uint16_t{0};
            both[2 * i + 1] = 0;
          }
        }
      }
    });
  }

  uint16_t* rows_of(int64_t thread) const { return bits_in(paired_rows_) + thread * paired_rows_.stride(0); }

  /// Columns [begin, begin + count) of the rows as a thread's [depth / kDepth, count, kDepth].
  void pair_rows(int64_t thread, int64_t begin, int64_t count) const {
    constexpr int64_t kLine = 32;  // numbers of a cache line
    static_assert(kDepth % kLine == 0 && kDepthStep % kLine == 0);
    const uint16_t* const from = bits_of(rows_) + begin;
    for (int64_t first = 0; first < depth_; first += kLine) {
      uint16_t* const to = rows_of(thread) + first / kDepth * kTileRows * kDepth + first % kDepth;
      const int64_t there = std::clamp<int64_t>(count_ - first, 0, kLine);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t term = 0; term < there; ++term) to[i * kDepth + term] = from[(first + term) * size_ + i];
        std::fill(to + i * kDepth + there, to + i * kDepth + kLine, uint16_t{0});
      }
    }
  }

  void add(int64_t thread, int64_t count, float* sum) const {
    const auto* const inputs = paired_inputs_.const_data_ptr<at::BFloat16>();
    for (int64_t first = 0; first < depth_; first += kDepth) {
      const auto* const rows = reinterpret_cast<const at::BFloat16*>(rows_of(thread)) + first * kTileRows;
      for (int64_t column = 0; column < width_; column += kTileColumns)
        torch_private::add_bfloat16_product(count, std::min(kTileColumns, width_ - column),
                                            std::min(kDepth, depth_ - first), kDepth, width_, width_, rows,
                                            inputs + first * width_ + 2 * column, sum + column);
    }
  }

  at::Tensor rows_, inputs_;
  int64_t count_, size_, width_, depth_, threads_;
  at::Tensor paired_inputs_;  // [depth / 2, in, 2]
  at::Tensor paired_rows_;    // [threads, depth / kDepth, kTileRows, kDepth]
};

/// In place, so that nothing but `wide` and `other`, like it, is as wide as the sum.
void widen(const at::Tensor& wide, const at::Tensor& other, const at::Tensor& sum,
           const at::Tensor& remainder) {
  wide.copy_(sum);
  other.copy_(remainder);
  wide.add_(other);
}

void split(const at::Tensor& wide, const at::Tensor& other, const at::Tensor& sum,
           const at::Tensor& remainder) {
  sum.copy_(wide);
  other.copy_(sum);
  remainder.copy_(wide.sub_(other));
}

}  // namespace

void add_wide_product(at::Tensor sum, const at::Tensor& rows, const at::Tensor& inputs, double scale) {
  if (rows.size(0) == 0) return;
  if (multiplies_on_gpu(rows)) {
    if (has_values(sum)) at::addmm_out(sum, sum, rows.t(), inputs, sum.scalar_type(), /*beta=*/1, scale);
  } else if (multiplies_on_cpu(rows) && sum.is_contiguous() && scale == 1.0) {
    PairedOperands(rows, inputs).for_each_tile([&](int64_t, int64_t begin, int64_t, auto add) {
      add(sum.data_ptr<float>() + begin * sum.size(1));
    });
  } else {
    sum.addmm_(rows.to(sum.scalar_type()).t(), inputs.to(sum.scalar_type()), /*beta=*/1, scale);
  }
}

void add_product_with_remainder(const at::Tensor& sum, const at::Tensor& remainder, const at::Tensor& rows,
                                const at::Tensor& inputs, double scale) {
  if (rows.size(0) == 0) return;
  const auto wide_rows = [&](int64_t count) {
    const MemoryScope scope("kernel workspace");
    return at::empty({2, count, sum.size(1)}, sum.options().dtype(at::kFloat));
  };
  if (multiplies_on_cpu(rows) && scale == 1.0) {
    const PairedOperands operands(rows, inputs);
    const at::Tensor of_threads = wide_rows(operands.threads() * kTileRows);
    operands.for_each_tile([&](int64_t thread, int64_t begin, int64_t count, auto add) {
      const at::NoGradGuard no_grad;
      const auto part = [&](int which) { return of_threads[which].narrow(0, thread * kTileRows, count); };
      const auto tile = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
      widen(part(0), part(1), tile(sum), tile(remainder));
      add(part(0).template data_ptr<float>());
      split(part(0), part(1), tile(sum), tile(remainder));
    });
    return;
  }
  const int64_t most = std::clamp<int64_t>(kWidened / sum.size(1), 1, sum.size(0));
  const at::Tensor of_run = wide_rows(most);
  for_each_row_run(sum, most, [&](int64_t begin, int64_t count) {
    const auto run = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
    const at::Tensor wide = of_run[0].narrow(0, 0, count), other = of_run[1].narrow(0, 0, count);
    widen(wide, other, run(sum), run(remainder));
    add_wide_product(wide, rows.narrow(1, begin, count), inputs, scale);
    split(wide, other, run(sum), run(remainder));
  });
}

}  // namespace streambp
