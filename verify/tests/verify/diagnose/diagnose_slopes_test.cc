// Backward passes that are another op's where the forward pass is right, and losses of public reports: inputs
// left out or broadcast, options ignored together, micro-batches that fade, a term that is all there is.
#include <fmt/format.h>

#include "streambp/objective/terms.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

DiagnoseCase three_rows(const std::string& model, const OptionMap& options = {}) {
  return eight_rows(model, options, {9, 5, 7});
}

const at::Tensor& of_last_layer(const DiagnoseCase& right, const Tensors& gradients, const char* name) {
  return gradients.at(
      fmt::format("model.layers.{}.{}", right.owned.model.config().num_hidden_layers - 1, name));
}

TEST(DiagnoseSlopes, NoMistakeIsTheTruth) {
  const DiagnoseCase right = three_rows("llama-tiny");
  for (const SlopeAlone of : {SlopeAlone::kAll, SlopeAlone::kQueries, SlopeAlone::kKeysAndValues}) {
    WrongSettings settings;
    settings.slope_alone = of;
    for (const auto& [name, gradient] : right.wrong(settings))
      EXPECT_LE(relative_error(gradient, right.truth.at(name)), 1e-11) << name;
  }
}

TEST(DiagnoseSlopes, ConstantSharesOfSinksLeaveTheirOwnGradientRight) {
  const DiagnoseCase right = three_rows("gpt-oss-tiny");
  WrongSettings settings;
  settings.sinks_share_constant = true;
  const Tensors wrong = right.wrong(settings);
  for (const char* name : {"self_attn.sinks", "self_attn.v_proj.weight", "self_attn.o_proj.weight"})
    EXPECT_LE(relative_error(of_last_layer(right, wrong, name), of_last_layer(right, right.truth, name)),
              1e-11)
        << name;
  EXPECT_GE(relative_error(of_last_layer(right, wrong, "self_attn.q_proj.weight"),
                           of_last_layer(right, right.truth, "self_attn.q_proj.weight")),
            1e-3);
}

TEST(DiagnoseSlopes, HalvesAndWaysAddUp) {
  const DiagnoseCase right = three_rows("llama-tiny");
  WrongSettings first, second, twice, lost;
  first.slope = second.slope = WrongSlope::kMlpShard;
  second.second_shard = true;
  twice.residual.how = WrongResidual::How::kTwice;
  twice.residual.before_attention = false;
  lost.lost_path = LostPath::kResidualOfMlp;
  const auto expect_sum = [&](const WrongSettings& a, const WrongSettings& b, double of_truth,
                              const char* name) {
    const at::Tensor sum =
        of_last_layer(right, right.wrong(a), name) + of_last_layer(right, right.wrong(b), name);
    EXPECT_LE(relative_error(sum, of_last_layer(right, right.truth, name) * of_truth), 1e-11) << name;
  };
  expect_sum(first, second, 1.0, "post_attention_layernorm.weight");
  expect_sum(twice, lost, 2.0, "self_attn.o_proj.weight");
}

TEST(DiagnoseSlopes, SumsOverAGroup) {
  const DiagnoseCase right = three_rows("llama-tiny");
  const Config& config = right.owned.model.config();
  const auto group = static_cast<double>(config.num_attention_heads / config.num_key_value_heads);
  ASSERT_GT(group, 1.0);
  WrongSettings mean, first;
  mean.key_sum = GroupSum::kMean;
  first.value_sum = GroupSum::kFirst;
  EXPECT_LE(relative_error(of_last_layer(right, right.wrong(mean), "self_attn.k_proj.weight") * group,
                           of_last_layer(right, right.truth, "self_attn.k_proj.weight")),
            1e-11);
  expect_said(right, right.wrong(first),
              "values have gradients from the first query head of their group alone");
}

