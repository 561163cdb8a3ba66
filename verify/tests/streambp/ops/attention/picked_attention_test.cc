// Attention over picked rows against a softmax under an explicit mask, and an indexer's choice against its
// formula, in float64: tiles, prefixes, packed sequences, ties; picks that another run takes.
#include "streambp/ops/attention/picked_attention.h"

#include <algorithm>
#include <limits>

#include "streambp/ops/attention/indexer.h"
#include "streambp/ops/attention/latent_attention.h"
#include "streambp/ops/rows/row_picks.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr double kPickedLimit = 1e-12;
constexpr int64_t kTopk = 4, kLatent = 5, kNope = 3, kRope = 2, kValue = 6, kHeads = 3;

/// Of each of the last n rows of prefix and own rows, in sequences from `offsets` on, random picks within its
/// sequence, of groups of `rate` rows that have ended, and -1 where it sees no more than kTopk.
at::Tensor random_picks(int64_t prefix, const std::vector<int64_t>& offsets, int64_t rate) {
  at::Tensor picks = at::full({offsets.back(), kTopk}, -1, at::kInt);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t first = s == 0 ? prefix : 0;
    for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      const int64_t seen = (first + i - offsets[s] + 1) / rate;
      if (seen <= kTopk) continue;
      const at::Tensor order =
          at::randperm(seen, at::detail::createCPUGenerator(static_cast<uint64_t>(31 + i)));
      picks[i].copy_(order.narrow(0, 0, kTopk));
    }
  }
  return picks;
}

at::Tensor hidden_by(const at::Tensor& picks, int64_t prefix, const std::vector<int64_t>& offsets,
                     int64_t rate) {
  at::Tensor hidden = at::ones({offsets.back(), prefix + offsets.back()}, at::kBool);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t key = s == 0 ? 0 : prefix + offsets[s];
    for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      if (picks[i][0].item<int>() < 0) {
        hidden[i].narrow(0, key, prefix + i + 1 - key).fill_(false);
        continue;
      }
      const int64_t seen = prefix + i + 1 - key, rest = seen % rate;
      for (int64_t k = 0; k < kTopk; ++k)
        hidden[i].narrow(0, key + rate * picks[i][k].item<int>(), rate).fill_(false);
      hidden[i].narrow(0, key + seen - rest, rest).fill_(false);
    }
  }
  return hidden;
}

TEST(PickedAttention, EqualsASoftmaxUnderAMask) {
  struct Case {
    int64_t prefix;
    std::vector<int64_t> offsets;
    int64_t rate;
  };
  for (const auto& [prefix, offsets, rate] :
       {Case{0, {0, 9}, 1}, Case{7, {0, 9}, 1}, Case{2, {0, 3, 4, 13}, 1}, Case{0, {0, 19}, 3},
        Case{13, {0, 7}, 2}, Case{14, {0, 4, 5, 22}, 3}}) {
    const int64_t n = offsets.back(), all = prefix + n;
    Parameter weight = parameter(random({kHeads * (kNope + kValue), kLatent}, 1));
    const Linear map{"kv_b_proj", &weight};
    LatentHeads heads{&map, kHeads, kNope, kRope, kValue};
    const at::Tensor q = random({n, kHeads, kNope + kRope}, 2), latents = random({all, 1, kLatent}, 3),
                     rotated = random({all, 1, kRope}, 4), picks = random_picks(prefix, offsets, rate);
    const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
    const std::vector<at::Tensor> leaves{leaf(q), leaf(latents), leaf(rotated), leaf(weight.value)};
    const at::Tensor expanded =
        at::linear(leaves[1].squeeze(1), leaves[3]).view({all, kHeads, kNope + kValue});
    const at::Tensor keys = at::cat({expanded.narrow(2, 0, kNope), leaves[2].expand({-1, kHeads, -1})}, 2);
    const at::Tensor scores =
        (at::einsum("ihe,jhe->hij", {leaves[0], keys}) * 0.3)
            .masked_fill(hidden_by(picks, prefix, offsets, rate), -std::numeric_limits<double>::infinity());
    const at::Tensor expected =
        at::einsum("hij,jhe->ihe", {scores.softmax(-1), expanded.narrow(2, kNope, kValue)});
    const at::Tensor cotangent = random(expected.sizes(), 5);
    const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});
    for (const int64_t at_once : {1, 2, 3}) {
      for (const int64_t tile_rows : {1, 2, 100}) {
        heads.group_bytes = at_once * 2 * heads.width() * all * 8;
        weight.gradient.zero_();
        const Prefix earlier{latents.narrow(0, 0, prefix), rotated.narrow(0, 0, prefix),
                             at::zeros({prefix, 1, kLatent}, at::kDouble),
                             at::zeros({prefix, 1, kRope}, at::kDouble)};
        const std::vector<at::Tensor> own{leaf(q), leaf(latents.narrow(0, prefix, n)),
                                          leaf(rotated.narrow(0, prefix, n))};
        const at::Tensor y =
            latent_attention(own[0], own[1], own[2], offsets, earlier, {{0.3}, 0, nullptr}, heads,
                             {.picks = picks,
                              .tile_bytes = tile_rows * all * at_once * 8,
                              .has_tail = rate > 1,
                              .rate = rate});
        expect_near(y.detach(), expected.detach(), "value", kPickedLimit);
        const auto got = torch::autograd::grad({y}, own, {cotangent});
        expect_near(got[0], truth[0], "queries", kPickedLimit);
        expect_near(at::cat({earlier.key_gradients, got[1]}), truth[1], "latents", kPickedLimit);
        expect_near(at::cat({earlier.value_gradients, got[2]}), truth[2], "rotated keys", kPickedLimit);
        expect_near(weight.gradient, truth[3], "projection", kPickedLimit);
      }
    }
  }
}

