// Attention to earlier tokens block by block, in float64: the same as to all of them at once.
#include "streambp/ops/attention/attention_earlier.h"

#include <algorithm>
#include <fmt/format.h>

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

/// Of tiles that are alike a dry run has one, and the last one as it is.
TEST(EarlierBlocks, OfADryRunAreTheFirstTileAndTheLast) {
  for (const int64_t keys : {1, 100, 4096, 4097, 8192, 8193, 20480, 65536, 65537, 262145}) {
    const ScoreBlock block{0, 3, -keys, keys, Visible::kAll};
    const auto tiles_on = [&](c10::Device device) {
      return in_key_tiles(block, at::empty({3, 2, 8}, at::TensorOptions().device(device)), {});
    };
    const std::vector<ScoreBlock> run = tiles_on(at::kCPU), dry = tiles_on(at::kMeta);
    ASSERT_EQ(dry.size(), std::min<size_t>(run.size(), 2)) << keys;
    EXPECT_EQ(dry.front().key, run.front().key) << keys;
    EXPECT_EQ(dry.front().keys, run.front().keys) << keys;
    EXPECT_EQ(dry.back().key, run.back().key) << keys;
    EXPECT_EQ(dry.back().keys, run.back().keys) << keys;
    int64_t covered = 0;
    for (const ScoreBlock& tile : run) covered += tile.keys;
    EXPECT_EQ(covered, keys);
  }
}

/// Each query sees each key that it is to see in one block, and no other.
TEST(EarlierBlocks, CoverWhatQueriesSeeOnce) {
  for (const int64_t rows : {1, 2, 5, 9}) {
    for (const int64_t window : {0, 1, 2, 4, 7, 30}) {
      for (int64_t key = -12; key < 0; ++key) {
        for (int64_t key_end = key; key_end <= 0; ++key_end) {
          std::vector<int> seen(static_cast<size_t>(rows * 12));
          for (const ScoreBlock& block : earlier_blocks(rows, key, key_end, window)) {
            ASSERT_TRUE(block.query >= 0 && block.query + block.queries <= rows);
            ASSERT_TRUE(block.key >= key && block.key + block.keys <= key_end);
            for (int64_t a = 0; a < block.queries; ++a) {
              const int64_t from = block.visible == Visible::kFromOwn ? a : 0;
              ASSERT_TRUE(block.visible != Visible::kFromOwn || block.queries == block.keys);
              for (int64_t b = from; b < block.keys; ++b)
                ++seen[static_cast<size_t>((block.query + a) * 12 + block.key + b + 12)];
            }
          }
          for (int64_t query = 0; query < rows; ++query) {
            for (int64_t at = -12; at < 0; ++at) {
              const bool is_seen = at >= key && at < key_end && (window == 0 || query - at < window);
              ASSERT_EQ(seen[static_cast<size_t>(query * 12 + at + 12)], is_seen ? 1 : 0)
                  << rows << " rows, keys " << key << " to " << key_end << ", window " << window << ", query "
                  << query << ", key " << at;
            }
          }
        }
      }
    }
  }
}

struct EarlierCase {
  int64_t rows;
  std::vector<int64_t> blocks;  // sizes of what comes before, the last of them right before the rows
  int64_t window = 0;
  double softcap = 0.0;
};

/// Rows and their right-most block in one call, the others one by one, in an order that is not theirs.
TEST(AttentionEarlier, BlockByBlockEqualsAllAtOnce) {
  double worst = 0.0;
  for (const EarlierCase& c :
       {EarlierCase{7, {5, 3, 4}}, EarlierCase{7, {5, 3, 0}}, EarlierCase{1, {1, 1, 1}},
        EarlierCase{6, {9, 4, 2}, 5}, EarlierCase{6, {9, 4, 2}, 11}, EarlierCase{3, {2, 6, 0}, 4},
        EarlierCase{7, {5, 3, 4}, 0, 2.0}, EarlierCase{4, {1100, 1030, 3}}}) {
    constexpr int64_t kHeads = 4, kKeyHeads = 2, kSize = 16;
    int64_t prefix = 0;
    for (const int64_t size : c.blocks) prefix += size;
    const AttentionSettings settings{{0.3, c.softcap}, c.window, nullptr};
    const at::Tensor q = random({c.rows, kHeads, kSize}, 1), dy = random({c.rows, kHeads, kSize}, 4);
    const at::Tensor k = random({prefix + c.rows, kKeyHeads, kSize}, 2),
                     v = random({prefix + c.rows, kKeyHeads, kSize}, 3);
    const auto own = [&](const at::Tensor& x) { return x.narrow(0, prefix, c.rows); };
    const auto before = [&](const at::Tensor& dk, const at::Tensor& dv, int64_t begin, int64_t size) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, size); };
      return size > 0 ? Prefix{part(k), part(v), part(dk), part(dv)} : Prefix{};
    };
    at::Tensor dk = at::zeros_like(k), dv = at::zeros_like(v);
    const Prefix all = before(dk, dv, 0, prefix);
    const AttentionBlock expected = attention_forward(q, own(k), own(v), {0, c.rows}, all, settings);
    const AttentionBlockGradients truth =
        attention_backward(dy, expected, q, own(k), own(v), {0, c.rows}, all, settings);

    at::Tensor block_dk = at::zeros_like(k), block_dv = at::zeros_like(v);
    const int64_t right = c.blocks.back();
    const Prefix near = before(block_dk, block_dv, prefix - right, right);
    AttentionBlock got = attention_forward(q, own(k), own(v), {0, c.rows}, near, settings);
    got = {got.output.contiguous(), got.log_sum_exp.contiguous()};
    const std::vector<EarlierTokens> far{
        {before(block_dk, block_dv, 0, c.blocks[0]), -prefix},
        {before(block_dk, block_dv, c.blocks[0], c.blocks[1]), c.blocks[0] - prefix}};
    for (const EarlierTokens& tokens : far) attend_earlier(got, q, tokens, settings);
    AttentionBlockGradients sums =
        attention_backward(dy, got, q, own(k), own(v), {0, c.rows}, near, settings);
    sums.d_queries = sums.d_queries.contiguous();
    for (const EarlierTokens& tokens : far)
      attend_earlier_backward(sums.d_queries, dy, got, q, tokens, settings);
    for (const auto& [of_blocks, at_once] :
         {std::pair{got.output, expected.output}, std::pair{got.log_sum_exp, expected.log_sum_exp},
          std::pair{sums.d_queries, truth.d_queries}, std::pair{sums.d_keys, truth.d_keys},
          std::pair{sums.d_values, truth.d_values},
          std::pair{block_dk.narrow(0, 0, prefix), dk.narrow(0, 0, prefix)},
          std::pair{block_dv.narrow(0, 0, prefix), dv.narrow(0, 0, prefix)}}) {
      const double error = relative_distance(of_blocks, at_once);
      EXPECT_TRUE(error <= kOpLimit) << c.rows << " rows, window " << c.window << ": " << error;
      worst = std::max(worst, error);
    }
  }
  std::printf("blocks of earlier tokens: %.1e, limit %.0e\n", worst, kOpLimit);
}

}  // namespace
}  // namespace streambp
