// Adapters as files and beside weights: what goes out comes back, and what does not fit is refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "streambp/backprop/method.h"
#include "streambp/model/model.h"
#include "streambp/model/tensor_file.h"
#include "verify/error_measure.h"
#include "verify/file_testing.h"

namespace streambp {
namespace {

Model frozen_model(const std::string& name = "qwen3-tiny") {
  return Model::random(preset(name),
                       {at::kDouble, at::kCPU, at::kDouble, [](const std::string&) { return false; }}, 1);
}

LoraConfig lora_config() {
  LoraConfig lora;
  lora.r = 3;
  lora.lora_alpha = 5.0;
  lora.use_rslora = true;
  lora.target_modules = {"down_proj", "q_proj", "v_proj"};
  return lora;
}

bool is_adapter(const Parameter& parameter) {
  return parameter.name.find(".lora_") != std::string::npos;
}

/// A model whose adapters do something.
Model adapted_model(const std::string& name = "qwen3-tiny") {
  Model model = frozen_model(name);
  model.attach_adapters(lora_config(), 7);
  at::Generator generator = at::detail::createCPUGenerator(8);
  for (const auto& parameter : model.parameters()) {
    if (is_adapter(*parameter))
      parameter->value.copy_(at::randn(parameter->value.sizes(), generator, at::kDouble).mul_(0.1));
  }
  return model;
}

at::Tensor log_probabilities(Model& model) {
  return evaluate(model, random_batch({9, 5}, model.config().vocab_size, 3)).log_probabilities;
}

/// The saved adapters of `model` with config and tensors changed.
void save_changed(const Model& model, const std::filesystem::path& folder,
                  const std::function<void(nlohmann::json&)>& change_config,
                  const std::function<void(std::map<std::string, at::Tensor>&)>& change_tensors) {
  model.save_adapters(folder, "base");
  nlohmann::json config = nlohmann::json::parse(read_bytes(folder / "adapter_config.json"));
  if (change_config) change_config(config);
  std::ofstream(folder / "adapter_config.json") << config;
  const std::filesystem::path path = folder / "adapter_model.safetensors";
  std::map<std::string, at::Tensor> tensors;
  {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, entry] : file.entries()) tensors[name] = read_tensor(file, name);
  }
  if (change_tensors) change_tensors(tensors);
  write_tensors(path, tensors);
}

TEST(Adapters, GoOutAndComeBackToTheLastBit) {
  const TempFolder folder;
  Model model = adapted_model();
  model.save_adapters(folder.path() / "adapter", "base");
  Model loaded = frozen_model();
  loaded.load_adapters(folder.path() / "adapter");
  ASSERT_EQ(loaded.parameters().size(), model.parameters().size());
  for (const auto& parameter : model.parameters()) {
    EXPECT_TRUE(bit_equal(loaded.parameter(parameter->name).value, parameter->value)) << parameter->name;
  }
  EXPECT_TRUE(bit_equal(log_probabilities(loaded), log_probabilities(model)));
  const LoraConfig config = read_lora_config(folder.path() / "adapter");
  EXPECT_EQ(config.r, 3);
  EXPECT_EQ(config.lora_alpha, 5.0);
  EXPECT_TRUE(config.use_rslora);
  EXPECT_EQ(config.target_modules, lora_config().target_modules);
}

TEST(Adapters, BeginAsTheirBase) {
  Model base = frozen_model();
  Model model = frozen_model();
  model.attach_adapters(lora_config(), 7);
  EXPECT_TRUE(bit_equal(log_probabilities(model), log_probabilities(base)));
}

TEST(Adapters, SwitchedOffAreTheirBase) {
  Model base = frozen_model();
  Model model = adapted_model();
  const at::Tensor with = log_probabilities(model);
  model.enable_adapters(false);
  EXPECT_TRUE(bit_equal(log_probabilities(model), log_probabilities(base)));
  EXPECT_GT(relative_error(with, log_probabilities(base)), 1e-6);
  model.enable_adapters(true);
  EXPECT_TRUE(bit_equal(log_probabilities(model), with));
}

TEST(Adapters, MergedSayTheSame) {
  for (const char* name : {"qwen3-tiny", "qwen2-tiny", "llama-tied-tiny"}) {
    Model model = adapted_model(name);
    const at::Tensor with = log_probabilities(model);
    model.merge_adapters();
    EXPECT_TRUE(std::none_of(model.parameters().begin(), model.parameters().end(),
                             [](const auto& parameter) { return is_adapter(*parameter); }));
    const double error = relative_error(log_probabilities(model), with);
    EXPECT_TRUE(error <= 1e-13) << name << ": " << error;
  }
}

TEST(Adapters, AloneHaveGradients) {
  Model model = adapted_model();
  const Batch batch = random_batch({9, 5}, model.config().vocab_size, 3);
  Settings settings;
  settings.chunk = 4;
  backpropagate(model, batch, *make_objective("sft", batch), settings);
  for (const auto& parameter : model.parameters()) {
    EXPECT_EQ(parameter->gradient.defined(), is_adapter(*parameter)) << parameter->name;
    if (!is_adapter(*parameter)) continue;
    EXPECT_FALSE(is_zero(parameter->gradient)) << parameter->name;
  }
}