/// Of each of two heads of an indexer as many different blocks as `count`, in which each of the last n rows
/// of a sequence sees something; of rows that see no more blocks nothing that may be read.
at::Tensor random_blocks(int64_t prefix, const std::vector<int64_t>& offsets, int64_t count, int64_t rate) {
  at::Tensor picks = at::full({offsets.back(), 2, count}, -1, at::kInt);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t first = s == 0 ? prefix : 0;
    for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      const int64_t seen = (first + i - offsets[s]) / rate + 1;
      if (seen <= count) continue;
      for (int64_t head = 0; head < 2; ++head) {
        const auto seed = static_cast<uint64_t>(91 + 2 * i + head);
        picks[i][head].copy_(at::randperm(seen, at::detail::createCPUGenerator(seed)).narrow(0, 0, count));
      }
    }
  }
  return picks.flatten(1);
}

// Two query heads read a key head each twice, and heads 0 and 1, or 2 and 3, have blocks in common.
TEST(PickedAttention, TakesBlocksOfKeysForEachGroupOfHeads) {
  constexpr int64_t kQueries = 4, kSize = 5, kCount = 2;
  for (const int64_t key_heads : {1, 2, 4}) {
    for (const int64_t rate : {1, 3, 4}) {
      for (const auto& [prefix, offsets] : {std::pair(int64_t{0}, std::vector<int64_t>{0, 17}),
                                            std::pair(int64_t{7}, std::vector<int64_t>{0, 9}),
                                            std::pair(int64_t{8}, std::vector<int64_t>{0, 1}),
                                            std::pair(int64_t{2}, std::vector<int64_t>{0, 3, 4, 17})}) {
        SCOPED_TRACE(fmt::format("{} key heads, blocks of {}, prefix {}", key_heads, rate, prefix));
        const int64_t n = offsets.back(), all = prefix + n;
        const at::Tensor q = random({n, kQueries, kSize}, 2), k = random({all, key_heads, kSize}, 3),
                         v = random({all, key_heads, kSize}, 4),
                         picks = random_blocks(prefix, offsets, kCount, rate);
        at::Tensor hidden = at::ones({n, kQueries, all}, at::kBool);
        for (size_t s = 0; s + 1 < offsets.size(); ++s) {
          const int64_t key = s == 0 ? 0 : prefix + offsets[s];
          for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
            const int64_t position = prefix + i - key;
            for (int64_t h = 0; h < kQueries; ++h) {
              for (int64_t j = 0; j <= position; ++j) {
                const at::Tensor own = picks[i].narrow(0, h / 2 * kCount, kCount);
                if (position / rate < kCount || own.eq(j / rate).any().item<bool>())
                  hidden[i][h][key + j].fill_(false);
              }
            }
          }
        }
        const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
        const std::vector<at::Tensor> leaves{leaf(q), leaf(k), leaf(v)};
        const auto of_queries = [&](const at::Tensor& x) {
          return x.unsqueeze(2).expand({-1, -1, kQueries / key_heads, -1}).flatten(1, 2);
        };
        const at::Tensor scores = (at::einsum("ihe,jhe->ihj", {leaves[0], of_queries(leaves[1])}) * 0.3)
                                      .masked_fill(hidden, -std::numeric_limits<double>::infinity());
        const at::Tensor expected = at::einsum("ihj,jhe->ihe", {scores.softmax(-1), of_queries(leaves[2])});
        const at::Tensor cotangent = random(expected.sizes(), 5);
        const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});
        for (const int64_t tile_rows : {1, 2, 100}) {
          const at::IntArrayRef shape{prefix, key_heads, kSize};
          const Prefix earlier{k.narrow(0, 0, prefix), v.narrow(0, 0, prefix), at::zeros(shape, at::kDouble),
                               at::zeros(shape, at::kDouble)};
          const std::vector<at::Tensor> own{leaf(q), leaf(k.narrow(0, prefix, n)),
                                            leaf(v.narrow(0, prefix, n))};
          PickedRows picked{picks, tile_rows * all * kQueries * 8};
          picked.groups = 2;
          picked.rate = rate;
          AttentionBlock known;
          const at::Tensor y = picked_attention(own[0], own[1], own[2], offsets, earlier, picked, 0.3, known);
          expect_near(y.detach(), expected.detach(), "value", kPickedLimit);
          const auto got = torch::autograd::grad({y}, own, {cotangent});
          expect_near(got[0], truth[0], "queries", kPickedLimit);
          expect_near(at::cat({earlier.key_gradients, got[1]}), truth[1], "keys", kPickedLimit);
          expect_near(at::cat({earlier.value_gradients, got[2]}), truth[2], "values", kPickedLimit);
          const at::Tensor again =
              picked_attention(own[0], own[1], own[2], offsets, earlier, picked, 0.3, known);
          EXPECT_TRUE(at::equal(again, y)) << "what is known";
        }
      }
    }
  }
}

