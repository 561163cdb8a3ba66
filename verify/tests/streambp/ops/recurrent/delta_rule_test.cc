// The gated delta rule in blocks against its definition, token by token under autograd.
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "streambp/memory/meter.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/ops/delta_rule_testing.h"
#include "verify/tests/streambp/ops/without_kernels.h"

namespace streambp {
namespace {

constexpr double kRuleLimit = 1e-13;

/// Two value heads for each key head, and sizes that are no multiple of a register's.
constexpr DeltaRuleSizes kHeads{2, 4, 6, 5};

/// A decay for each entry of a key, in three heads of their own and in four that share two.
constexpr DeltaRuleSizes kChannels{3, 3, 6, 5, true, true}, kSharedChannels{2, 4, 5, 3, true, true};

/// The worst error so far; printed when it goes.
class Worst {
 public:
  explicit Worst(double limit) : limit_(limit) {}
  ~Worst() { fmt::print("worst relative error {:.2e} ({}), limit {:.0e}\n", worst_, where_, limit_); }
  Worst(const Worst&) = delete;
  Worst& operator=(const Worst&) = delete;

  void check(const DeltaRulePass& got, const DeltaRulePass& expected, const std::string& where) {
    for (const auto& [part, error] : delta_rule_errors(got, expected)) {
      EXPECT_TRUE(error <= limit_) << where << ", " << part << ": relative error " << error << ", limit "
                                   << limit_;
      if (error > worst_) {
        worst_ = error;
        where_ = fmt::format("{}, {}", where, part);
      }
    }
  }

 private:
  double limit_;
  double worst_ = 0.0;
  std::string where_;
};

class DeltaRuleOps : public WithAndWithoutKernels {};
INSTANTIATE_TEST_SUITE_P(Ops, DeltaRuleOps, testing::Bool(), KernelsName());

TEST_P(DeltaRuleOps, IsTheRecurrence) {
  Worst worst(kRuleLimit);
  for (const DeltaRuleSizes& sizes : {kHeads, DeltaRuleSizes{1, 1, 16, 32}, DeltaRuleSizes{3, 3, 1, 1}}) {
    for (const int64_t length : {1, 2, 3, 63, 64, 65, 130}) {
      const DeltaRuleCase in(sizes, {0, length});
      worst.check(pass_by_op(in), pass_by_tokens(in), fmt::format("{} tokens", length));
    }
  }
}

TEST_P(DeltaRuleOps, GoesThroughMoreBlocksThanOneGroup) {
  Worst worst(kRuleLimit);
  const DeltaRuleCase in({1, 2, 4, 3}, {0, 1200}, -1e-4, -1.0);
  worst.check(pass_by_op(in), pass_by_tokens(in), "1200 tokens");
}

TEST_P(DeltaRuleOps, BeginsAnewWithEachSequence) {
  Worst worst(kRuleLimit);
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 1, 3, 70, 198, 200}, {0, 64, 128}, {0, 5, 5, 9}, {0, 130, 131}}) {
    const DeltaRuleCase in(kHeads, offsets);
    worst.check(pass_by_op(in), pass_by_tokens(in), fmt::format("{}", fmt::join(offsets, ",")));
  }
}

TEST_P(DeltaRuleOps, HandsStatesAndTheirGradientsFromRunToRun) {
  Worst worst(kRuleLimit);
  for (const DeltaRuleSizes& sizes : {kHeads, kChannels}) {
    const DeltaRuleCase in(sizes, {0, 90, 93, 203});
    const DeltaRulePass whole = pass_by_op(in);
    for (const int64_t chunk : {1, 2, 33, 63, 64, 65, 90, 93, 202}) {
      std::vector<int64_t> cuts;
      for (int64_t row = 0; row < 203; row += chunk) cuts.push_back(row);
      worst.check(pass_by_op(in, cuts), whole, fmt::format("runs of {}", chunk));
    }
  }
}

TEST_P(DeltaRuleOps, HasADecayForEachChannel) {
  Worst worst(kRuleLimit);
  for (const DeltaRuleSizes& sizes : {kChannels, kSharedChannels, DeltaRuleSizes{1, 1, 16, 32, true, true},
                                      DeltaRuleSizes{2, 2, 1, 1, true, true}}) {
    for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{0, 1},
                                                {0, 2},
                                                {0, 3},
                                                {0, 37},
                                                {0, 63},
                                                {0, 64},
                                                {0, 65},
                                                {0, 1, 3, 70, 198, 200},
                                                {0, 5, 5, 9},
                                                {0, 64, 128}}) {
      const DeltaRuleCase in(sizes, offsets);
      worst.check(pass_by_op(in), pass_by_tokens(in), fmt::format("{}", fmt::join(offsets, ",")));
    }
  }
  const DeltaRuleCase in(kChannels, {0, 1200}, -1e-4, -1.0);
  worst.check(pass_by_op(in), pass_by_tokens(in), "1200 tokens");
}

