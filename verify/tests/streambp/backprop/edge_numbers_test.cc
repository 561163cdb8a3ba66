// Numbers at the edge: every method is as exact there as standard back-propagation, and nothing turns into
// NaN.
#include <cmath>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>
#include <utility>

#include "streambp/backprop/method.h"
#include "streambp/objective/terms.h"
#include "verify/error_measure.h"

namespace streambp {
namespace {

using verify::Tensors;

constexpr double kEdgeLimit = 1e-12;

Model model_of(const Config& config, at::ScalarType dtype = at::kDouble) {
  return Model::random(config, {dtype, at::kCPU, dtype, {}}, 1);
}

struct Pass {
  double loss = 0.0;
  Tensors gradients;
};

Pass run(Model& model, const Batch& batch, const Objective& objective, Method method, int64_t chunk = 0) {
  Settings settings;
  settings.method = method;
  settings.chunk = is_chunked(method) ? chunk : 0;
  model.zero_gradients();
  Pass pass;
  pass.loss = backpropagate(model, batch, objective, settings).loss;
  for (const auto& [name, gradient] : model.gradients()) pass.gradients[name] = gradient.clone();
  return pass;
}

/// The worst error relative to a gradient's norm, or where that is below `smallest` to `smallest`: rounding
/// alone.
double difference(const Tensors& got, const Tensors& expected, double smallest = 0.0) {
  if (got.size() != expected.size()) return std::nan("");
  double worst = 0.0;
  for (const auto& [name, gradient] : expected) {
    const double norm = verify::norm_of(gradient);
    const double error = verify::relative_error(got.at(name), gradient);
    worst = verify::worse(worst, norm < smallest ? error * norm / smallest : error);
  }
  return worst;
}

/// Every method against standard back-propagation, whose loss and gradients are returned: all finite.
Pass expect_all_methods_agree(Model& model, const Batch& batch, const std::string& objective_name = "sft",
                              const std::map<std::string, std::string>& options = {}, double smallest = 0.0) {
  const auto objective = make_objective(objective_name, batch, options);
  const Pass standard = run(model, batch, *objective, Method::kStandard);
  EXPECT_TRUE(std::isfinite(standard.loss)) << standard.loss;
  double worst = 0.0;
  for (const auto& [name, gradient] : standard.gradients)
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
  for (const Method method :
       {Method::kCheckpoint, Method::kLogitsOnly, Method::kTiled, Method::kStreambp, Method::kChunkMajor}) {
    for (const int64_t chunk : {1, 3, 64}) {
      const Pass pass = run(model, batch, *objective, method, chunk);
      const double of_loss = std::abs(pass.loss - standard.loss) / std::max(1.0, std::abs(standard.loss));
      const double error = difference(pass.gradients, standard.gradients, smallest);
      worst = verify::worse(worst, verify::worse(error, of_loss));
      EXPECT_TRUE(of_loss <= kEdgeLimit) << method_name(method) << " chunk " << chunk << ": loss " << of_loss;
      EXPECT_TRUE(error <= kEdgeLimit) << method_name(method) << " chunk " << chunk << ": " << error;
      if (!is_chunked(method)) break;
    }
  }
  std::printf("loss %.6g, worst %.1e, limit %.0e\n", standard.loss, worst, kEdgeLimit);
  return standard;
}

Batch texts(const Config& config) {
  return random_batch({9, 1, 5, 12}, config.vocab_size, 3);
}

/// The head's rows are moved by the same vector: every token's logits by a number of their own, and no
/// probability at all.
void add_common_offset(Model& model, double size) {
  at::Tensor& head = model.parameter("lm_head.weight").value;
  head.add_(at::full({1, head.size(1)}, size, head.options()));
}

double largest_logit(Model& model, const Batch& batch) {
  const at::Tensor& head = model.parameter("lm_head.weight").value;
  const at::Tensor hidden = at::ones({batch.size(), head.size(1)}, head.options());
  return at::mm(hidden, head.t()).abs().max().item<double>();
}

TEST(EdgeNumbers, ACommonOffsetOfTheLogitsChangesNothing) {
  const Config config = preset("qwen3-tiny");
  const Batch batch = texts(config);
  Model plain = model_of(config), moved = model_of(config);
  add_common_offset(moved, 1e4);
  ASSERT_GE(largest_logit(moved, batch), 1e4);
  const Pass expected = expect_all_methods_agree(plain, batch);
  const auto objective = make_objective("sft", batch, {});
  // Logits of 1e5 have spacings of 1e-11 in float64.
  for (const Method method : {Method::kStandard, Method::kStreambp}) {
    const Pass pass = run(moved, batch, *objective, method, 4);
    EXPECT_TRUE(std::abs(pass.loss - expected.loss) <= 1e-8) << pass.loss << " and " << expected.loss;
    const double error =
        verify::relative_error(pass.gradients.at("lm_head.weight"), expected.gradients.at("lm_head.weight"));
    EXPECT_TRUE(error <= 1e-8) << error;
  }
}

TEST(EdgeNumbers, ACommonOffsetInFloat32StaysWithinTheLogitsSpacing) {
  const Config config = preset("qwen3-tiny");
  const Batch batch = texts(config);
  Model truth = model_of(config);
  Model moved = model_of(config, at::kFloat);
  add_common_offset(moved, 1e3);
  const auto objective = make_objective("sft", batch, {});
  const double expected = run(truth, batch, *objective, Method::kStandard).loss;
  for (const Method method : {Method::kStandard, Method::kStreambp}) {
    const Pass pass = run(moved, batch, *objective, method, 4);
    EXPECT_TRUE(std::abs(pass.loss - expected) <= 0.05) << pass.loss << " and " << expected;
    for (const auto& [name, gradient] : pass.gradients)
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
  }
}

TEST(EdgeNumbers, EqualLogitsCostTheLogarithmOfTheVocabulary) {
  const Config config = preset("qwen3-tiny");
  Model model = model_of(config);
  model.parameter("lm_head.weight").value.zero_();
  const Pass pass = expect_all_methods_agree(model, texts(config));
  EXPECT_NEAR(pass.loss, std::log(static_cast<double>(config.vocab_size)), 1e-14);
}

TEST(EdgeNumbers, AVocabularyOfOneTokenLeavesNothingToLearn) {
  Config config = preset("qwen3-tiny");
  config.vocab_size = 1;
  Model model = model_of(config);
  const Pass pass = expect_all_methods_agree(model, texts(config));
  EXPECT_EQ(pass.loss, 0.0);
  for (const auto& [name, gradient] : pass.gradients)
    EXPECT_TRUE(gradient.abs().max().item<double>() <= 1e-15) << name;
}

TEST(EdgeNumbers, OneTokenHasNothingToScore) {
  for (const char* const name : {"qwen3-tiny", "qwen3.5-tiny", "deepseek-v3-tiny", "gpt-oss-tiny"}) {
    SCOPED_TRACE(name);
    const Config config = preset(name);
    Model model = model_of(config);
    const Pass pass = expect_all_methods_agree(model, random_batch({1}, config.vocab_size, 3));
    if (config.mixture.num_experts > 0 && config.mixture.output_router_logits) {
      EXPECT_GT(pass.loss, 0.0) << "the routers' loss counts tokens, scored or not";
      continue;
    }
    EXPECT_EQ(pass.loss, 0.0);
    for (const auto& [parameter, gradient] : pass.gradients)
      EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0) << parameter;
  }
}

/// A window of one token: every token sees itself alone, as if it were a text of its own.
TEST(EdgeNumbers, AWindowOfOneTokenMakesEachATextOfItsOwn) {
  Config config = preset("gemma3-tiny");
  config.windows.assign(config.windows.size(), 1);
  Model model = model_of(config);
  const Batch batch = random_batch({9, 5, 12}, config.vocab_size, 3);
  // Those of queries and keys are rounding alone: one key has all the weight.
  const double smallest = 1e-3;
  const Pass pass = expect_all_methods_agree(model, batch, "sft", {}, smallest);
  Batch alone = batch;  // the same positions and targets
  alone.offsets.clear();
  for (int64_t i = 0; i <= batch.size(); ++i) alone.offsets.push_back(i);
  const auto objective = make_objective("sft", alone, {});
  const Pass apart = run(model, alone, *objective, Method::kStreambp, 4);
  EXPECT_TRUE(std::abs(apart.loss - pass.loss) <= kEdgeLimit) << apart.loss << " and " << pass.loss;
  const double error = difference(apart.gradients, pass.gradients, smallest);
  EXPECT_TRUE(error <= kEdgeLimit) << error;
}

TEST(EdgeNumbers, ExpertsThatAreNearlyTiedAreChosenOnce) {
  for (const char* const name : {"qwen3-moe-tiny", "gpt-oss-tiny"}) {
    for (const double spread : {0.0, 1e-16, 1e-13}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, spread));
      const Config config = preset(name);
      Model model = model_of(config);
      for (const auto& parameter : model.parameters()) {
        const bool routes = parameter->name.ends_with(".mlp.gate.weight") ||
                            parameter->name.find(".router.") != std::string::npos;
        if (routes) parameter->value.mul_(spread);
      }
      expect_all_methods_agree(model, texts(config));
    }
  }
}

