// Mistakes that the diagnosis did not know when they were first shown to it, planted by the library's passes
// alone where these can make them, and how many passes it takes to name them.
#include <cmath>

#include "streambp/objective/terms.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// Passes that a mistake of the forward pass takes, on average ten and no more than these: each trial is a
/// forward pass and the head alone.
constexpr double kPassesOfForward = 25.0;

Diagnosis expect_named_soon(const DiagnoseCase& right, const Tensors& gradients, const std::string& words,
                            double most = kPassesOfForward) {
  expect_said(right, gradients, words);
  Diagnosis found = diagnose(right, gradients);
  EXPECT_LE(found.passes, most) << words;
  return found;
}

TEST(DiagnoseBlind, ExactGelu) {
  const DiagnoseCase right = eight_rows("gemma-tiny");
  expect_named_soon(right, under_config(right, [](Config& c) { c.hidden_act = Activation::kGelu; }),
                    "the exact GELU where it should be the tanh's");
}

TEST(DiagnoseBlind, YarnWithoutItsFactor) {
  const DiagnoseCase right = eight_rows("llama-yarn-tiny");
  expect_named_soon(right, under_config(right, [](Config& c) { c.rope.attention_factor = 1.0; }), "(mscale");
}

TEST(DiagnoseBlind, PositionsOfABalancedRing) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  Batch batch = right.owned.batch;
  batch.positions = balanced_positions(batch, 2);
  EXPECT_GT((batch.positions - right.owned.batch.positions).abs().max().item<int64_t>(), 0);
  expect_named_soon(right, under(right, batch, {}),
                    "rotary positions are those of a balanced ring's shards: 2 ranks");
}

TEST(DiagnoseBlind, BalancedPositionsAreThoseOfTheRing) {
  // 2 ranks, 4 chunks of 2 columns: rank 0 has columns 0, 1, 6 and 7.
  Batch batch = random_batch({8}, 101, 4);
  EXPECT_TRUE(at::equal(balanced_positions(batch, 2), at::tensor({0, 1, 4, 5, 6, 7, 2, 3}, at::kLong)));
}

TEST(DiagnoseBlind, RowsKeepTheirEnds) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  const Batch& batch = right.owned.batch;
  std::vector<int64_t> lengths;
  std::vector<at::Tensor> tokens, targets;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t end = batch.offsets[i + 1], begin = std::max(batch.offsets[i], end - 6);
    lengths.push_back(end - begin);
    tokens.push_back(batch.tokens.slice(0, begin, end));
    targets.push_back(batch.targets.slice(0, begin, end));
  }
  Batch shorter = random_batch(lengths, 101, 1);
  shorter.tokens = at::cat(tokens);
  shorter.targets = at::cat(targets);
  expect_named_soon(right, under(right, shorter, {}), "of each the last 6 tokens are left");
}

TEST(DiagnoseBlind, DecaysInBfloat16) {
  const DiagnoseCase right = eight_rows("qwen3.5-tiny");
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    return name.ends_with("A_log") ? value.to(at::kBFloat16).to(at::kDouble) : value;
  });
  expect_named_soon(right, evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients,
                    "A_log, whose exponential is the decay, is kept in bfloat16");
}

TEST(DiagnoseBlind, SoftmaxOfShards) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  WrongSettings settings;
  settings.vocabulary_shards = 2;
  expect_named_soon(right, right.wrong(settings),
                    "a target's softmax is over its own shard of the vocabulary alone, of 2");
}

TEST(DiagnoseBlind, GradientsOfAnotherBatchAreLeftIn) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  Batch other = random_batch({6, 9}, 101, 77);
  const Tensors left_in = under(right, other, {});
  expect_said(right, weighted(right.truth, 1.0, left_in),
              "gradients of other tokens than this batch's are in");
}

TEST(DiagnoseBlind, PairsMatchedOtherwise) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "dpo", {{"beta", "0.3"}}, "full", "left", 11});
  const int64_t all = static_cast<int64_t>(right.owned.batch.offsets.size()) - 1, half = all / 2;
  ASSERT_GE(half, 2);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < all; ++i) order.push_back(i < half ? i : half + (i - half + 1) % half);
  const Batch batch = select_sequences(right.owned.batch, order);
  expect_named_soon(right, under(right, batch, right.options),
                    "each chosen completion is held against the rejected one of the pair 1 further on", 10.0);
}

TEST(DiagnoseBlind, DivergenceWithoutTheTemperature) {
  const OptionMap own{{"beta", "0.2"}, {"temperature", "0.7"}};
  const DiagnoseCase right = diagnose_case({"glm4-tiny", "grpo", own, "full", "left", 11});
  const Batch& batch = right.owned.batch;
  const OptionMap none{{"beta", "0"}, {"temperature", "0.7"}};
  // The KL term alone is what a loss with it has more than one without.
  const Tensors with = under(right, batch, {{"beta", "0.2"}, {"temperature", "1"}}),
                without = under(right, batch, {{"beta", "0"}, {"temperature", "1"}});
  const Tensors divergence = weighted(with, -1.0, without);
  expect_named_soon(right, weighted(under(right, batch, none), 1.0, divergence),
                    "the KL term's log-probabilities are not divided by the temperature", 12.0);
}