TEST_P(DeltaRuleOps, KeepsDecaysOfChannelsApart) {
  // Sums of logarithms reach -12800 in a block, where e^G and e^-G have no numbers.
  Worst worst(kRuleLimit);
  for (const auto& [weakest, strongest] :
       std::vector<std::pair<double, double>>{{-1e-6, -2e-6}, {-1e-6, -200}, {-20, -30}, {-199, -200}}) {
    const DeltaRuleCase in(kChannels, {0, 130}, weakest, strongest);
    worst.check(pass_by_op(in), pass_by_tokens(in), fmt::format("{} to {}", weakest, strongest));
  }
  DeltaRuleCase in(kChannels, {0, 130}, -1e-6, -2e-6);
  in.log_decay.slice(0, 5, 130, 7).slice(1, 0, 18, 2).fill_(-200);
  worst.check(pass_by_op(in), pass_by_tokens(in), "-200 in between, of every other channel");
  in.log_decay.slice(0, 5, 130, 7).fill_(0);
  worst.check(pass_by_op(in), pass_by_tokens(in), "0 in between");
}

TEST_P(DeltaRuleOps, GivesTheStateAlone) {
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 130}, {0, 64}, {0, 70, 71}, {0, 3, 3}, {0, 0}}) {
    const DeltaRuleCase in(kHeads, offsets);
    const at::Tensor state =
        delta_rule_state(in.mixed, in.log_decay, in.beta, in.sizes, in.offsets, {in.state, {}});
    EXPECT_FALSE(state.requires_grad());
    EXPECT_TRUE(at::equal(
        state,
        gated_delta_rule(in.mixed, in.log_decay, in.beta, in.sizes, in.offsets, {in.state, {}}).state));
    const at::Tensor expected = offsets.back() > 0 ? delta_rule_by_tokens(in).state : in.state;
    EXPECT_TRUE(delta_rule_error(state, expected) <= kRuleLimit);
  }
}

TEST_P(DeltaRuleOps, IsAStateSpaceWithoutTheExchange) {
  Worst worst(kRuleLimit);
  for (const DeltaRuleSizes& sizes : {DeltaRuleSizes{2, 4, 6, 5, false}, DeltaRuleSizes{1, 3, 7, 2, false},
                                      DeltaRuleSizes{1, 19, 17, 9, false}}) {
    for (const std::vector<int64_t>& offsets :
         {std::vector<int64_t>{0, 1}, {0, 63}, {0, 65}, {0, 1, 3, 70, 198, 200}, {0, 5, 5, 9}}) {
      const DeltaRuleCase in(sizes, offsets, -1e-4, -3);
      const DeltaRulePass expected = pass_by_tokens(in);
      const std::string where = fmt::format("{}", fmt::join(offsets, ","));
      worst.check(pass_by_op(in), expected, where);
      for (const int64_t chunk : {1, 33, 64, 65}) {
        std::vector<int64_t> cuts;
        for (int64_t row = 0; row < offsets.back(); row += chunk) cuts.push_back(row);
        if (cuts.size() > 1)
          worst.check(pass_by_op(in, cuts), expected, where + fmt::format(" by {}", chunk));
      }
      const at::Tensor state =
          delta_rule_state(in.mixed, in.log_decay, in.beta, sizes, offsets, {in.state, {}});
      EXPECT_TRUE(delta_rule_error(state, expected.state) <= kRuleLimit) << where;
    }
  }
  const DeltaRuleCase in({1, 3, 7, 2, false}, {0, 1200}, -1e-4, -3);
  worst.check(pass_by_op(in), pass_by_tokens(in), "1200 tokens");
}

/// Gradients of either output alone sum to that of both.
void expect_sum_of_either(const DeltaRuleCase& in) {
  const auto [d_hidden, d_state] = delta_rule_cotangents(in);
  std::vector<at::Tensor> sum;
  for (const bool of_state : {false, true}) {
    const at::Tensor mixed = in.mixed.clone().requires_grad_();
    const auto y = gated_delta_rule(mixed, in.log_decay, in.beta, in.sizes, in.offsets, {in.state, {}});
    const at::Tensor root = of_state ? y.state : y.hidden;
    sum.push_back(torch::autograd::grad({root}, {mixed}, {of_state ? d_state : d_hidden}).front());
  }
  expect_near(sum[0] + sum[1], pass_by_op(in).gradients[0], "sum of both gradients", kRuleLimit);
}

