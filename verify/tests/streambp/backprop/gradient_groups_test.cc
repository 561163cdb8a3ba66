// Which gradients are final together: every trained parameter once, and in the order of the passes.
#include "streambp/backprop/gradient_groups.h"

#include <gtest/gtest.h>
#include <set>

#include "streambp/backprop/method.h"
#include "verify/tests/streambp/model/adapter_testing.h"

namespace streambp {
namespace {

/// Notes the groups and what their gradients were.
class Recording final : public GradientConsumer {
 public:
  explicit Recording(bool frees) : frees_(frees) {}

  bool frees() const override { return frees_; }
  void use(const std::vector<Parameter*>& parameters) override {
    groups.push_back(parameters);
    for (const Parameter* parameter : parameters) gradients[parameter->name] = parameter->gradient.clone();
  }

  std::vector<std::vector<Parameter*>> groups;
  std::map<std::string, at::Tensor> gradients;

 private:
  bool frees_;
};

void expect_groups(Model& model) {
  std::set<const Parameter*> seen;
  for (const std::vector<Parameter*>& group : gradient_groups(model)) {
    EXPECT_FALSE(group.empty());
    for (const Parameter* parameter : group)
      EXPECT_TRUE(seen.insert(parameter).second) << parameter->name << " in two groups";
  }
  for (const auto& parameter : model.parameters())
    EXPECT_EQ(seen.contains(parameter.get()), parameter->trainable()) << parameter->name;
  Batch batch = random_batch({11, 6}, model.config().vocab_size, 1);
  Settings settings;
  settings.chunk = 4;
  for (const bool is_scored : {true, false}) {
    if (!is_scored) batch.targets.fill_(kNoTarget);
    const auto objective = make_objective("sft", batch, {});
    model.zero_gradients();
    settings.consumer = nullptr;
    backpropagate(model, batch, *objective, settings);
    const std::map<std::string, at::Tensor> gradients = model.gradients();
    for (const bool frees : {false, true}) {
      Recording recording(frees);
      settings.consumer = &recording;
      if (!frees) model.zero_gradients();
      std::map<std::string, at::Tensor> expected;
      for (const auto& [name, gradient] : gradients) expected[name] = gradient.clone();
      backpropagate(model, batch, *objective, settings);
      EXPECT_EQ(recording.groups, gradient_groups(model)) << "frees " << frees;
      ASSERT_EQ(recording.gradients.size(), gradients.size());
      const bool balances = objective->router_loss.of(model.config().mixture) != 0.0;
      if ((is_scored || balances) && !frees) continue;  // the model's own, which `gradients` are
      if (!is_scored && !balances) {
        for (const auto& [name, gradient] : recording.gradients)
          EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0) << name;
        continue;
      }
      for (const auto& [name, gradient] : recording.gradients)
        EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name << ", frees " << frees;
    }
    std::vector<Parameter*> all;
    for (const auto& parameter : model.parameters()) all.push_back(parameter.get());
    model.allocate_gradients(all);
  }
}

TEST(GradientGroups, HoldEveryTrainedParameterOnce) {
  for (const char* name :
       {"qwen3-tiny", "llama-tied-tiny", "gemma4-per-layer-tiny", "qwen3.5-tiny", "phi3-tiny",
        "deepseek-v3-tiny", "gpt-oss-tiny", "zamba2-tiny", "mistral-large4-tiny"}) {
    SCOPED_TRACE(name);
    Model model = Model::random(preset(name), {at::kDouble, at::kCPU, at::kDouble, {}}, 1);
    expect_groups(model);
  }
}

TEST(GradientGroups, HoldAdaptersAndWhatIsSaved) {
  for (const AdapterVariant& variant : adapter_variants()) {
    SCOPED_TRACE(variant.name);
    Model model = adapted_model(variant);
    expect_groups(model);
  }
}

TEST(GradientGroups, OfAFrozenBottomEndAtTheLowestTrainedLayer) {
  const auto above = [](const std::string& name) {
    return name.find("layers.2.") != std::string::npos || name == "lm_head.weight";
  };
  Model model = Model::random(preset("qwen2-tiny"), {at::kDouble, at::kCPU, at::kDouble, above}, 1);
  EXPECT_EQ(gradient_groups(model).size(), 2);
  expect_groups(model);
}

TEST(GradientGroups, OfPerLayerInputsAreFinalLastWhereTheEmbeddingIsFrozen) {
  const auto of_inputs = [](const std::string& name) { return name.find("per_layer") != std::string::npos; };
  Model model =
      Model::random(preset("gemma4-per-layer-tiny"), {at::kDouble, at::kCPU, at::kDouble, of_inputs}, 1);
  EXPECT_EQ(gradient_groups(model).back().size(), 3);  // the table, the projection and its norm
  expect_groups(model);
}

TEST(GradientGroups, OfTrainedFrequenciesAreFinalLastWhereTheEmbeddingIsFrozen) {
  const auto of_frequencies = [](const std::string& name) { return name == kTrainedFrequencies; };
  Model model =
      Model::random(preset("mistral-large4-tiny"), {at::kDouble, at::kCPU, at::kDouble, of_frequencies}, 1);
  EXPECT_EQ(gradient_groups(model).size(), 1);
  expect_groups(model);
}

TEST(GradientGroups, OfSharedBlocksAreFinalLastWhereTheEmbeddingIsFrozen) {
  Model model =
      Model::random(preset("zamba2-tiny"), {at::kDouble, at::kCPU, at::kDouble, is_of_shared_block}, 1);
  EXPECT_EQ(gradient_groups(model).size(), 1);
  expect_groups(model);
}

}  // namespace
}  // namespace streambp
