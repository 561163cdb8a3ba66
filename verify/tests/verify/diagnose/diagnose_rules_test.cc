// Mistakes of a third round: parts of a layer's rule, documents that begin elsewhere, ways that carry no
// gradient, quantised weights, and weights of rows and tokens that have a reason.
#include <cmath>

#include "streambp/objective/terms.h"
#include "verify/diagnose/wrong_engine/other_weights.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

DiagnoseCase few_rows(const std::string& model) {
  return eight_rows(model, {}, {9, 5, 7});
}

TEST(DiagnoseRules, PartsOfARecurrentRule) {
  const DiagnoseCase right = few_rows("qwen3.5-tiny");
  WrongSettings nearly, bare, straight;
  nearly.recurrence.beta = 1.0 + 1e-15;  // asks for the rule op by op, which is the library's
  for (const auto& [name, gradient] : right.wrong(nearly))
    EXPECT_LE(relative_error(gradient, right.truth.at(name)), 1e-11) << name;
  bare.recurrence.heads_not_normed = true;
  straight.recurrence.no_activation = true;
  expect_said(right, right.wrong(bare), "queries and keys of the delta rule are not normed");
  expect_said(right, right.wrong(straight), "no activation (SiLU) behind the recurrent layers' convolution");
}

TEST(DiagnoseRules, DocumentsThatBeginElsewhere) {
  const DiagnoseCase right =
      diagnose_case({"qwen3-tiny", "sft", {}, "full", "three", 9}, packed_rows({5, 4, 6, 7, 2, 6}, 15, 101));
  Batch lost = right.owned.batch, late = right.owned.batch;
  lost.offsets = {0, 5, 15, 22, 30};
  late.offsets = {0, 6, 9, 15, 22, 24, 30};
  for (Batch* batch : {&lost, &late}) {
    batch->positions = batch->positions.clone();
    for (size_t i = 0; i + 1 < batch->offsets.size(); ++i)
      batch->positions.slice(0, batch->offsets[i], batch->offsets[i + 1])
          .copy_(at::arange(batch->offsets[i + 1] - batch->offsets[i], at::kLong));
  }
  expect_said(right, under(right, lost, {}), "the last document of each row goes on from the one before");
  expect_said(right, under(right, late, {}), "document 1 begins one token late");
}

TEST(DiagnoseRules, WaysThatCarryNoGradient) {
  const DiagnoseCase right = few_rows("llama-tiny");
  WrongSettings settings;
  settings.lost_path = LostPath::kResidualOfMlp;
  const Tensors wrong = right.wrong(settings);
  expect_said(right, wrong, "no gradient flows through the residual that the MLP is added to");
  EXPECT_LE(diagnose(right, wrong).passes, 12.0);
  const DiagnoseCase adapted = diagnose_case({"llama-tiny", "sft", {}, "lora", "left", 9});
  settings.lost_path = LostPath::kAdapters;
  expect_said(adapted, adapted.wrong(settings), "no gradient flows through the adapters to what they read");
}

TEST(DiagnoseRules, KeysAndValuesThatAreAMultiple) {
  const DiagnoseCase right = few_rows("llama-tiny");
  Tensors wrong = right.truth;
  for (auto& [name, gradient] : wrong) {
    const bool halved = name.find("layers.1.self_attn.k_proj") != std::string::npos ||
                        name.find("layers.1.self_attn.v_proj") != std::string::npos;
    if (halved) gradient = gradient * 0.5;
    const bool below = name.find("layers.0.") != std::string::npos || name.find("embed") != std::string::npos;
    if (below || name == "model.layers.1.input_layernorm.weight")
      gradient = gradient + at::randn_like(gradient);
  }
  expect_said(right, wrong, "(0.5 times what it should be, but for norms)");
}

TEST(DiagnoseRules, QuantisedWeights) {
  const DiagnoseCase right = few_rows("llama-tiny");
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    if (value.dim() < 2 || name.find(".layers.") == std::string::npos) return value;
    const at::Tensor scale = value.abs().amax(1, true) / 127.0;
    return (value / scale).round() * scale;
  });
  expect_said(right, evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients,
              "rounded to int8, each row with a scale of its own");
}

