#include "streambp/ops/attention/block_attention.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_sinks.h"
#include "streambp/ops/attention/sequence_rows.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// What a tile's scores may take, but for one row's.
constexpr int64_t kScoreBytes = int64_t{64} << 20;

/// Rows [row, row + rows) of the queries, the first of which is row `position` of sequence s.
struct BlockTile {
  size_t s;
  int64_t row, rows, position;
  int64_t first_key;                    // of the window of the first row, in the sequence
  int64_t blocks = 0, first_block = 0;  // that the last row may see, and the sequence's first of all

  int64_t end() const { return position + rows; }
  int64_t keys() const { return end() - first_key; }
  int64_t scores() const { return rows * (keys() + blocks); }
};

/// One call's operands, without autograd.
struct BlockCall {
  at::Tensor q;
  SequenceRows rows;
  Prefix prefix;
  std::vector<int64_t> offsets;
  SeenBlocks seen;
  AttentionSettings settings;

  std::vector<BlockTile> tiles() const {
    std::vector<BlockTile> all;
    const int64_t window = settings.window;
    int64_t first_block = 0;
    for (size_t s = 0; s < rows.count(); ++s) {
      const int64_t earlier = rows.earlier(s), blocks = blocks_before(rows.length(s));
      const int64_t row_bytes =
          q.size(1) * (2 * window + blocks) * static_cast<int64_t>(c10::elementSize(sum_dtype(q)));
      const int64_t most = std::clamp<int64_t>(kScoreBytes / row_bytes, 1, window);
      for (int64_t row = offsets[s]; row < offsets[s + 1]; row += most) {
        BlockTile tile{s, row, std::min(most, offsets[s + 1] - row), earlier + row - offsets[s], 0};
        tile.first_key = std::max<int64_t>(tile.position - window + 1, 0);
        tile.blocks = blocks_before(tile.end());
        tile.first_block = first_block;
        all.push_back(tile);
      }
      first_block += blocks;
    }
    if (has_values(q)) return all;
    // In a dry run the largest stands for all.
    return {*std::max_element(all.begin(), all.end(), [](const BlockTile& a, const BlockTile& b) {
      return a.scores() < b.scores();
    })};
  }

  int64_t blocks_before(int64_t rows_before) const {
    return seen.rows.defined() ? rows_before / seen.rate : 0;
  }

  at::Tensor wide(const at::Tensor& x) const { return x.to(sum_dtype(q)); }

  /// [rows H, E] of x [n, H, E].
  at::Tensor queries_of(const BlockTile& tile, const at::Tensor& x) const {
    return wide(x.narrow(0, tile.row, tile.rows).flatten(0, 1));
  }

  /// [keys + blocks, E]
  at::Tensor keys_of(const BlockTile& tile) const {
    const at::Tensor keys = rows.of(tile.s, tile.first_key, tile.end()).squeeze(1);
    if (tile.blocks == 0) return wide(keys);
    return wide(at::cat({keys, seen.rows.narrow(0, tile.first_block, tile.blocks)}));
  }

  /// What the tile's rows do not see, [rows, 1, keys + blocks].
  at::Tensor hidden(const BlockTile& tile) const {
    const auto options = q.options().dtype(at::kLong);
    const at::Tensor positions = at::arange(tile.position, tile.end(), options).unsqueeze(1);
    const at::Tensor keys = at::arange(tile.first_key, tile.end(), options);
    at::Tensor all = at::gt(keys, positions).bitwise_or_(at::le(keys, positions - settings.window));
    if (tile.blocks > 0) {
      const at::Tensor ends = at::arange(tile.blocks, options).add_(1).mul_(seen.rate);
      at::Tensor of_blocks = at::gt(ends, positions + 1);
      if (seen.picks.defined()) hide_unpicked(tile, of_blocks);
      all = at::cat({all, of_blocks}, /*dim=*/1);
    }
    return all.unsqueeze(1);
  }

  void hide_unpicked(const BlockTile& tile, at::Tensor& hidden_blocks) const {
    const int64_t count = seen.picks_of_all_rows ? 0 : seen.picks.size(1);
    const int64_t most = seen.rate * (count + 1) - 1;  // the first row that may see more
    const int64_t dense = std::clamp<int64_t>(most - tile.position, 0, tile.rows), rest = tile.rows - dense;
    if (rest == 0) return;
    const at::Tensor picks = seen.picks.narrow(0, tile.row + dense, rest).to(at::kLong);
    at::Tensor part = hidden_blocks.narrow(0, dense, rest);
    part.fill_(true).scatter_(1, picks, false);
  }

