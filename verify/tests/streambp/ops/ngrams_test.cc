// Which tokens n-grams have at beginnings and behind boundaries, against a loop; rows of tables, against
// numbers worked out by hand; looking them up, and gates of streams, against plain ATen in float64.
#include "streambp/ops/ngrams.h"

#include "streambp/ops/rows/rows.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

TEST(Ngrams, EndAtBoundariesAndBeginnings) {
  const std::vector<int64_t> tokens{4, 7, 7, 2, 5, 3, 7, 1, 6, 8, 2}, offsets{0, 5, 5, 6, 11};
  constexpr int64_t kSize = 4, kBoundary = 7;
  const at::Tensor found = ngram_tokens(at::tensor(tokens, at::kLong), offsets, kSize, kBoundary);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
      bool is_over = false;
      for (int64_t i = 0; i < kSize; ++i) {
        is_over =
            is_over || (i > 0 && (t - i < offsets[s] || tokens[static_cast<size_t>(t - i)] == kBoundary));
        const int64_t expected = is_over ? kBoundary : tokens[static_cast<size_t>(t - i)];
        EXPECT_EQ(found[t][i].item<int64_t>(), expected) << "token " << t << ", " << i << " before";
      }
    }
  }
}

TEST(Ngrams, AreHashedIntoTheRowsOfEachHead) {
  const at::Tensor ngrams = at::tensor({3, 5, 2, 1, 0, 4}, at::kLong).view({2, 3});
  // 3 * 7 ^ 5 * 11 = 34, 34 ^ 2 * 13 = 56; 1 * 7 ^ 0 = 7, 7 ^ 4 * 13 = 51.
  const at::Tensor rows = ngram_rows(ngrams, {7, 11, 13}, {5, 7, 11, 13});
  EXPECT_TRUE(at::equal(rows, at::tensor({34 % 5, 5 + 34 % 7, 12 + 56 % 11, 23 + 56 % 13,  //
                                          7 % 5, 5 + 7 % 7, 12 + 51 % 11, 23 + 51 % 13},
                                         at::kLong)
                                  .view({2, 4})));
}

TEST(Ngrams, EqualPlainAutograd) {
  constexpr int64_t kTokens = 6, kOfHead = 4;
  Parameter table = parameter(random({9, 3}, 1));
  const at::Tensor rows = at::randint(9, {kTokens, 2}, at::kLong), x = random({kTokens, 2}, 2);
  expect_same(
      {x}, {&table},
      [&](const std::vector<at::Tensor>& in) { return look_up(in[0], table, rows) + in[0].sum(); },
      [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
        return of[0].index_select(0, rows.flatten()).view({kTokens, -1}) + in[0].sum();
      });
  for (const int64_t streams : {2, 3}) {
    at::Tensor keys = random({kTokens, streams * kOfHead}, 3);
    const at::Tensor queries = random({kTokens, streams * kOfHead}, 4),
                     values = random({kTokens, kOfHead}, 5);
    keys[1].mul_(1e-7);  // a gate nearer to 0 than roots are taken of
    expect_same(
        {keys, queries, values}, {},
        [&](const std::vector<at::Tensor>& in) { return opened_values(in[0], in[1], in[2]); },
        [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>&) {
          const at::Tensor gate = (in[0] * in[1]).view({kTokens, streams, kOfHead}).sum(-1, true) / 2.0;
          const at::Tensor root = gate.abs().clamp_min(1e-6).sqrt() * gate.sign();
          return (root.sigmoid() * in[2].unsqueeze(1)).flatten(1);
        });
  }
}

}  // namespace
}  // namespace streambp
