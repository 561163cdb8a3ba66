// backpropagate() as a caller of the library sees it.
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "streambp/model/open_model.h"

namespace streambp {
namespace {

/// What backpropagate says of `batch` when the objective was made from `made_from`; empty: nothing.
std::string refusal(const Batch& made_from, const Batch& batch) {
  Model model = open_model("qwen3-tiny", {}, 0);
  const auto objective = make_objective("sft", made_from);
  try {
    backpropagate(model, batch, *objective, {});
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

TEST(Backpropagate, RefusesAnObjectiveOfAnotherBatch) {
  const int64_t vocab_size = open_config("qwen3-tiny").vocab_size;
  const Batch batch = random_batch({5, 4}, vocab_size, 1);
  EXPECT_EQ(refusal(batch, batch), "");
  EXPECT_EQ(refusal(batch, random_batch({5, 4}, vocab_size, 1)), "") << "equal, if not the same";

  const std::string of_another = "made from another batch (9 tokens in 2 sequences";
  EXPECT_NE(refusal(batch, random_batch({5, 4}, vocab_size, 2)).find(of_another), std::string::npos);
  EXPECT_NE(refusal(batch, random_batch({4, 5}, vocab_size, 1)).find(of_another), std::string::npos);
  EXPECT_NE(refusal(batch, random_batch({5, 5}, vocab_size, 1)).find(of_another), std::string::npos);
  Batch relabelled = batch;
  relabelled.targets = batch.targets.clone();
  relabelled.targets[0] = kNoTarget;
  EXPECT_NE(refusal(batch, relabelled).find(of_another), std::string::npos);
}

TEST(Backpropagate, AddsToTheGradientsOfTheModel) {
  Model model = open_model(
      "qwen3-tiny", {.trainable = [](const std::string& name) { return name != "lm_head.weight"; }}, 0);
  const Batch batch = random_batch({5, 4}, model.config().vocab_size, 1);
  const auto objective = make_objective("sft", batch);
  const auto gradients = model.gradients();
  EXPECT_EQ(gradients.size() + 1, model.parameters().size());
  EXPECT_FALSE(gradients.contains("lm_head.weight"));
  const at::Tensor& down = gradients.at("model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(down.abs().max().item<double>(), 0.0);
  backpropagate(model, batch, *objective, {});
  const at::Tensor once = down.clone();
  EXPECT_GT(once.abs().max().item<double>(), 0.0);
  backpropagate(model, batch, *objective, {});
  EXPECT_TRUE(at::allclose(down, once * 2.0, /*rtol=*/1e-5, /*atol=*/1e-9));
}

}  // namespace
}  // namespace streambp
