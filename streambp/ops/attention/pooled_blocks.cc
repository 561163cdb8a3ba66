#include "streambp/ops/attention/pooled_blocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/sequence_rows.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// What a tile's softmax may take, but for one block's.
constexpr int64_t kPoolTileBytes = int64_t{16} << 20;

/// Some neighbouring blocks of a sequence as their pooled rows see them: values and gates of [blocks, slots,
/// E], wide.
class BlockPool {
 public:
  /// `rows` [m, W]: those of the blocks, behind the block before them where `follows`.
  BlockPool(const at::Tensor& rows, const BlockPooling& pooling, bool follows)
      : pooling_(pooling), follows_(follows) {
    const at::Tensor wide = rows.to(sum_dtype(rows));
    const auto parts = wide.view({-1, pooling.rate, rows.size(1)}).split(rows.size(1) / 2, /*dim=*/2);
    values_ = slots(parts[0], 0.0);
    weights_ = at::softmax(slots(parts[1] + pooling.bias->value.to(wide.scalar_type()),
                                 -std::numeric_limits<double>::infinity()),
                           1);
  }

  at::Tensor pooled() const { return (weights_ * values_).sum(1); }

  /// For dy [blocks, E], wide: adds the bias's gradient; what reaches the rows.
  at::Tensor backward(const at::Tensor& dy) const {
    const at::Tensor d_values = weights_ * dy.unsqueeze(1);
    const at::Tensor d_gates = d_values * (values_ - pooled().unsqueeze(1));
    const at::Tensor of_gates = from_slots(d_gates);
    accumulate_sum(*pooling_.bias, of_gates);
    return at::cat({from_slots(d_values), of_gates}, /*dim=*/2).flatten(0, 1);
  }

 private:
  /// Of x [blocks, rate, E], or where blocks overlap [blocks (+ 1), rate, 2 E]. `nothing` stands where no
  /// block is before the first.
  at::Tensor slots(const at::Tensor& x, double nothing) const {
    if (!pooling_.overlaps) return x;
    const int64_t size = x.size(2) / 2, blocks = x.size(0) - (follows_ ? 1 : 0);
    at::Tensor before = x.narrow(0, 0, x.size(0) - 1).narrow(2, 0, size);
    if (!follows_) before = at::cat({at::full({1, pooling_.rate, size}, nothing, x.options()), before});
    return at::cat({before, x.narrow(0, x.size(0) - blocks, blocks).narrow(2, size, size)}, /*dim=*/1);
  }

  /// The gradient of x for that of its slots.
  at::Tensor from_slots(const at::Tensor& d) const {
    if (!pooling_.overlaps) return d;
    const int64_t size = d.size(2), rate = pooling_.rate, blocks = d.size(0);
    at::Tensor dx = at::zeros({blocks + (follows_ ? 1 : 0), rate, 2 * size}, d.options());
    const int64_t first = follows_ ? 0 : 1;  // of the blocks, whose slots before it are a block of x
    if (blocks > first)
      dx.narrow(0, 0, blocks - first)
          .narrow(2, 0, size)
          .copy_(d.narrow(0, first, blocks - first).narrow(1, 0, rate));
    dx.narrow(0, dx.size(0) - blocks, blocks).narrow(2, size, size).copy_(d.narrow(1, rate, rate));
    return dx;
  }

  const BlockPooling& pooling_;
  bool follows_;
  at::Tensor values_, weights_;
};

/// Calls visit(begin, blocks, follows) for neighbouring blocks of a sequence of `rows` rows of `width`
/// numbers, with their first row, or that of the block before them where blocks overlap.
template <typename Visit>
void for_each_pooled_tile(int64_t rows, int64_t width, const BlockPooling& pooling, Visit visit) {
  const int64_t block_bytes = 4 * pooling.rate * width * static_cast<int64_t>(sizeof(double));
  const int64_t most = std::max<int64_t>(kPoolTileBytes / block_bytes, 1), all = pooling.blocks(rows);
  for (int64_t block = 0; block < all; block += most) {
    const bool follows = pooling.overlaps && block > 0;
    visit(block, std::min(most, all - block), follows);
  }
}

/// The rows of a tile: from the first, which `follows` says of, on.
std::pair<int64_t, int64_t> rows_of_pooled_tile(int64_t block, int64_t blocks, bool follows, int64_t rate) {
  return {(block - (follows ? 1 : 0)) * rate, (block + blocks) * rate};
}

}  // namespace

at::Tensor pooled_blocks_forward(const at::Tensor& rows, const BlockPooling& pooling) {
  const at::NoGradGuard no_grad;
  const int64_t size = rows.size(1) / (pooling.overlaps ? 4 : 2);
  at::Tensor all = at::empty({pooling.blocks(rows.size(0)), size}, rows.options());
  const MemoryScope scope("pooled blocks");
  for_each_pooled_tile(rows.size(0), rows.size(1), pooling, [&](int64_t block, int64_t blocks, bool follows) {
    const auto [begin, end] = rows_of_pooled_tile(block, blocks, follows, pooling.rate);
    all.narrow(0, block, blocks)
        .copy_(BlockPool(rows.narrow(0, begin, end - begin), pooling, follows).pooled());
  });
  return all;
}

at::Tensor pooled_blocks(const at::Tensor& own, const Prefix& prefix, const std::vector<int64_t>& offsets,
                         const BlockPooling& pooling) {
  const SequenceRows rows(own.detach(), prefix.values, offsets);
  const int64_t width = own.size(2);
  const auto for_each = [=](auto visit) {
    int64_t first = 0;  // of the sequence's blocks
    for (size_t s = 0; s < rows.count(); ++s) {
      for_each_pooled_tile(rows.length(s), width, pooling, [&](int64_t block, int64_t blocks, bool follows) {
        const auto [begin, end] = rows_of_pooled_tile(block, blocks, follows, pooling.rate);
        const MemoryScope scope("pooled blocks");
        visit(s, begin, end, BlockPool(rows.of(s, begin, end).squeeze(1), pooling, follows), first + block,
              blocks);
      });
      first += pooling.blocks(rows.length(s));
    }
  };
  int64_t count = 0;
  for (size_t s = 0; s < rows.count(); ++s) count += pooling.blocks(rows.length(s));
  at::Tensor all;
  {
    const at::NoGradGuard no_grad;
    all = at::empty({count, width / (pooling.overlaps ? 4 : 2)}, own.options());
    for_each([&](size_t, int64_t, int64_t, const BlockPool& pool, int64_t first, int64_t blocks) {
      all.narrow(0, first, blocks).copy_(pool.pooled());
    });
  }
  return differentiable(
      {own}, std::move(all), "pooled_blocks",
      [rows, for_each, prefix, wide = sum_dtype(own)](std::vector<at::Tensor>&& dy) {
        SequenceGradients sums(rows, prefix.value_gradients, wide);
        for_each(
            [&](size_t s, int64_t begin, int64_t end, const BlockPool& pool, int64_t first, int64_t blocks) {
              sums.add(s, begin, end, pool.backward(dy[0].narrow(0, first, blocks).to(wide)).unsqueeze(1));
            });
        return std::vector<at::Tensor>{sums.of_own()};
      });
}

}  // namespace streambp
