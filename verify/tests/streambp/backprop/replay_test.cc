// Replayed routing: experts that are given in place of those that routers choose, through every method and at
// chunk sizes around a batch's, against standard back-propagation and the reference.
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/given_experts.h"
#include "verify/equality/subject.h"
#include "verify/reference_evaluation.h"
#include "verify/reference_objective.h"

namespace streambp::verify {
namespace {

constexpr int64_t kReplayLength = 13;

/// Drawn experts of every token, of all layers of `config` or of those with experts; every fifth token's are
/// the router's to choose.
at::Tensor drawn_experts(const Config& config, int64_t tokens, bool of_all, bool leaves_some) {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layers += of_all || config.is_sparse(layer);
  at::Generator generator = at::detail::createCPUGenerator(11);
  const MixtureSettings& mixture = config.mixture;
  const at::Tensor scores = at::rand({tokens, layers, mixture.num_experts}, generator, at::kDouble);
  at::Tensor experts = std::get<1>(scores.topk(mixture.num_experts_per_tok, -1)).to(at::kInt);
  if (leaves_some) experts.slice(0, 0, tokens, 5).fill_(-1);
  return experts;
}

struct ReplayCase {
  std::string model;
  std::string objective = "sft";
  std::string tuning = "full";
  std::string batch = "left";
};

std::ostream& operator<<(std::ostream& out, const ReplayCase& of) {
  return out << of.model << ", " << of.objective << ", " << of.tuning << ", " << of.batch;
}

class Replay : public testing::TestWithParam<ReplayCase> {};

TEST_P(Replay, GivesTheGradientsOfTheGivenExperts) {
  const ReplayCase& of = GetParam();
  EqualitySubject subject = make_subject({of.model, of.objective, {}, of.tuning, of.batch, kReplayLength}, 7);
  Settings standard;
  standard.method = Method::kStandard;
  const auto run = [&](const Settings& settings) {
    return evaluate(subject.model, subject.batch, *subject.objective, settings);
  };
  const Evaluation chosen = run(standard);
  const bool of_all = of.batch == "left";
  subject.batch.router_indices =
      drawn_experts(subject.model.config(), subject.batch.size(), of_all, /*leaves_some=*/!of_all);
  const Evaluation expected = run(standard);
  EXPECT_GT(measure(chosen, expected).worst_gradient(), 1e-2) << "the given experts change nothing";
  const Evaluation reference = evaluate_reference(subject.model, subject.batch,
                                                  reference_objective(of.objective, subject.batch, {}, {}),
                                                  subject.lora ? &*subject.lora : nullptr);
  double worst = 0.0, worst_to_reference = 0.0;
  const auto check = [&](const Settings& settings, const std::string& what) {
    const Evaluation found = run(settings);
    const EvaluationErrors errors = measure(found, expected), to_reference = measure(found, reference);
    worst = worse(worst, errors.worst());
    worst_to_reference = worse(worst_to_reference, to_reference.worst());
    EXPECT_TRUE(errors.worst() <= 1e-12)
        << what << ": " << errors.worst() << " in " << errors.worst_parameter();
    EXPECT_TRUE(to_reference.worst() <= 1e-10)
        << what << ": " << to_reference.worst() << " in " << to_reference.worst_parameter() << ", reference";
  };
  check(standard, "standard");
  Settings settings;
  settings.method = Method::kCheckpoint;
  check(settings, "checkpoint");
  settings.method = Method::kStreambp;
  for (const int64_t chunk : {1, 4, 12, 13, 14, 17}) {
    settings.chunk = chunk;
    check(settings, fmt::format("streambp, chunk {}", chunk));
  }
  settings.chunk = 5;
  settings.every = 2;
  check(settings, "streambp, every second input");
  fmt::print("worst error to standard {:.1e}, to the reference {:.1e}\n", worst, worst_to_reference);
}

INSTANTIATE_TEST_SUITE_P(
    Families, Replay,
    testing::Values(ReplayCase{"qwen3-moe-tiny"}, ReplayCase{"qwen3-moe-plain-tiny", "sft", "full", "masked"},
                    ReplayCase{"qwen2-moe-tiny"}, ReplayCase{"mixtral-tiny", "sft", "full", "three"},
                    ReplayCase{"minimax-m2-tiny"}, ReplayCase{"gpt-oss-tiny", "sft", "full", "masked"},
                    ReplayCase{"gpt-oss-tiny", "sft", "lora", "right"}, ReplayCase{"qwen3.5-moe-tiny"},
                    ReplayCase{"deepseek-v3-tiny", "sft", "full", "three"}, ReplayCase{"deepseek-v32-tiny"},
                    ReplayCase{"glm-moe-dsa-tiny", "sft", "full", "masked"}, ReplayCase{"glm4-moe-tiny"},
                    ReplayCase{"gemma4-moe-tiny", "sft", "full", "masked"}, ReplayCase{"granite-moe-tiny"},
                    ReplayCase{"granite-hybrid-moe-tiny", "sft", "full", "masked"},
                    ReplayCase{"ernie4-5-moe-tiny"}, ReplayCase{"lfm2-moe-tiny"},
                    ReplayCase{"kimi-linear-tiny"}, ReplayCase{"nemotron-h-tiny", "sft", "full", "three"},
                    ReplayCase{"step3p7-tiny"}, ReplayCase{"step3p7-tiny", "grpo", "full", "right"},
                    ReplayCase{"qwen3-moe-plain-tiny", "dpo", "full", "right"},
                    ReplayCase{"qwen3-moe-plain-tiny", "grpo", "full", "left"}));

TEST(Replay, GoesThroughEveryMethod) {
  EqualitySubject subject =
      make_subject({"qwen3-moe-plain-tiny", "sft", {}, "full", "left", kReplayLength}, 7);
  subject.batch.router_indices = drawn_experts(subject.model.config(), subject.batch.size(), true, true);
  Settings settings;
  settings.method = Method::kStandard;
  const Evaluation expected = evaluate(subject.model, subject.batch, *subject.objective, settings);
  for (const Method method : {Method::kLogitsOnly, Method::kTiled, Method::kChunkMajor}) {
    settings.method = method;
    for (const int64_t chunk : {1, 5, 12, 13}) {
      settings.chunk = chunk;
      const EvaluationErrors errors =
          measure(evaluate(subject.model, subject.batch, *subject.objective, settings), expected);
      EXPECT_TRUE(errors.worst() <= 1e-12) << static_cast<int>(method) << ", chunk " << chunk;
    }
  }
}

TEST(Replay, OfSequencesOfABatchIsTheirOwn) {
  const Config config = preset("qwen3-moe-tiny");
  Batch batch = random_batch({3, 5, 2}, config.vocab_size, 3);
  batch.router_indices = drawn_experts(config, batch.size(), true, false);
  const Batch selected = select_sequences(batch, {2, 0});
  EXPECT_TRUE(at::equal(selected.router_indices, at::cat({batch.router_indices.slice(0, 8, 10),
                                                          batch.router_indices.slice(0, 0, 3)})));
  EXPECT_FALSE(without_given_indices(batch).router_indices.defined());
}

/// What is wrong with `experts` [1, 4, L, k] of a file's tokens.
std::string replay_refusal(const std::string& model, const at::Tensor& experts) {
  const Config config = preset(model);
  try {
    Batch batch = read_objective_batch(objective_kind("sft"),
                                       {{"input_ids", at::tensor({3, 4, 5, 6}, at::kLong).unsqueeze(0)},
                                        {"attention_mask", at::tensor({0, 1, 1, 1}, at::kLong).unsqueeze(0)},
                                        {"router_indices", experts}},
                                       config.vocab_size);
    batch.indices_source = "tokens.safetensors: ";
    given_choices(config, batch, at::kCPU);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Replay, IsRefusedByNameWhereItCanNotBe) {
  const Config config = preset("qwen3-moe-tiny");  // 3 layers, 2 of them with 2 of 4 experts
  const at::Tensor good = drawn_experts(config, 4, /*of_all=*/false, false).unsqueeze(0);
  const auto changed = [&](int64_t token, int64_t layer, int64_t slot, int64_t expert) {
    at::Tensor experts = good.clone();
    experts[0][token][layer][slot] = expert;
    return replay_refusal("qwen3-moe-tiny", experts);
  };
  const auto holds = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(replay_refusal("qwen3-moe-tiny", good), "");
  EXPECT_EQ(changed(0, 1, 0, 99), "") << "padding is not read";
  holds(changed(2, 1, 0, 4), {"tokens.safetensors: router_indices", "row 0, column 2", "[4, ", "in layer 2",
                              "expected 2 different ones of 0 to 3", "-1 in all 2 places"});
  holds(changed(3, 0, 1, -1), {"row 0, column 3", "in layer 0", "-1 in all 2 places"});
  at::Tensor twice = good.clone();
  twice[0][1][0].fill_(2);
  holds(replay_refusal("qwen3-moe-tiny", twice), {"column 1", "[2, 2]", "different"});
  at::Tensor free = good.clone();
  free[0][1][0].fill_(-1);
  EXPECT_EQ(replay_refusal("qwen3-moe-tiny", free), "");
  holds(replay_refusal("qwen3-moe-tiny", good.narrow(2, 0, 1)),
        {"in 1 layers", "2 layers with experts, or of all 3"});
  holds(replay_refusal("qwen3-moe-tiny", good.narrow(3, 0, 1)), {"1 experts of each token", "expected 2"});
  holds(replay_refusal("qwen3-tiny", good), {"the model has no experts", "leave the tensor out"});
  holds(replay_refusal("qwen3-moe-tiny", good.narrow(1, 0, 3)),
        {"router_indices", "[1, 4, layers, experts]", "[1, 3, 2, 2]"});
  holds(replay_refusal("qwen3-moe-tiny", good.to(at::kDouble)),
        {"router_indices", "expected integers", "Double"});
}

}  // namespace
}  // namespace streambp::verify