TEST_P(DeltaRuleOps, KeepsDecaysOfAStateSpaceApart) {
  Worst worst(2e-12);
  const DeltaRuleSizes sizes{1, 3, 7, 2, false};
  DeltaRuleCase in(sizes, {0, 130}, -1e-6, -200);
  worst.check(pass_by_op(in), pass_by_tokens(in), "-1e-6 to -200");
  in.log_decay.slice(0, 5, 130, 7).fill_(-200);
  worst.check(pass_by_op(in), pass_by_tokens(in), "-200 in between");
  in.log_decay.slice(0, 5, 130, 7).fill_(0);
  worst.check(pass_by_op(in), pass_by_tokens(in), "0 in between");
}

TEST_P(DeltaRuleOps, TakesGradientsOfEitherOutputAlone) {
  for (const DeltaRuleSizes& sizes : {kHeads, DeltaRuleSizes{1, 3, 7, 2, false}, kChannels})
    expect_sum_of_either(DeltaRuleCase(sizes, {0, 67}));
}

TEST_P(DeltaRuleOps, TakesStridedRows) {
  for (const DeltaRuleSizes& sizes : {kHeads, kChannels}) {
    const DeltaRuleCase in(sizes, {0, 67});
    DeltaRuleCase strided = in;
    for (at::Tensor* x : {&strided.mixed, &strided.log_decay, &strided.beta})
      *x = at::cat({*x, *x}, 1).narrow(1, 1, x->size(1)).copy_(*x);
    const auto run = [](const DeltaRuleCase& x) {
      return gated_delta_rule(x.mixed, x.log_decay, x.beta, x.sizes, x.offsets, {x.state, {}}).hidden;
    };
    EXPECT_TRUE(at::equal(run(strided), run(in)));
  }
}

TEST_P(DeltaRuleOps, TakesStridedGradients) {
  const DeltaRuleCase in(kHeads, {0, 67});
  const auto [d_hidden, d_state] = delta_rule_cotangents(in);
  const auto strided = [](const at::Tensor& x) {
    const at::Tensor wider = at::cat({x, x}, -1).narrow(-1, 1, x.size(-1)).copy_(x);
    EXPECT_FALSE(wider.is_contiguous());
    return wider;
  };
  const at::Tensor mixed = in.mixed.clone().requires_grad_();
  const auto y = gated_delta_rule(mixed, in.log_decay, in.beta, in.sizes, in.offsets, {in.state, {}});
  const auto d = torch::autograd::grad({y.hidden, y.state}, {mixed}, {strided(d_hidden), strided(d_state)});
  EXPECT_TRUE(at::equal(d[0], pass_by_op(in).gradients[0]));
}

TEST_P(DeltaRuleOps, TakesNoStateForZeros) {
  DeltaRuleCase in(kHeads, {0, 67});
  in.state.zero_();
  const at::Tensor mixed = in.mixed.clone().requires_grad_();
  const auto y = gated_delta_rule(mixed, in.log_decay, in.beta, in.sizes, in.offsets, {});
  const auto [d_hidden, d_state] = delta_rule_cotangents(in);
  const auto d = torch::autograd::grad({y.hidden, y.state}, {mixed}, {d_hidden, d_state});
  const DeltaRulePass expected = pass_by_op(in);
  EXPECT_TRUE(at::equal(y.hidden.detach(), expected.hidden));
  EXPECT_TRUE(at::equal(d[0], expected.gradients[0]));
}

TEST_P(DeltaRuleOps, AddsToTheGradientOfTheStateBefore) {
  const DeltaRuleCase in(kHeads, {0, 67});
  const at::Tensor mixed = in.mixed.clone().requires_grad_();
  const at::Tensor sum = at::ones_like(in.state);
  const auto y = gated_delta_rule(mixed, in.log_decay, in.beta, in.sizes, in.offsets, {in.state, sum});
  const auto [d_hidden, d_state] = delta_rule_cotangents(in);
  torch::autograd::grad({y.hidden, y.state}, {mixed}, {d_hidden, d_state});
  EXPECT_TRUE(at::equal(sum, pass_by_op(in).gradients[3] + 1));
}

