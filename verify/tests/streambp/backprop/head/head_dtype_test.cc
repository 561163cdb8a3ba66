// An LM head in float32 of a bfloat16 model: its logits, log-probabilities and gradients have float32's
// precision, whatever the method, and lower precision ends at the rows that enter it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/rms_norm.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"
#include "verify/tests/streambp/backprop/every_method.h"

namespace streambp {

using namespace verify;
namespace {

/// What float32 reaches here; bfloat16's logits are 1e-3 and more off.
constexpr double kFloat32 = 1e-6;

/// Layers that add nothing: the hidden states before the head are the embedding's rows, the same in every
/// method, so that all of an error is the head's.
Model half_model(Config config, const std::optional<LoraConfig>& lora = {}) {
  Model::Placement placement{at::kBFloat16, at::kCPU, at::kBFloat16, {}};
  placement.head_dtype = at::kFloat;
  Model model = Model::random(config, placement, 3);
  for (const auto& parameter : model.parameters()) {
    if (parameter->name.find("o_proj.") != std::string::npos ||
        parameter->name.find("down_proj.") != std::string::npos)
      parameter->value.zero_();
  }
  model.parameter("model.embed_tokens.weight").value.mul_(20.0);
  if (!config.tie_word_embeddings)
    model.parameter("lm_head.weight").value.normal_(0.0, 0.3, at::detail::createCPUGenerator(8));
  if (lora) {
    model.attach_adapters(*lora, 4);
    for (const auto& parameter : model.parameters()) {
      if (parameter->name.find("lora_B") != std::string::npos ||
          parameter->name.find("lora_embedding_A") != std::string::npos)
        parameter->value.normal_(0.0, 0.2, at::detail::createCPUGenerator(9));
    }
  }
  return model;
}

std::vector<Settings> all_methods() {
  Settings asked;
  asked.chunk = 5;
  asked.head_chunk = 4;
  return every_method(asked);
}

/// SFT's loss and the gradients of the head's parameters in float64, from the rows that enter the head.
Evaluation of_the_head(Model& model, const Batch& batch) {
  RmsNormSaved unused;
  const at::Tensor x = rms_norm_forward(model.embed(batch.tokens), model.norm(), unused).to(at::kDouble);
  const Linear& head = model.head();
  std::vector<Parameter*> parameters{head.weight};
  if (head.adapter) parameters = {head.adapter->a, head.adapter->b};
  std::vector<at::Tensor> leaves;
  for (const Parameter* parameter : parameters)
    leaves.push_back(parameter->value.to(at::kDouble).requires_grad_());
  at::Tensor logits = head.adapter ? at::mm(x, head.weight->value.to(at::kDouble).t()) +
                                         at::mm(at::mm(x, leaves[0].t()), leaves[1].t()) * head.adapter->scale
                                   : at::mm(x, leaves[0].t());
  if (const double cap = model.config().final_logit_softcapping; cap > 0.0)
    logits = at::tanh(logits / cap) * cap;
  const at::Tensor scored = batch.targets.ne(kNoTarget);
  const at::Tensor log_p =
      at::log_softmax(logits, -1).gather(1, batch.targets.clamp_min(0).unsqueeze(1)).squeeze(1) * scored;
  const at::Tensor loss = -log_p.sum() / scored.sum();
  loss.backward();
  Evaluation truth{loss.item<double>(), log_p.detach(), {}, {}};
  for (size_t i = 0; i < leaves.size(); ++i) truth.gradients[parameters[i]->name] = leaves[i].grad();
  return truth;
}

/// The worst error of the loss, the log-probabilities and the gradients that the truth has.
double error_of(Evaluation value, const Evaluation& truth) {
  std::erase_if(value.gradients, [&](const auto& of) { return !truth.gradients.contains(of.first); });
  EXPECT_EQ(value.gradients.size(), truth.gradients.size());
  for (auto& [name, gradient] : value.gradients) {
    EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
    gradient = gradient.to(at::kDouble);
  }
  return measure(value, truth).worst();
}

TEST(HeadDtype, OfFloat32GivesItsPrecision) {
  LoraConfig lora;
  lora.r = 3;
  lora.lora_alpha = 6.0;
  lora.target_modules = {"q_proj", "lm_head"};
  Config capped = preset("qwen3-tiny");
  capped.final_logit_softcapping = 3.0;
  double worst = 0.0;
  for (const auto& [name, config, adapters] :
       {std::tuple("plain", preset("qwen3-tiny"), std::optional<LoraConfig>()),
        std::tuple("capped", capped, std::optional<LoraConfig>()),
        std::tuple("adapted", preset("qwen3-tiny"), std::optional(lora))}) {
    Model model = half_model(config, adapters);
    const Batch batch = equality_batch("masked", 19, config.vocab_size, 5);
    const Evaluation truth = of_the_head(model, batch);
    const auto objective = make_objective("sft", batch);
    for (const Settings& settings : all_methods()) {
      const double error = error_of(evaluate(model, batch, *objective, settings), truth);
      EXPECT_TRUE(error <= kFloat32) << name << ", " << method_name(settings.method) << ": " << error;
      worst = worse(worst, error);
    }
  }
  fmt::print("worst error {:.1e}\n", worst);
}

TEST(HeadDtype, OfATeacherIsItsOwn) {
  Model model = half_model(preset("qwen3-tiny"));
  const Batch batch = equality_batch("masked", 19, model.config().vocab_size, 5);
  const auto objective = make_objective("distill", batch);
  Settings standard;
  standard.method = Method::kStandard;
  const auto of_head = [](const Evaluation& all) {
    return Tensors{{"lm_head.weight", all.gradients.at("lm_head.weight").to(at::kDouble)}};
  };
  Model::Placement half{at::kBFloat16, at::kCPU, at::kBFloat16, [](const std::string&) { return false; }};
  for (const bool wide : {false, true}) {
    if (wide) half.head_dtype = at::kFloat;
    Model teacher = Model::random(preset("qwen3-tiny"), half, 7);
    const Evaluation whole = evaluate(model, batch, *objective, standard, &teacher);
    for (const Settings& settings : all_methods()) {
      const Evaluation streamed = evaluate(model, batch, *objective, settings, &teacher);
      const double error =
          measure({streamed.loss, {}, {}, of_head(streamed)}, {whole.loss, {}, {}, of_head(whole)}).worst();
      EXPECT_TRUE(error <= kFloat32) << method_name(settings.method) << ": " << error;
    }
  }
}

/// TRL's cast makes the embedding float32 that is the head as well, and rounds what it looks up.
TEST(HeadDtype, OfATiedHeadIsTheEmbeddings) {
  Config scaled = preset("llama-tied-tiny");
  scaled.embedding_scale = 3.3;
  scaled.rounds_embedding_scale = true;
  LoraConfig lora;
  lora.r = 3;
  lora.target_modules = {"q_proj", "embed_tokens"};
  for (const auto& [name, config, adapters] :
       {std::tuple("plain", preset("llama-tied-tiny"), std::optional<LoraConfig>()),
        std::tuple("scaled", scaled, std::optional<LoraConfig>()),
        std::tuple("adapted", preset("llama-tied-tiny"), std::optional(lora))}) {
    Model model = half_model(config, adapters);
    EXPECT_EQ(model.parameter("model.embed_tokens.weight").value.scalar_type(), at::kFloat);
    Model wide = Model::random(config, {at::kDouble, at::kCPU, at::kDouble, {}}, 0);
    if (adapters) wide.attach_adapters(*adapters, 0);
    for (const auto& parameter : model.parameters())
      wide.parameter(parameter->name).value.copy_(parameter->value);
    const Batch batch = equality_batch("masked", 19, config.vocab_size, 5);
    EXPECT_EQ(model.embed(batch.tokens).scalar_type(), at::kBFloat16);
    const auto objective = make_objective("sft", batch);
    const Evaluation head = of_the_head(model, batch);
    Settings standard;
    standard.method = Method::kStandard;
    const Evaluation truth = evaluate(wide, batch, *objective, standard);
    for (const Settings& settings : all_methods()) {
      Evaluation value = evaluate(model, batch, *objective, settings);
      const std::string where = fmt::format("{}, {}", name, method_name(settings.method));
      const double of_head =
          measure({value.loss, value.log_probabilities, {}, {}}, {head.loss, head.log_probabilities, {}, {}})
              .worst();
      EXPECT_TRUE(of_head <= kFloat32) << where << ": " << of_head;
      for (auto& [parameter, gradient] : value.gradients) gradient = gradient.to(at::kDouble);
      const EvaluationErrors errors = measure(value, truth);
      for (const ParameterError& of : errors.gradients) {
        if (of.name.find("embed_tokens") == std::string::npos) continue;
        EXPECT_TRUE(of.error <= 0x1p-6) << where << ", " << of.name << ": " << of.error;
      }
    }
  }
}

TEST(HeadDtype, IsThatOfItsParametersAlone) {
  const Model model = half_model(preset("qwen3-tiny"));
  EXPECT_EQ(model.dtype(), at::kBFloat16);
  EXPECT_EQ(model.head_dtype(), at::kFloat);
  for (const auto& parameter : model.parameters()) {
    const at::ScalarType expected = parameter->name == "lm_head.weight" ? at::kFloat : at::kBFloat16;
    EXPECT_EQ(parameter->value.scalar_type(), expected) << parameter->name;
    EXPECT_EQ(parameter->gradient.scalar_type(), expected) << parameter->name;
  }
}

TEST(HeadDtype, LeavesTheModelAsItIs) {
  for (const char* name : {"qwen3-tiny", "llama-tied-tiny", "deepseek-v3-tiny"}) {
    Model::Placement placement{at::kBFloat16, at::kCPU, at::kBFloat16, {}};
    const Model narrow = Model::random(preset(name), placement, 3);
    placement.head_dtype = at::kFloat;
    const Model wide = Model::random(preset(name), placement, 3);
    for (const auto& parameter : narrow.parameters())
      EXPECT_TRUE(
          at::equal(wide.parameter(parameter->name).value.to(at::kDouble), parameter->value.to(at::kDouble)))
          << name << " " << parameter->name;
  }
}

TEST(HeadDtype, IsRefusedWithoutAHead) {
  Model::Placement placement{at::kBFloat16, at::kCPU, at::kBFloat16, {}};
  placement.head_dtype = at::kFloat;
  Config critic = preset("qwen3-tiny");
  critic.value_model = true;
  try {
    Model::random(critic, placement, 1);
    ADD_FAILURE() << "made a critic";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("a score instead"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace streambp
