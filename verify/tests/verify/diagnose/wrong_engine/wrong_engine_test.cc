// The wrong engine with nothing wrong is the truth, for every family and objective.
#include "verify/diagnose/wrong_engine/wrong_engine.h"

#include <gtest/gtest.h>
#include <string>
#include <utility>

#include "streambp/error.h"
#include "verify/diagnose/wrong_engine/layer_pass.h"
#include "verify/equality/subject.h"

namespace streambp::verify {
namespace {

constexpr double kLimit = 1e-12;
constexpr double kRunApart = 1e-11;

void expect_truth(const RowName& name) {
  EqualitySubject subject = make_subject(name, 3);
  const HeadRequest request = subject.objective->request();
  if (request.divergence != Divergence::kNone || request.pooling != Pooling::kNone) return;
  if (subject.objective->targets().defined()) return;
  Settings standard;
  standard.method = Method::kStandard;
  const Evaluation truth = evaluate(subject.model, subject.batch, *subject.objective, standard);
  const WrongOutcome plain =
      run_wrong({subject.model, subject.batch, name.objective, name.settings, {}}, WrongSettings{});
  const std::string what = name.model + " " + name.objective + " " + name.tuning + " " + name.batch;
  const double loss = relative_error(plain.loss, truth.loss);
  EXPECT_TRUE(loss <= kLimit) << what << ": loss " << plain.loss << ", expected " << truth.loss;
  const ParameterError worst = gradient_errors(plain.gradients, truth.gradients).front();
  EXPECT_TRUE(worst.problem.empty() && worst.error <= kLimit)
      << what << ": " << worst.name << " " << worst.problem << " " << worst.error;
}

TEST(WrongEngine, IsRightWhereNothingIsWrong) {
  for (const char* model : {"qwen3-tiny", "qwen2-tiny", "llama-tiny", "llama-tied-tiny", "llama-yarn-tiny",
                            "llama-dynamic-tiny", "gemma2-tiny", "gemma3-tiny", "mistral-tiny", "phi3-tiny",
                            "qwen2-window-tiny", "qwen3-moe-tiny", "qwen3-moe-plain-tiny", "gpt-oss-tiny"}) {
    expect_truth({model, "sft", {}, "full", "left", 13});
    const bool is_mixture = std::string(model).find("-moe") != std::string::npos;
    if (!is_mixture) expect_truth({model, "sft", {}, "lora", "left", 13});
    expect_truth({model, "sft", {}, "full", "masked", 19});
  }
}

TEST(WrongEngine, IsRightForEveryObjective) {
  for (const std::string& objective : objective_names()) {
    for (const auto& settings : objective_variants(objective)) {
      expect_truth({"qwen3-tiny", objective, settings, "full", "left", 13});
      expect_truth({"gemma3-tiny", objective, settings, "lora", "left", 13});
    }
  }
}

TEST(WrongEngine, ExpertsApartFromTheirLayersAreRightOrRefused) {
  WrongSettings nothing;
  nothing.router_z_loss = 1e-300;  // experts run apart, and add nothing
  size_t known = 0;
  for (const std::string& family : equality_families()) {
    SCOPED_TRACE(family);
    EqualitySubject subject = make_subject({equality_preset(family), "sft", {}, "full", "left", 13}, 3);
    if (subject.model.config().mixture.num_experts == 0) continue;
    const Evaluation truth = evaluate(subject.model, subject.batch, *subject.objective, {});
    try {
      const Tensors made = run_layer_pass({subject.model, subject.batch, "sft", {}, {}}, nothing);
      const ParameterError worst = gradient_errors(made, truth.gradients).front();
      EXPECT_TRUE(worst.problem.empty() && worst.error <= kRunApart) << worst.name << " " << worst.error;
      ++known;
    } catch (const InputError&) {
    }
  }
  EXPECT_GE(known, 5U);
}

TEST(WrongEngine, RefusesAdaptersThatItDoesNotKnow) {
  for (const auto& [model, batch] : {std::pair{"qwen3-tiny", "right"}, std::pair{"qwen3-tiny", "none"},
                                     std::pair{"qwen3-moe-tiny", "left"}}) {
    EqualitySubject subject = make_subject({model, "sft", {}, "lora", batch, 13}, 3);
    EXPECT_THROW(run_wrong({subject.model, subject.batch, "sft", {}, {}}, WrongSettings{}), InputError)
        << batch;
  }
}

}  // namespace
}  // namespace streambp::verify