TEST(DiagnoseBlind, WeightsOfKtoAreExchanged) {
  const OptionMap own{{"desirable_weight", "1.3"}, {"undesirable_weight", "0.8"}};
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "kto", own, "full", "left", 11});
  expect_named_soon(
      right, under(right, right.owned.batch, {{"desirable_weight", "0.8"}, {"undesirable_weight", "1.3"}}),
      "desirable_weight and undesirable_weight are exchanged", 10.0);
}

TEST(DiagnoseBlind, WindowsTakeTrialsOfTheHeadAlone) {
  const DiagnoseCase right = eight_rows("gemma3-tiny");
  const Diagnosis found = expect_named_soon(right,
                                            under_config(right,
                                                         [](Config& c) {
                                                           for (int64_t& window : c.windows)
                                                             window += window > 0 ? 1 : 0;
                                                         }),
                                            "windows are one token too wide");
  EXPECT_GT(static_cast<double>(found.tried), found.passes);
}

TEST(DiagnoseBlind, TwoMistakesOfWhichTheHeadShowsOne) {
  const DiagnoseCase right = eight_rows("llama-tied-tiny");
  WrongSettings settings;
  settings.tied.head = 0.0;
  settings.prompt_scored = false;
  settings.target_shift = -1;
  expect_said(right, right.wrong(settings), "the tied embedding's gradient misses the head's part");
}

TEST(DiagnoseBlind, SwitchesAndCountsOfAConfig) {
  const DiagnoseCase cohere = eight_rows("cohere-tiny");
  expect_named_soon(cohere, under_config(cohere, [](Config& c) { c.norm_centers = false; }),
                    "LayerNorm and RMSNorm");
  const DiagnoseCase experts = eight_rows("qwen3-moe-tiny");
  expect_named_soon(experts, under_config(experts, [](Config& c) { ++c.mixture.num_experts_per_tok; }),
                    "one expert more");
}

TEST(DiagnoseBlind, WeightsThatAreTurnedRound) {
  const DiagnoseCase right = eight_rows("lfm2-tiny");
  const auto turned = [](const std::string& name, const at::Tensor& x) {
    return name.ends_with("conv.conv.weight") ? x.flip({-1}).contiguous() : x;
  };
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    return turned(name, right.owned.model.parameter(name).value);
  });
  Tensors wrong = evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
  for (auto& [name, gradient] : wrong) gradient = turned(name, gradient);
  expect_named_soon(right, wrong, "conv.conv is applied in the reverse order");
}

TEST(DiagnoseBlind, WeightsOfAnotherStep) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    return right.owned.model.parameter(name).value + right.truth.at(name) * 0.01;
  });
  expect_named_soon(right, evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients,
                    "0.01 times their gradient further");
}

TEST(DiagnoseBlind, NormsThatTheLayersLeaveOutAreThoseOfTheWrongEngine) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  WrongSettings by_engine, by_layers;
  by_engine.missing_norm = MissingNorm::kHeads;
  by_layers.missing_norms = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"};
  const Tensors one = right.wrong(by_engine), other = right.wrong(by_layers);
  for (const auto& [name, gradient] : one) EXPECT_LE(relative_error(other.at(name), gradient), 1e-12) << name;
  expect_named_soon(right, one, "norm of queries and keys");
}

TEST(DiagnoseBlind, FirstTokensOfCompletionsAndPowersOfLengths) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  const Batch& batch = right.owned.batch;
  Batch late = batch;
  late.targets = batch.targets.clone();
  Tensors by_roots = times(right.truth, 0.0);
  double roots = 0.0;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const at::Tensor scored =
        batch.targets.slice(0, batch.offsets[i], batch.offsets[i + 1]).ne(kNoTarget).nonzero();
    late.targets[batch.offsets[i] + scored[0][0].item<int64_t>()] = kNoTarget;
    Batch alone = batch;
    alone.targets = at::full_like(batch.targets, kNoTarget);
    alone.targets.slice(0, batch.offsets[i], batch.offsets[i + 1])
        .copy_(batch.targets.slice(0, batch.offsets[i], batch.offsets[i + 1]));
    const double root = std::sqrt(static_cast<double>(scored.size(0)));
    by_roots = weighted(by_roots, root, under(right, alone, {}));  // the mean of the row's own
    roots += root;
  }
  expect_said(right, under(right, late, {}), "the first");
  expect_said(right, times(by_roots, 1.0 / roots), "divided by the square root of its scored tokens");
}

TEST(DiagnoseBlind, WeightsOfExperts) {
  const DiagnoseCase right = eight_rows("glm4-moe-tiny");
  WrongSettings settings;
  settings.experts = WrongExperts::kCorrectedWeights;
  // The correction is what the weights are off by: without one nothing is.
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    return name.ends_with("e_score_correction_bias") ? at::zeros_like(value) : value;
  });
  const WrongSubject plain{other, right.owned.batch, right.objective, right.options, right.input_ids};
  const Tensors exact = evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
  const Tensors made = run_mistake(plain, settings);
  for (const auto& [name, gradient] : exact)
    EXPECT_LE(relative_error(made.at(name), gradient), 1e-11) << name;
  expect_named_soon(right, right.wrong(settings), "stays in the experts' weights");
}

}  // namespace
}  // namespace streambp::verify