TEST(DiagnoseRules, APaddedVocabulary) {
  const DiagnoseCase right = few_rows("llama-tiny");
  Config config = right.owned.model.config();
  const int64_t own = config.vocab_size;
  config.vocab_size = own + 27;
  Model wider = model_of(config, [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    const bool of_tokens = value.dim() == 2 && value.size(0) == own &&
                           (name == "lm_head.weight" || name == "model.embed_tokens.weight");
    return of_tokens ? at::cat({value, at::zeros({27, value.size(1)}, value.options())}) : value;
  });
  Tensors wrong = evaluate(wider, right.owned.batch, *right.owned.objective, {}).gradients;
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"})
    wrong[name] = wrong[name].slice(0, 0, own);
  expect_said(right, wrong, "27 more entries, whose logit is 0");
}

TEST(DiagnoseRules, ExpertsWithAShareAndWithOthersWeights) {
  const DiagnoseCase right = eight_rows("qwen3-moe-tiny", {{"router_aux_loss_coef", "0"}}, {9, 5, 7});
  WrongSettings settings;
  settings.experts = WrongExperts::kCapacity;
  settings.expert_capacity = 1000;  // nothing is dropped
  for (const auto& [name, gradient] : right.wrong(settings))
    EXPECT_LE(relative_error(gradient, right.truth.at(name)), 1e-11) << name;
  settings.experts = WrongExperts::kReversedWeights;
  expect_said(right, right.wrong(settings), "a token's experts have each other's weights");
}

TEST(DiagnoseRules, AnExpertThatIsLost) {
  const DiagnoseCase right = eight_rows("qwen3-moe-tiny", {{"router_aux_loss_coef", "0"}}, {9, 5, 7});
  const std::string lost = ".experts.1.";
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    return name.find(lost) != std::string::npos ? at::zeros_like(value) : value;
  });
  Tensors wrong = evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
  for (auto& [name, gradient] : wrong) {
    if (name.find(lost) != std::string::npos) gradient = at::zeros_like(gradient);
  }
  expect_said(right, wrong, "what expert 1 gives is lost");
}

TEST(DiagnoseRules, AFocalLoss) {
  const DiagnoseCase right = few_rows("qwen3-tiny");
  const Batch& batch = right.owned.batch;
  const at::Tensor p = evaluate(right.owned.model, batch).log_probabilities.exp();
  // (1 - p)^2 (-log p) has minus this slope by log p.
  const at::Tensor slope = (1.0 - p) * ((1.0 - p) - p * p.log() * 2.0);
  Tensors focal = times(right.truth, 0.0);
  for (const at::Tensor& token : batch.targets.ne(kNoTarget).nonzero().unbind(0)) {
    Batch alone = batch;
    alone.targets = at::full_like(batch.targets, kNoTarget);
    alone.targets.index_copy_(0, token, batch.targets.index_select(0, token));
    focal = weighted(focal, slope[token.item<int64_t>()].item<double>(), under(right, alone, {}));
  }
  expect_said(right, focal, "each token's is multiplied by (1 - p)^2");
}

TEST(DiagnoseRules, RowsThatAreClippedAndColumnsThatAreLost) {
  const DiagnoseCase right = few_rows("qwen3-tiny");
  const Batch& batch = right.owned.batch;
  Tensors clipped = times(right.truth, 0.0);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    Batch alone = batch;
    alone.targets = at::full_like(batch.targets, kNoTarget);
    alone.targets.slice(0, batch.offsets[i], batch.offsets[i + 1])
        .copy_(batch.targets.slice(0, batch.offsets[i], batch.offsets[i + 1]));
    const Tensors own = under(right, alone, {});
    clipped = weighted(clipped, 0.1 / norm_of_all(own), own);
  }
  expect_said(right, clipped, "each row's gradient is clipped by itself");
  Batch lost = batch;
  lost.targets = batch.targets.clone();
  for (const int64_t first : {0, 9, 14}) lost.targets[first + 3] = kNoTarget;
  expect_said(right, under(right, lost, {}), "the tokens of column 3 are not scored");
}

TEST(DiagnoseRules, OldLogProbabilitiesOfTheTokenBefore) {
  const OptionMap own{{"beta", "0.2"}};
  const DiagnoseCase right = diagnose_case({"glm4-tiny", "grpo", own, "full", "left", 11});
  Batch batch = right.owned.batch;
  at::Tensor& old = batch.token_inputs.at(inputs::kOldLogProbabilities);
  const at::Tensor given = old;
  old = at::zeros_like(given);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i], end = batch.offsets[i + 1];
    old.slice(0, begin + 1, end).copy_(given.slice(0, begin, end - 1));
  }
  expect_said(right, under(right, batch, own), "the old log-probabilities are shifted by one token");
}

}  // namespace
}  // namespace streambp::verify