TEST_P(DeltaRuleOps, KeepsDecaysOfEveryStrengthApart) {
  // Sums of logarithms reach -12800 in a block; differences of such have 12 digits.
  Worst worst(2e-12);
  const std::vector<std::pair<double, double>> ranges{
      {-1e-6, -2e-6}, {-1e-6, -200}, {-20, -30}, {-199, -200}};
  for (const auto& [weakest, strongest] : ranges) {
    const DeltaRuleCase in(kHeads, {0, 130}, weakest, strongest);
    worst.check(pass_by_op(in), pass_by_tokens(in), fmt::format("{} to {}", weakest, strongest));
  }
  DeltaRuleCase in(kHeads, {0, 130}, -1e-6, -2e-6);
  in.log_decay.slice(0, 5, 130, 7).fill_(-200);
  worst.check(pass_by_op(in), pass_by_tokens(in), "-200 in between");
  in.log_decay.slice(0, 5, 130, 7).fill_(0);
  worst.check(pass_by_op(in), pass_by_tokens(in), "0 in between");
}

TEST_P(DeltaRuleOps, TakesKeysThatRepeatAndBetaAtItsLimits) {
  Worst worst(kRuleLimit);
  DeltaRuleCase in(kHeads, {0, 130}, -1e-6, -0.1);
  const int64_t keys = kHeads.key_heads * kHeads.key_dim;
  in.mixed.narrow(1, keys, keys).copy_(in.mixed.narrow(1, keys, keys)[0].expand({130, keys}).clone());
  in.beta.fill_(1);
  worst.check(pass_by_op(in), pass_by_tokens(in), "one key and beta 1");
  in.beta.zero_();
  worst.check(pass_by_op(in), pass_by_tokens(in), "beta 0");
}

/// The op's error over that of the recurrence in the same dtype, both against float64; the worst part's.
void expect_as_precise(const DeltaRuleCase& exact, double factor, const std::string& where) {
  const DeltaRuleCase in = exact.to(at::kFloat);
  const DeltaRuleCase same = in.to(at::kDouble);  // the rounded inputs
  const DeltaRulePass truth = pass_by_tokens(same);
  const auto got = delta_rule_errors(pass_by_op(in), truth),
             plain = delta_rule_errors(pass_by_tokens(in), truth);
  for (size_t i = 0; i < got.size(); ++i) {
    const double limit = factor * plain[i].second + 1e-7;
    EXPECT_TRUE(got[i].second <= limit)
        << where << ", " << got[i].first << ": " << got[i].second << ", token by token " << plain[i].second;
    fmt::print("{}, {}: {:.1e}, token by token {:.1e}\n", where, got[i].first, got[i].second,
               plain[i].second);
  }
}

TEST_P(DeltaRuleOps, IsAsPreciseInFloat32AsTheRecurrence) {
  for (const auto& [weakest, strongest] :
       std::vector<std::pair<double, double>>{{-1e-6, -1e-3}, {-1e-3, -1}, {-1e-6, -30}, {-1e-6, -200}})
    for (const auto& [exchanges, channels] :
         std::vector<std::pair<bool, bool>>{{true, false}, {false, false}, {true, true}})
      expect_as_precise(
          DeltaRuleCase({channels ? 4 : 2, 4, 32, 32, exchanges, channels}, {0, 260}, weakest, strongest),
          3.0, fmt::format("{} to {}, exchange {}, channels {}", weakest, strongest, exchanges, channels));
}

TEST_P(DeltaRuleOps, TakesBfloat16) {
  Worst worst(5e-3);  // of a rounding to 8 bits, sums of rounded cotangents
  for (const DeltaRuleSizes& sizes : {kHeads, DeltaRuleSizes{1, 9, 6, 5, false}, kChannels}) {
    const DeltaRuleCase in = DeltaRuleCase(sizes, {0, 70, 130}, -1e-3, -3).to(at::kBFloat16);
    const DeltaRuleCase same = in.to(at::kDouble);
    const DeltaRulePass got = pass_by_op(in);
    EXPECT_EQ(got.hidden.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.state.scalar_type(), at::kFloat);
    EXPECT_EQ(got.gradients[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.gradients[1].scalar_type(), at::kFloat);
    worst.check(got, pass_by_tokens(same), "bfloat16");
  }
}

TEST(DeltaRuleKernels, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const auto& [dtype, sizes] :
       std::vector<std::pair<at::ScalarType, DeltaRuleSizes>>{{at::kFloat, {2, 4, 32, 16}},
                                                              {at::kDouble, {2, 4, 32, 16}},
                                                              {at::kFloat, {1, 20, 32, 16, false}},
                                                              {at::kDouble, {1, 20, 32, 16, false}},
                                                              {at::kFloat, {4, 4, 32, 16, true, true}},
                                                              {at::kDouble, {4, 4, 32, 16, true, true}}}) {
    const DeltaRuleCase in = DeltaRuleCase(sizes, {0, 200, 330}).to(dtype);
    const DeltaRulePass first = on_threads(1, [&] { return pass_by_op(in); });
    for (const int threads : {1, 2, 8}) {
      const DeltaRulePass again = on_threads(threads, [&] { return pass_by_op(in); });
      EXPECT_TRUE(at::equal(again.hidden, first.hidden) && at::equal(again.state, first.state));
      for (size_t i = 0; i < 4; ++i)
        EXPECT_TRUE(at::equal(again.gradients[i], first.gradients[i]))
            << kDeltaRuleNames[i] << ", " << threads << " threads";
    }
  }
}