TEST(Adapters, RefusesWhatDoesNotFitTheModel) {
  const auto attach = [](const std::function<void(LoraConfig&)>& change) {
    LoraConfig lora = lora_config();
    change(lora);
    frozen_model().attach_adapters(lora, 1);
  };
  EXPECT_TRUE(refused([&] { attach([](LoraConfig& lora) { lora.r = 0; }); }, "rank 0", "1 or more"));
  EXPECT_TRUE(refused([&] { attach([](LoraConfig& lora) { lora.lora_alpha = 0.0; }); }, "alpha 0"));
  EXPECT_TRUE(
      refused([&] { attach([](LoraConfig& lora) { lora.lora_alpha = std::nan(""); }); }, "alpha nan"));
  EXPECT_TRUE(refused([&] { attach([](LoraConfig& lora) { lora.target_modules = {}; }); }, "no target"));
  EXPECT_TRUE(refused([&] { attach([](LoraConfig& lora) {
                              lora.target_modules = {"q_proj", "qkv_proj"};
                            }); },
                      "'qkv_proj'", "expected some of", "gate_proj"));
  EXPECT_TRUE(refused(
      [] {
        Model model = adapted_model();
        model.attach_adapters(lora_config(), 1);
      },
      "adapters already"));
  EXPECT_TRUE(refused([] { frozen_model().save_adapters("nowhere", "base"); }, "no adapters"));
}

TEST(Adapters, RefusesOtherFoldersByFileAndKey) {
  const Model model = adapted_model();
  const auto load_changed =
      [&](const std::function<void(nlohmann::json&)>& change_config,
          const std::function<void(std::map<std::string, at::Tensor>&)>& change_tensors) {
        const TempFolder folder;
        save_changed(model, folder.path() / "adapter", change_config, change_tensors);
        frozen_model().load_adapters(folder.path() / "adapter");
      };
  const auto with = [&](const char* key, const nlohmann::json& value) {
    load_changed([&](nlohmann::json& config) { config[key] = value; }, nullptr);
  };
  EXPECT_NO_THROW(with("use_dora", nullptr));
  EXPECT_TRUE(refused([&] { with("use_dora", true); }, "adapter_config.json", "use_dora"));
  EXPECT_TRUE(refused([&] { with("bias", "all"); }, "adapter_config.json", "bias"));
  EXPECT_TRUE(refused([&] { with("modules_to_save", {"lm_head"}); }, "modules_to_save"));
  EXPECT_TRUE(refused([&] { with("rank_pattern", {{"q_proj", 4}}); }, "rank_pattern"));
  EXPECT_TRUE(refused([&] { with("peft_type", "LOHA"); }, "peft_type"));
  EXPECT_TRUE(refused([&] { with("r", 0); }, "adapter_config.json", "r is 0"));
  EXPECT_TRUE(refused([&] { with("r", 2.5); }, "r is 2.5"));
  EXPECT_TRUE(
      refused([&] { with("r", 4); }, "adapter_model.safetensors", "lora_A", "expected floating [4, "));
  EXPECT_TRUE(refused([&] { with("target_modules", "all"); }, "target_modules"));
  EXPECT_TRUE(refused(
      [&] {
        with("target_modules", {"q_proj", "k_proj"});
      },
      "adapter_model.safetensors", "k_proj"));

  const std::string a = lora_parameter_name("model.layers.1.mlp.down_proj", 'A');
  EXPECT_TRUE(refused([&] { load_changed(nullptr, [&](auto& tensors) { tensors.erase(a); }); }, a));
  EXPECT_TRUE(
      refused([&] { load_changed(nullptr, [&](auto& tensors) { tensors["surplus"] = at::zeros({2}); }); },
              "'surplus'"));
  EXPECT_TRUE(refused(
      [&] { load_changed(nullptr, [&](auto& tensors) { tensors[a] = tensors[a].t().contiguous(); }); }, a));
  EXPECT_TRUE(
      refused([&] { load_changed(nullptr, [&](auto& tensors) { tensors[a] = tensors[a].to(at::kLong); }); },
              a, "Long"));
  EXPECT_TRUE(refused([] { frozen_model().load_adapters("no-such-folder"); }, "adapter_config.json"));
}

TEST(ValueHead, RefusesAnotherShapeAndASecondOne) {
  Model model = frozen_model();
  const int64_t size = model.config().hidden_size;
  EXPECT_TRUE(refused([&] { model.attach_value_head(at::zeros({size, 1}, at::kDouble)); }, "value head"));
  model.attach_value_head(at::zeros({1, size}, at::kDouble));
  EXPECT_TRUE(refused([&] { model.attach_value_head(at::zeros({1, size}, at::kDouble)); }, "already"));
}

}  // namespace
}  // namespace streambp
