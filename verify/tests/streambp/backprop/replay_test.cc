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
#include "verify/tests/streambp/backprop/given_testing.h"

namespace streambp::verify {
namespace {

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

class GivenExperts : public testing::TestWithParam<GivenCase> {};

TEST_P(GivenExperts, GivesTheGradientsOfTheGivenExperts) {
  expect_gradients_of_given(GetParam(),
                            [](EqualitySubject& subject, bool of_all) {
                              subject.batch.router_indices =
                                  drawn_experts(subject.model.config(), subject.batch.size(), of_all,
                                                /*leaves_some=*/!of_all);
                            },
                            /*others=*/{});
}

INSTANTIATE_TEST_SUITE_P(
    Families, GivenExperts,
    testing::Values(GivenCase{"qwen3-moe-tiny"}, GivenCase{"qwen3-moe-plain-tiny", "sft", "full", "masked"},
                    GivenCase{"qwen2-moe-tiny"}, GivenCase{"mixtral-tiny", "sft", "full", "three"},
                    GivenCase{"minimax-m2-tiny"}, GivenCase{"gpt-oss-tiny", "sft", "full", "masked"},
                    GivenCase{"gpt-oss-tiny", "sft", "lora", "right"}, GivenCase{"qwen3.5-moe-tiny"},
                    GivenCase{"deepseek-v3-tiny", "sft", "full", "three"}, GivenCase{"deepseek-v32-tiny"},
                    GivenCase{"glm-moe-dsa-tiny", "sft", "full", "masked"}, GivenCase{"glm4-moe-tiny"},
                    GivenCase{"gemma4-moe-tiny", "sft", "full", "masked"}, GivenCase{"granite-moe-tiny"},
                    GivenCase{"granite-hybrid-moe-tiny", "sft", "full", "masked"},
                    GivenCase{"ernie4-5-moe-tiny"}, GivenCase{"lfm2-moe-tiny"}, GivenCase{"kimi-linear-tiny"},
                    GivenCase{"nemotron-h-tiny", "sft", "full", "three"}, GivenCase{"step3p7-tiny"},
                    GivenCase{"step3p7-tiny", "grpo", "full", "right"}, GivenCase{"muse-spark-tiny"},
                    GivenCase{"qwen3-moe-plain-tiny", "dpo", "full", "right"},
                    GivenCase{"qwen3-moe-plain-tiny", "grpo", "full", "left"}));

TEST(GivenExperts, GoesThroughEveryMethod) {
  EqualitySubject subject =
      make_subject({"qwen3-moe-plain-tiny", "sft", {}, "full", "left", kGivenLength}, 7);
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

TEST(GivenExperts, OfSequencesOfABatchIsTheirOwn) {
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

TEST(GivenExperts, IsRefusedByNameWhereItCanNotBe) {
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
