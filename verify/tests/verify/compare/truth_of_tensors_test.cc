// Truths of tensors in this process against those of the files that they were read from.
#include "verify/compare/truth_of_tensors.h"

#include <filesystem>
#include <gtest/gtest.h>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "verify/compare/judge.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

const std::filesystem::path kGoldens = STREAMBP_GOLDENS;

/// The tensors of a golden case and of its model, and how the command line would name them.
struct Case {
  CompareOptions options;
  TruthTensors tensors;
  Tensors gradients;
};

Case open_case(const std::string& model, const std::string& name) {
  Case opened;
  opened.options.model = (kGoldens / "models" / model).string();
  opened.options.tokens = (kGoldens / "cases" / name / "tensors.safetensors").string();
  const SafetensorsFile file = SafetensorsFile::open(opened.options.tokens);
  for (const auto& [entry, unused] : file.entries()) {
    if (entry.starts_with("grad.")) opened.gradients.emplace(entry.substr(5), read_tensor(file, entry));
    if (entry.starts_with("in.")) opened.tensors.batch.emplace(entry.substr(3), read_tensor(file, entry));
  }
  const auto config = kGoldens / "models" / model / "config.json";
  opened.tensors.model = {read_text_file(config), "a model", "", {}};
  const Truth of_files = open_truth(opened.options);
  for (const auto& parameter : of_files.model.parameters()) {
    opened.tensors.model.values.emplace(parameter->name, parameter->value);
    opened.tensors.trained.insert(parameter->name);
  }
  return opened;
}

Tensors gradients_of_truth(Truth& truth) {
  return evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
}

TEST(TruthOfTensors, IsThatOfTheFiles) {
  for (const auto& [model, name] :
       {std::pair{"qwen3", "qwen3-sft-b3_left"}, std::pair{"qwen3-moe", "qwen3-moe-sft-b1"}}) {
    const Case opened = open_case(model, name);
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      Truth of_files = open_truth(opened.options, dtype);
      Truth truth = truth_of(opened.tensors, opened.options, dtype);
      const Tensors expected = gradients_of_truth(of_files);
      const Tensors gradients = gradients_of_truth(truth);
      ASSERT_EQ(gradients.size(), expected.size()) << name;
      for (const auto& [parameter, gradient] : expected)
        EXPECT_TRUE(bit_equal(gradients.at(parameter), gradient)) << name << ": " << parameter;
    }
    Truth truth = truth_of(opened.tensors, opened.options);
    const CompareReport report = judge(truth, opened.options, opened.gradients);
    EXPECT_EQ(report.comparison.verdict, Verdict::kExact) << name;
  }
}

TEST(TruthOfTensors, OpensAgainFromTheTensorsAsGiven) {
  const Case opened = open_case("qwen3", "qwen3-sft-b3_left");
  Truth truth = truth_of(opened.tensors, opened.options);
  const Tensors expected = gradients_of_truth(truth);
  for (const auto& parameter : truth.model.parameters()) parameter->value.zero_();
  Truth again = truth.open_again(at::kDouble);
  for (const auto& [name, gradient] : gradients_of_truth(again))
    EXPECT_TRUE(bit_equal(gradient, expected.at(name))) << name;
}

TEST(TruthOfTensors, FrozenParametersHaveNoGradient) {
  Case opened = open_case("qwen3", "qwen3-sft-b3_left");
  opened.tensors.trained = {"model.norm.weight"};
  Truth truth = truth_of(opened.tensors, opened.options);
  const Tensors gradients = gradients_of_truth(truth);
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_LE(relative_error(gradients.at("model.norm.weight"), opened.gradients.at("model.norm.weight")),
            1e-10);
}

TEST(TruthOfTensors, RefusesOtherWeights) {
  const Case good = open_case("qwen3", "qwen3-sft-b3_left");
  const auto refused = [&](const std::function<void(std::map<std::string, at::Tensor>&)>& change,
                           const std::string& word) {
    Case bad = good;
    change(bad.tensors.model.values);
    try {
      truth_of(bad.tensors, bad.options);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused([](auto& values) { values.erase("model.norm.weight"); }, "model.norm.weight is missing");
  refused([](auto& values) { values["model.norm.weight"] = at::ones({3}, at::kDouble); }, "of shape [3]");
  refused([](auto& values) { values["model.norm.bias"] = at::ones({3}, at::kDouble); }, "model.norm.bias");
}

}  // namespace
}  // namespace streambp::verify