TEST(DiagnoseSlopes, AreNamed) {
  const DiagnoseCase windows = three_rows("mistral-tiny");
  WrongSettings settings;
  settings.slope_alone = SlopeAlone::kAll;
  settings.ignores_windows = true;
  expect_said(windows, windows.wrong(settings),
              "the backward pass of attention does not know of sliding windows");
  const DiagnoseCase plain = three_rows("llama-tiny");
  WrongSettings norms, residual;
  norms.slope = WrongSlope::kNormConstant;
  residual.residual.how = WrongResidual::How::kThroughNorm;
  expect_said(plain, plain.wrong(norms), "norms takes the mean square for a constant");
  expect_said(plain, plain.wrong(residual), "goes through the slope of the norm behind it as well");
  const DiagnoseCase experts = three_rows("qwen3-moe-tiny", {{"router_aux_loss_coef", "0"}});
  WrongSettings router;
  router.slope = WrongSlope::kRouterNone;
  expect_said(experts, experts.wrong(router), "no gradient reaches the routers");
}

TEST(DiagnoseSlopes, NormsOfHalfTheHeads) {
  const DiagnoseCase right = three_rows("qwen3-tiny");
  WrongSettings settings;
  settings.own_share = OwnShare::kFirstHeads;
  const Tensors half = right.wrong(settings);
  Tensors wrong = right.truth;
  for (auto& [name, gradient] : wrong) {
    const bool of_heads =
        name.find("q_norm") != std::string::npos || name.find("k_norm") != std::string::npos;
    if (of_heads)
      gradient = half.at(name);
    else
      EXPECT_LE(relative_error(half.at(name), gradient), 1e-11) << name;
  }
  expect_said(right, wrong, "have the gradient of the first half of the heads alone");
}

TEST(DiagnoseSlopes, MicroBatchesThatFade) {
  const DiagnoseCase right = three_rows("llama-tiny");
  const Batch& batch = right.owned.batch;
  const auto row_alone = [&](size_t row) {
    Batch alone = batch;
    alone.targets = at::full_like(batch.targets, kNoTarget);
    const auto own = [&](at::Tensor& of) { return of.slice(0, batch.offsets[row], batch.offsets[row + 1]); };
    at::Tensor given = batch.targets;
    own(alone.targets).copy_(own(given));
    return times(under(right, alone, {}), alone.targets.ne(kNoTarget).sum().item<double>() /
                                              batch.targets.ne(kNoTarget).sum().item<double>());
  };
  Tensors faded = times(right.truth, 0.0), undivided = right.truth;
  for (size_t row = 0; row < 3; ++row) faded = weighted(times(faded, 0.25), 1.0, row_alone(row));
  expect_said(right, faded, "each counts 4 times as much as the one before it");
  undivided = weighted(undivided, -2.0 / 3.0, row_alone(1));
  expect_said(right, undivided, "row 1, a micro-batch, counts 1/3 of what each other one does");
}

TEST(DiagnoseSlopes, ATermThatIsAllThereIs) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "orpo", {{"beta", "0.3"}}, "full", "left", 11});
  const Tensors without = under(right, right.owned.batch, {{"beta", "0"}});
  expect_said(right, weighted(right.truth, -1.0, without),
              "the chosen completions' cross-entropy (NLL) is missing: the odds-ratio term (beta) is all "
              "that is there");
  expect_said(right, weighted(times(without, 2.0), -1.0, right.truth), "it has the other sign");
}

TEST(DiagnoseSlopes, OptionsThatAreIgnoredTogether) {
  const OptionMap given{{"beta", "0.1"}, {"desirable_weight", "1.3"}, {"undesirable_weight", "0.7"}};
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "kto", given, "full", "left", 11});
  expect_said(right, under(right, right.owned.batch, {{"beta", "0.1"}}),
              "desirable_weight (1.3 is asked for) and undesirable_weight (0.7 is asked for) are ignored");
}

TEST(DiagnoseSlopes, RatiosOfTheSampler) {
  const RowName name{"glm4-tiny", "grpo", {}, "full", "left", 11};
  Batch batch = make_subject(name, 5).batch;
  batch.token_inputs[inputs::kImportanceSamplingRatio] =
      at::linspace(0.6, 1.7, batch.size(), at::TensorOptions(at::kDouble));
  const DiagnoseCase sampled = diagnose_case(name, batch);
  batch.token_inputs.erase(inputs::kImportanceSamplingRatio);
  expect_said(sampled, under(sampled, batch, {}), "importance_sampling_ratio is not applied");
}

}  // namespace
}  // namespace streambp::verify