  /// [rows, H, keys + blocks]
  at::Tensor scores_of(const BlockTile& tile, const at::Tensor& queries, const at::Tensor& keys) const {
    return at::mm(queries, keys.t())
        .mul_(settings.scoring.scale)
        .view({tile.rows, q.size(1), keys.size(0)})
        .masked_fill_(hidden(tile), -std::numeric_limits<double>::infinity());
  }
};

AttentionBlock forward(const BlockCall& call) {
  const at::NoGradGuard no_grad;
  const at::Tensor& q = call.q;
  AttentionBlock all{at::empty_like(q), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_dtype(q)))};
  const MemoryScope scope("attention tile");
  for (const BlockTile& tile : call.tiles()) {
    const at::Tensor keys = call.keys_of(tile);
    at::Tensor p = call.scores_of(tile, call.queries_of(tile, q), keys);
    const at::Tensor highest = p.amax(-1, /*keepdim=*/true);
    const at::Tensor sums = p.sub_(highest).exp_().sum(-1, /*keepdim=*/true);
    const at::Tensor y = at::mm(p.flatten(0, 1), keys).view({tile.rows, q.size(1), -1}).div_(sums);
    all.output.narrow(0, tile.row, tile.rows).copy_(y);
    all.log_sum_exp.narrow(0, tile.row, tile.rows).copy_(sums.log().add_(highest).squeeze(-1));
  }
  if (call.settings.sinks != nullptr) add_sinks(all, call.settings.sinks->value);
  return all;
}

/// Gradients of q, own rows and, where there are any, blocks.
std::vector<at::Tensor> backward(const BlockCall& call, const at::Tensor& dy, const AttentionBlock& saved) {
  const at::NoGradGuard no_grad;
  if (call.settings.sinks != nullptr) accumulate_sinks(*call.settings.sinks, dy, saved);
  const at::ScalarType dtype = sum_dtype(call.q);
  at::Tensor d_q = at::empty_like(call.q);
  const SequenceGradients d_rows(call.rows, call.prefix.key_gradients, dtype);
  at::Tensor d_blocks;
  const at::Tensor& blocks = call.seen.rows;
  if (blocks.defined()) d_blocks = at::zeros(blocks.sizes(), blocks.options().dtype(dtype));
  const MemoryScope scope("attention tile");
  for (const BlockTile& tile : call.tiles()) {
    const at::Tensor queries = call.queries_of(tile, call.q), keys = call.keys_of(tile);
    const at::Tensor d_output = call.queries_of(tile, dy);
    const at::Tensor p = call.scores_of(tile, queries, keys)
                             .sub_(saved.log_sum_exp.narrow(0, tile.row, tile.rows).unsqueeze(-1))
                             .exp_()
                             .flatten(0, 1);
    at::Tensor d_keys = at::mm(p.t(), d_output);
    at::Tensor ds = at::mm(d_output, keys.t());
    // The sum of p dp, and not dy . y, of which y may have been rounded; a sink's value is 0.
    ds = ds.mul_(p).sub_(p * ds.sum(-1, /*keepdim=*/true)).mul_(call.settings.scoring.scale);
    d_q.narrow(0, tile.row, tile.rows).copy_(at::mm(ds, keys).view({tile.rows, call.q.size(1), -1}));
    d_keys.addmm_(ds.t(), queries);
    d_rows.add(tile.s, tile.first_key, tile.end(), d_keys.narrow(0, 0, tile.keys()).unsqueeze(1));
    if (tile.blocks > 0)
      d_blocks.narrow(0, tile.first_block, tile.blocks).add_(d_keys.narrow(0, tile.keys(), tile.blocks));
  }
  std::vector<at::Tensor> gradients{d_q, d_rows.of_own()};
  if (d_blocks.defined()) gradients.push_back(d_blocks.to(blocks.scalar_type()));
  return gradients;
}

}  // namespace

at::Tensor block_attention(const at::Tensor& q, const at::Tensor& own, const Prefix& prefix,
                           const std::vector<int64_t>& offsets, const SeenBlocks& blocks,
                           const AttentionSettings& settings) {
  SeenBlocks seen = blocks;
  if (seen.rows.defined()) seen.rows = seen.rows.detach();
  const BlockCall call{q.detach(), SequenceRows(own.detach(), prefix.keys, offsets), prefix, offsets, seen,
                       settings};
  const AttentionBlock all = forward(call);
  std::vector<at::Tensor> inputs{q, own};
  if (blocks.rows.defined()) inputs.push_back(blocks.rows);
  return differentiable(inputs, all.output, "block_attention",
                        [call, all](std::vector<at::Tensor>&& dy) { return backward(call, dy[0], all); });
}

}  // namespace streambp
