// A pass put together from its pieces, over tensors that were lent: layers and head as nodes of somebody
// else's autograd.
#include "streambp/backprop/pieces.h"

#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "verify/equality/subject.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

constexpr int64_t kLength = 13;

/// What `body` throws.
template <typename Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

/// A skeleton over the tensors of `owner`, with gradients of its own.
struct Lent {
  Lent(const EqualitySubject& subject)
      : model(Model::skeleton(subject.model.config(), at::kDouble, at::kCPU)) {
    if (subject.lora) model.attach_adapters(*subject.lora, /*seed=*/0);
    model.give_back();
    for (const auto& parameter : subject.model.parameters()) {
      values[parameter->name] = parameter->value;
      if (parameter->trainable()) gradients[parameter->name] = at::zeros_like(parameter->value);
    }
    model.lend(values, gradients);
  }

  Model model;
  std::map<std::string, at::Tensor> values, gradients;
};

struct PiecesCase {
  std::string model;
  std::string tuning;
  std::string batch;
  std::string objective;
};

std::ostream& operator<<(std::ostream& out, const PiecesCase& of) {
  return out << of.model << ", " << of.tuning << ", " << of.batch << ", " << of.objective;
}

std::string name_of(const testing::TestParamInfo<PiecesCase>& info) {
  const PiecesCase& of = info.param;
  std::string name = of.model + "_" + of.tuning + "_" + of.batch + "_" + of.objective;
  std::replace(name.begin(), name.end(), '-', '_');
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

class Pieces : public testing::TestWithParam<PiecesCase> {};

TEST_P(Pieces, GiveTheGradientsOfTheWholePass) {
  const PiecesCase& of = GetParam();
  // The balance of experts is a loss of all layers: pieces refuse it.
  std::map<std::string, std::string> options;
  if (preset(of.model).mixture.output_router_logits) options["router_aux_loss_coef"] = "0";
  EqualitySubject subject = make_subject({of.model, of.objective, options, of.tuning, of.batch, kLength}, 7);
  Settings standard;
  standard.method = Method::kStandard;
  const Evaluation expected = evaluate(subject.model, subject.batch, *subject.objective, standard);
  for (const int64_t chunk : {1, 4, 12, 13, 14, 0}) {
    Lent lent(subject);
    Model& model = lent.model;
    const at::NoGradGuard no_grad;
    const Stream stream = prepare_pieces(model, subject.batch);
    const auto layers = static_cast<int64_t>(model.layers().size());
    std::vector<at::Tensor> inputs{model.embed(stream.batch.tokens)};
    for (int64_t i = 0; i < layers; ++i)
      inputs.push_back(layer_forward(model, stream, i, inputs.back(), chunk));
    const HeadPiece alone =
        head_piece(model, subject.batch, *subject.objective, inputs.back(), chunk, /*goes_back=*/false);
    const HeadPiece head =
        head_piece(model, subject.batch, *subject.objective, inputs.back(), chunk, /*goes_back=*/true);
    EXPECT_FALSE(alone.gradient.defined());
    EXPECT_LE(relative_error(alone.loss, head.loss), 1e-13);
    at::Tensor gradient = head.gradient;
    for (int64_t i = layers - 1; i >= 0; --i) {
      const at::Tensor dy = gradient;
      const at::Tensor before = dy.clone();
      gradient = layer_backward(model, stream, i, inputs[static_cast<size_t>(i)], dy, chunk);
      EXPECT_TRUE(dy.equal(before)) << "the caller's gradient was written to";
    }
    if (model.lowest_trainable_layer() < 0) model.accumulate_embedding(stream.batch.tokens, gradient);
    const Evaluation found{head.loss, head.log_probabilities, {}, lent.gradients};
    const EvaluationErrors errors = measure(found, expected);
    EXPECT_TRUE(errors.worst() <= 1e-12)
        << "chunk " << chunk << ": " << error_text(errors.worst()) << " in " << errors.worst_parameter();
    const EvaluationErrors to_reference = measure(found, subject.reference);
    EXPECT_TRUE(to_reference.worst() <= 1e-10)
        << "chunk " << chunk << ": " << error_text(to_reference.worst());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Pieces,
                         testing::Values(PiecesCase{"qwen3-tiny", "full", "three", "sft"},
                                         PiecesCase{"qwen3-tiny", "lora", "left", "sft"},
                                         PiecesCase{"phi3-tiny", "lora", "none", "sft"},
                                         PiecesCase{"gemma3-tiny", "full", "packed", "sft"},
                                         PiecesCase{"qwen3-moe-plain-tiny", "full", "masked", "sft"},
                                         PiecesCase{"gpt-oss-tiny", "lora", "none", "sft"},
                                         PiecesCase{"qwen3.5-tiny", "full", "packed", "sft"},
                                         PiecesCase{"falcon-h1-tiny", "full", "left", "sft"},
                                         PiecesCase{"kimi-linear-tiny", "full", "left", "sft"},
                                         PiecesCase{"hy-v4-tiny", "full", "packed", "sft"},
                                         PiecesCase{"glm5-next-tiny", "full", "packed", "sft"},
                                         PiecesCase{"qwen4-exp-tiny", "full", "packed", "sft"},
                                         PiecesCase{"lfm3-tiny", "full", "left", "sft"},
                                         PiecesCase{"muse-spark-tiny", "full", "packed", "sft"},
                                         PiecesCase{"step3p7-tiny", "full", "left", "sft"},
                                         PiecesCase{"ernie4-5-moe-tiny", "full", "three", "sft"},
                                         PiecesCase{"llama-tiny", "full", "right", "dpo"}),
                         name_of);

TEST(Pieces, RoutersHaveAGradientOfALossThatIsSomebodyElses) {
  const std::string coefficient = "0.7";
  for (const char* tuning : {"full", "lora"}) {
    EqualitySubject subject = make_subject(
        {"qwen3-moe-tiny", "sft", {{"router_aux_loss_coef", coefficient}}, tuning, "left", kLength}, 7);
    Settings settings;
    settings.chunk = 4;
    const Evaluation expected = evaluate(subject.model, subject.batch, *subject.objective, settings);
    const auto plain = make_objective("sft", subject.batch, {{"router_aux_loss_coef", "0"}});
    const MixtureSettings mixture = subject.model.config().mixture;
    Lent lent(subject);
    const at::NoGradGuard no_grad;
    const Stream stream = prepare_pieces(lent.model, subject.batch);
    const auto layers = static_cast<int64_t>(lent.model.layers().size());
    std::vector<at::Tensor> inputs{lent.model.embed(stream.batch.tokens)}, logits(layers);
    for (int64_t i = 0; i < layers; ++i)
      inputs.push_back(layer_forward(lent.model, stream, i, inputs.back(), 4, &logits[i]));
    // transformers' load_balancing_loss_func
    at::Tensor chosen = at::zeros({mixture.num_experts}, at::kDouble), sums = at::zeros_like(chosen);
    double loss = 0.0, rows = 0.0;
    {
      const at::AutoGradMode with_grad(true);
      for (at::Tensor& of_layer : logits) {
        if (of_layer.numel() == 0) continue;
        const at::Tensor probabilities = at::softmax(of_layer.requires_grad_(), -1);
        const at::Tensor best = std::get<1>(probabilities.topk(mixture.num_experts_per_tok, -1));
        chosen = chosen + at::one_hot(best, mixture.num_experts).sum(at::IntArrayRef{0, 1}).to(at::kDouble);
        sums = sums + probabilities.sum(0);
        rows += static_cast<double>(of_layer.size(0));
      }
      const at::Tensor balance =
          (chosen * sums).sum() *
          (std::stod(coefficient) * static_cast<double>(mixture.num_experts) / (rows * rows));
      balance.backward();
      loss = balance.item<double>();
    }
    const HeadPiece head =
        head_piece(lent.model, subject.batch, *plain, inputs.back(), 4, /*goes_back=*/true);
    at::Tensor gradient = head.gradient;
    for (int64_t i = layers - 1; i >= 0; --i)
      gradient = layer_backward(lent.model, stream, i, inputs[static_cast<size_t>(i)], gradient, 5,
                                logits[i].grad());
    if (lent.model.lowest_trainable_layer() < 0)
      lent.model.accumulate_embedding(stream.batch.tokens, gradient);
    const Evaluation found{head.loss + loss, head.log_probabilities, {}, lent.gradients};
    const EvaluationErrors errors = measure(found, expected);
    EXPECT_TRUE(errors.worst() <= 1e-12)
        << tuning << ": " << error_text(errors.worst()) << " in " << errors.worst_parameter();
  }
}

TEST(Pieces, AWeightedSumOfLogProbabilitiesGoesBackAsItsWeights) {
  EqualitySubject subject = make_subject({"qwen3-tiny", "sft", {}, "full", "masked", kLength}, 7);
  Settings settings;
  settings.chunk = 4;
  const Evaluation expected = evaluate(subject.model, subject.batch, *subject.objective, settings);
  const double scored = subject.batch.targets.ne(kNoTarget).sum().item<double>();
  Lent lent(subject);
  const at::NoGradGuard no_grad;
  const Stream stream = prepare_pieces(lent.model, subject.batch);
  at::Tensor hidden = lent.model.embed(stream.batch.tokens);
  for (size_t i = 0; i < lent.model.layers().size(); ++i)
    hidden = layer_forward(lent.model, stream, static_cast<int64_t>(i), hidden, 4);
  const at::Tensor weights = at::full({subject.batch.size()}, -1.0 / scored, at::kDouble);
  const auto sum = weighted_log_probabilities(subject.batch, weights, 1.0);
  const HeadPiece piece = head_piece(lent.model, subject.batch, *sum, hidden, 3, /*goes_back=*/true);
  EXPECT_LE(relative_error(piece.loss, expected.loss), 1e-13);
  for (const char* name : {"model.norm.weight", "lm_head.weight"}) {
    const double error = relative_error(lent.gradients.at(name), expected.gradients.at(name));
    EXPECT_TRUE(error <= 1e-12) << name << ": " << error_text(error);
  }
}

TEST(Pieces, RefuseWhatTheLastLayersTokensDoNotDetermine) {
  for (const auto& [name, objective] : {std::pair{"qwen3-moe-tiny", "sft"}, {"qwen3-tiny", "infonce"}}) {
    EqualitySubject subject = make_subject({name, objective, {}, "full", "right", kLength}, 7);
    Lent lent(subject);
    const Config& config = lent.model.config();
    const at::Tensor hidden = at::zeros({subject.batch.size(), config.hidden_size}, at::kDouble);
    EXPECT_NE(refusal([&] {
                head_piece(lent.model, subject.batch, *subject.objective, hidden, 4, true);
              }).find("not a function of the last layer's tokens alone"),
              std::string::npos)
        << name << " " << objective;
  }
  const Batch batch = make_subject({"qwen3-tiny", "sft", {}, "full", "single", kLength}, 7).batch;
  for (const double temperature : {0.0, -1.0, std::nan("")}) {
    EXPECT_NE(refusal([&] {
                weighted_log_probabilities(batch, {}, temperature);
              }).find("expected a number above 0"),
              std::string::npos)
        << temperature;
  }
}

TEST(Lent, TensorsAreUsedWhereTheyLie) {
  EqualitySubject subject = make_subject({"qwen3-tiny", "sft", {}, "full", "single", kLength}, 7);
  Lent lent(subject);
  for (const auto& parameter : lent.model.parameters()) {
    EXPECT_EQ(parameter->value.const_data_ptr(), lent.values.at(parameter->name).const_data_ptr());
    EXPECT_EQ(parameter->gradient.const_data_ptr(), lent.gradients.at(parameter->name).const_data_ptr());
  }
  lent.model.give_back();
  for (const auto& parameter : lent.model.parameters()) EXPECT_FALSE(parameter->value.defined());
}

TEST(Lent, WhatDoesNotFitIsRefusedByName) {
  EqualitySubject subject = make_subject({"qwen3-tiny", "sft", {}, "full", "single", kLength}, 7);
  Lent lent(subject);
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  const at::Tensor right = lent.values.at(name);
  const auto lend = [&](const std::string& of, const at::Tensor& value, const at::Tensor& gradient) {
    return refusal([&] {
      lent.model.lend({{of, value}}, gradient.defined() ? std::map<std::string, at::Tensor>{{of, gradient}}
                                                        : std::map<std::string, at::Tensor>{});
    });
  };
  EXPECT_NE(lend("model.layers.9.q", right, {}).find("no parameter is named"), std::string::npos);
  EXPECT_NE(lend(name, right.to(at::kFloat), {}).find("the parameter is Float"), std::string::npos);
  EXPECT_NE(lend(name, right.narrow(0, 0, 2), {}).find("expected Double ["), std::string::npos);
  EXPECT_NE(lend(name, right, right.narrow(0, 0, 2)).find("its gradient is"), std::string::npos);
  EXPECT_NE(lend(name, at::empty_like(right).t().contiguous().t(), {}).find("not contiguous"),
            std::string::npos);
  EXPECT_NE(refusal([&] { lent.model.lend({}, {{name, right}}); }).find("no value"), std::string::npos);
}

TEST(Lent, LayersRefuseInputsOfAnotherStream) {
  EqualitySubject subject = make_subject({"qwen3-tiny", "sft", {}, "full", "single", kLength}, 7);
  Lent lent(subject);
  const Stream stream = prepare_pieces(lent.model, subject.batch);
  const at::Tensor x = at::zeros({kLength, lent.model.config().hidden_size}, at::kDouble);
  const auto run = [&](int64_t layer, const at::Tensor& input, int64_t chunk) {
    return refusal([&] { layer_forward(lent.model, stream, layer, input, chunk); });
  };
  EXPECT_NE(run(0, x.narrow(0, 0, 3), 4).find("layer input"), std::string::npos);
  EXPECT_NE(run(0, x.to(at::kFloat), 4).find("layer input"), std::string::npos);
  EXPECT_NE(run(99, x, 4).find("layer 99"), std::string::npos);
  EXPECT_NE(run(0, x, -1).find("chunk -1"), std::string::npos);
}

}  // namespace
}  // namespace streambp::verify