TEST(PickBlocks, TakesTheHighestOfEachHeadAndTheLastOnesWhateverTheirScores) {
  constexpr int64_t kIndexHeads = 3, kSize = 4, kCount = 3;
  for (const int64_t rate : {1, 2, 5}) {
    for (const int64_t local : {0, 1, 3}) {
      const int64_t first = kCount * rate, n = 9, m = first + n;
      const at::Tensor queries = random({n, kIndexHeads, kSize}, 1), keys = random({m, kSize}, 2);
      const at::Tensor picks = pick_blocks(queries, keys, {kCount, rate, local}, first);
      ASSERT_EQ(picks.sizes(), (at::IntArrayRef{n, kIndexHeads * kCount}));
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t h = 0; h < kIndexHeads; ++h) {
          const int64_t own = (first + i) / rate;
          std::vector<std::pair<double, int64_t>> order;  // less of it first
          for (int64_t block = 0; block <= own; ++block) {
            double best = -std::numeric_limits<double>::infinity();
            for (int64_t j = block * rate; j <= std::min(block * rate + rate - 1, first + i); ++j)
              best = std::max(best, queries[i][h].dot(keys[j]).item<double>());
            if (block > own - local) best = std::numeric_limits<double>::infinity();
            order.emplace_back(-best, block);
          }
          std::sort(order.begin(), order.end());
          std::vector<int64_t> expected;
          for (int64_t k = 0; k < kCount; ++k) expected.push_back(order[static_cast<size_t>(k)].second);
          std::sort(expected.begin(), expected.end());
          for (int64_t k = 0; k < kCount; ++k)
            EXPECT_EQ(picks[i][h * kCount + k].item<int>(), expected[static_cast<size_t>(k)])
                << "row " << i << ", head " << h << ", blocks of " << rate << ", local " << local;
        }
      }
    }
  }
}

