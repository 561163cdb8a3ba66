#include "streambp/ops/attention/attention_earlier.h"

#include "streambp/ops/attention/attention_blocks.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/dry_run.h"

namespace streambp {
namespace {

/// Keys of a tile. GPUs get device_tile.
constexpr int64_t kEarlierKeyTile = 1024;

std::vector<ScoreBlock> blocks_of(const at::Tensor& q, const EarlierTokens& tokens, int64_t window) {
  return earlier_blocks(q.size(0), tokens.first, tokens.first + tokens.rows.size(), window);
}

at::Tensor keys_of(const ScoreBlock& block, const at::Tensor& x, const EarlierTokens& tokens) {
  return x.narrow(0, block.key - tokens.first, block.keys);
}

at::Tensor queries_of(const ScoreBlock& block, const at::Tensor& x) {
  return x.narrow(0, block.query, block.queries);
}

}  // namespace

std::vector<ScoreBlock> in_key_tiles(ScoreBlock block, const at::Tensor& q, const Scoring& scoring) {
  std::vector<ScoreBlock> cut;
  const int64_t tile = has_device_attention(q, scoring) ? device_tile(q.size(0)) : kEarlierKeyTile;
  while (block.visible == Visible::kAll && block.keys > tile) {
    ScoreBlock first = block;
    first.keys = tile;
    cut.push_back(first);
    const int64_t alike = steps_in_one(q.device(), (block.keys - 1) / tile);
    block.key += alike * tile;
    block.keys -= alike * tile;
  }
  cut.push_back(block);
  return cut;
}

void attend_earlier(AttentionBlock& all, const at::Tensor& q, const EarlierTokens& tokens,
                    const AttentionSettings& settings) {
  for (const ScoreBlock& block : blocks_of(q, tokens, settings.window)) {
    AttentionBlock rows{queries_of(block, all.output), queries_of(block, all.log_sum_exp)};
    merge(rows, attend(queries_of(block, q), keys_of(block, tokens.rows.keys, tokens),
                       keys_of(block, tokens.rows.values, tokens), block.visible, settings.scoring));
  }
}

void attend_earlier_backward(const at::Tensor& d_queries, const at::Tensor& dy, const AttentionBlock& saved,
                             const at::Tensor& q, const EarlierTokens& tokens,
                             const AttentionSettings& settings) {
  const at::Tensor output = saved.remainder.defined() ? wide_output(saved) : saved.output;
  for (const ScoreBlock& whole : blocks_of(q, tokens, settings.window)) {
    for (const ScoreBlock& block : in_key_tiles(whole, q, settings.scoring)) {
      const AttentionBlockGradients part = attend_backward(
          queries_of(block, dy), queries_of(block, q), keys_of(block, tokens.rows.keys, tokens),
          keys_of(block, tokens.rows.values, tokens), queries_of(block, output),
          queries_of(block, saved.log_sum_exp), block.visible, settings.scoring);
      queries_of(block, d_queries).add_(part.d_queries);
      keys_of(block, tokens.rows.key_gradients, tokens).add_(part.d_keys);
      keys_of(block, tokens.rows.value_gradients, tokens).add_(part.d_values);
    }
  }
}

}  // namespace streambp