TEST_P(DeltaRuleOps, RefusesWhatDoesNotFit) {
  const DeltaRuleCase in(kHeads, {0, 9});
  const auto run = [](const DeltaRuleCase& x) {
    return gated_delta_rule(x.mixed, x.log_decay, x.beta, x.sizes, x.offsets, {x.state, {}});
  };
  EXPECT_NO_THROW(run(in));
  const auto refuses = [&](auto change) {
    DeltaRuleCase bad = in;
    change(bad);
    EXPECT_THROW(run(bad), InputError);
  };
  refuses([](DeltaRuleCase& x) { x.mixed = x.mixed.narrow(1, 0, 8); });
  refuses([](DeltaRuleCase& x) { x.beta = x.beta.narrow(0, 0, 8); });
  refuses([](DeltaRuleCase& x) { x.log_decay = x.log_decay.narrow(1, 0, 3); });
  refuses([](DeltaRuleCase& x) { x.state = x.state.transpose(1, 2); });
  refuses([](DeltaRuleCase& x) { x.state = x.state.to(at::kFloat); });
  refuses([](DeltaRuleCase& x) { x.offsets = {0, 8}; });
  refuses([](DeltaRuleCase& x) { x.offsets = {0, 5, 3, 9}; });
  refuses([](DeltaRuleCase& x) { x.sizes.key_heads = 3; });
  refuses([](DeltaRuleCase& x) { x.sizes.channel_gates = true; });
  EXPECT_THROW(run(DeltaRuleCase({3, 4, 6, 5}, {0, 9})), InputError) << "four heads that share three";
  EXPECT_THROW(gated_delta_rule(in.mixed, in.log_decay, in.beta, in.sizes, in.offsets,
                                {in.state, at::zeros_like(in.state).narrow(0, 0, 1)}),
               InputError);
}

/// Bytes of a forward and a backward pass: kept in between, and the peak.
struct Bytes {
  int64_t kept, peak;
  bool operator==(const Bytes& other) const { return kept == other.kept && peak == other.peak; }
};

Bytes bytes_of(const DeltaRuleCase& in) {
  const c10::Device device = in.mixed.device();
  const at::Tensor mixed = in.mixed.clone().requires_grad_();
  const at::Tensor gradient = at::zeros_like(in.state);
  const int64_t before = read_meter(device).live_bytes;
  reset_peak(device);
  const auto y = gated_delta_rule(mixed, in.log_decay, in.beta, in.sizes, in.offsets, {in.state, gradient});
  const int64_t kept = read_meter(device).live_bytes - before;
  torch::autograd::grad({y.hidden, y.state}, {mixed}, {y.hidden.detach(), y.state.detach()});
  return {kept, read_meter(device).peak_bytes - before};
}

TEST_P(DeltaRuleOps, AllocatesTheSameOnMeta) {
  install_meters();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{0, 1300}, {0, 3}, {0, 64, 700, 701}}) {
      for (const DeltaRuleSizes& sizes : {kHeads, DeltaRuleSizes{1, 20, 6, 5, false}, kChannels}) {
        const DeltaRuleCase in = DeltaRuleCase(sizes, offsets).to(dtype);
        const Bytes real = bytes_of(in), shapes = bytes_of(in.to(dtype, at::kMeta));
        EXPECT_EQ(shapes.kept, real.kept);
        EXPECT_EQ(shapes.peak, real.peak);
      }
    }
  }
}

}  // namespace
}  // namespace streambp