TEST(PickRows, TakesTheHighestScoresAndOfEqualOnesTheEarlier) {
  const int64_t n = 6, m = 11;
  // Whole numbers: many scores are equal, and sums are exact.
  const at::Tensor queries = integers({n, 2, 3}, 1, at::kDouble), weights = integers({n, 2}, 2, at::kDouble),
                   keys = integers({m, 3}, 3, at::kDouble);
  int64_t tied = 0;
  const at::Tensor picks = pick_rows(queries, weights, keys, kTopk, /*first=*/m - n, /*rate=*/1, tied);
  int64_t ties = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<std::pair<double, int64_t>> order;  // less of it first
    for (int64_t j = 0; j <= m - n + i; ++j) {
      double score = 0.0;
      for (int64_t h = 0; h < 2; ++h)
        score += weights[i][h].item<double>() * std::max(0.0, queries[i][h].dot(keys[j]).item<double>());
      order.emplace_back(-score, j);
    }
    std::sort(order.begin(), order.end());
    ties += order[kTopk - 1].first == order[kTopk].first ? 1 : 0;
    std::vector<int64_t> expected;
    for (int64_t k = 0; k < kTopk; ++k) expected.push_back(order[static_cast<size_t>(k)].second);
    std::sort(expected.begin(), expected.end());
    for (int64_t k = 0; k < kTopk; ++k)
      EXPECT_EQ(picks[i][k].item<int>(), expected[static_cast<size_t>(k)]) << "row " << i << ", pick " << k;
  }
  EXPECT_GT(ties, 0) << "no choice between equal scores";
  EXPECT_EQ(tied, ties);
  RowPicks all({.topk = kTopk}, {0, m});
  all.count_tied(1, tied);
  all.count_tied(2, 0);
  EXPECT_EQ(all.tied_rows(), (std::map<int64_t, int64_t>{{1, ties}}));
  all.refuse_ties();
  EXPECT_NO_THROW(all.count_tied(1, 0));
  EXPECT_THROW(all.count_tied(1, tied), InputError);
}

TEST(RowPicks, AreThoseOfTheFirstRun) {
  RowPicks none({.topk = 9}, {0, 9, 12});
  EXPECT_FALSE(none.are_needed());
  RowPicks picks({.topk = 2}, {0, 3, 10});
  EXPECT_TRUE(picks.are_needed());
  const at::Tensor keys = random({10, 4}, 1);
  EXPECT_TRUE(at::equal(picks.add_keys(1, 0, 0, keys.narrow(0, 0, 3)), keys.narrow(0, 0, 3)));
  picks.finish(1, 3);
  EXPECT_TRUE(picks.are_known(1, 3) && !picks.are_known(1, 4) && !picks.are_known(0, 1));
  EXPECT_THROW(picks.add_keys(1, 3, 7, keys.narrow(0, 7, 3)), InputError) << "rows 3 to 6 have not run";
  EXPECT_TRUE(at::equal(picks.add_keys(1, 3, 3, keys.narrow(0, 3, 4)), keys.narrow(0, 3, 4)));
  picks.finish(1, 7);
  EXPECT_TRUE(at::equal(picks.add_keys(1, 3, 7, keys.narrow(0, 7, 3)), keys.narrow(0, 3, 7)));
  picks.keep(1, 7, at::arange(6, at::kInt).view({3, 2}));
  picks.finish(1, 10);
  EXPECT_TRUE(at::equal(picks.find(1, 8, 2), at::arange(2, 6, at::kInt).view({2, 2})));
  picks.drop(1);
  EXPECT_FALSE(picks.are_known(1, 1));
}

TEST(RowPicks, AreThoseThatAreGiven) {
  RowPicks picks({.topk = 2}, {0, 3, 10});
  const at::Tensor given = at::arange(20, at::kInt).view({10, 2}), none_open = at::zeros({10}, at::kBool);
  picks.give(1, given.clone(), none_open);
  EXPECT_TRUE(picks.are_given() && picks.are_needed() && picks.are_known(1, 10));
  EXPECT_EQ(picks.first_open(1, 3, 10), 10);
  at::Tensor open = none_open.clone();
  open[7] = true;
  picks.give(4, given.clone(), open);
  EXPECT_FALSE(picks.are_known(4, 1)) << "the indexer picks for row 7";
  EXPECT_EQ(picks.first_open(4, 3, 10), 7);
  EXPECT_EQ(picks.first_open(4, 8, 10), 10);
  picks.keep(4, 7, at::full({3, 2}, -5, at::kInt));
  picks.finish(4, 10);
  EXPECT_TRUE(picks.are_known(4, 10));
  at::Tensor expected = given.clone();
  expected[7].fill_(-5);
  EXPECT_TRUE(at::equal(picks.find(4, 0, 10), expected));
  EXPECT_TRUE(at::equal(picks.find(1, 0, 10), given));
}

}  // namespace
}  // namespace streambp