/// Four completions, of which `name` says something as large as `size`, alternating in sign.
Batch with_input(const Config& config, const char* name, double size) {
  Batch batch = random_batch({6, 4, 8, 5}, config.vocab_size, 3);
  const at::Tensor signs = at::arange(batch.size(), at::kDouble).remainder(2).mul(2).sub(1);
  batch.token_inputs[inputs::kAdvantages] = at::where(batch.targets.ne(kNoTarget), signs, 0.0);
  batch.token_inputs[name] = at::where(batch.targets.ne(kNoTarget), signs.roll(1, 0) * size - 4.0, 0.0);
  return batch;
}

TEST(EdgeNumbers, LogRatiosOfTenThousandStayFinite) {
  const Config config = preset("qwen3-tiny");
  for (const double size : {1e2, 1e4}) {
    for (const char* const type : {"grpo", "cispo", "dapo", "bnpo"}) {
      SCOPED_TRACE(fmt::format("{} {}", type, size));
      Model model = model_of(config);
      expect_all_methods_agree(model, with_input(config, inputs::kOldLogProbabilities, size), "grpo",
                               {{"loss_type", type}});
    }
  }
}

TEST(EdgeNumbers, PairsTenThousandApartStayFinite) {
  const Config config = preset("qwen3-tiny");
  for (const char* const type : {"sigmoid", "hinge", "ipo", "nca_pair", "apo_zero", "sppo_hard"}) {
    for (const double size : {-1e4, 1e4}) {
      SCOPED_TRACE(fmt::format("{} {}", type, size));
      Model model = model_of(config);
      Batch batch = random_batch({6, 4, 8, 5}, config.vocab_size, 3);
      batch.sequence_inputs[inputs::kReferenceSums] = at::tensor({size, -20.0, 0.0, -size}, at::kDouble);
      expect_all_methods_agree(model, batch, "dpo", {{"loss_type", type}});
    }
  }
}

}  // namespace
}  // namespace streambp
