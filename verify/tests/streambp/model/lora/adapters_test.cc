// Adapters as files and merged into weights: what goes out comes back, and what does not fit is refused.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/model.h"
#include "verify/error_measure.h"
#include "verify/tests/streambp/model/adapter_testing.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {

using namespace verify;
namespace {

LoraConfig lora_config() {
  return adapter_variants().front().lora;
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

class Adapters : public testing::TestWithParam<AdapterVariant> {};

TEST_P(Adapters, GoOutAndComeBackToTheLastBit) {
  const TempFolder folder;
  Model model = adapted_model(GetParam());
  model.save_adapters(folder.path() / "adapter", "base");
  Model loaded = frozen_model(GetParam().preset);
  loaded.load_adapters(folder.path() / "adapter");
  ASSERT_EQ(loaded.parameters().size(), model.parameters().size());
  for (const auto& parameter : model.parameters()) {
    if (is_peft_name(parameter->name)) {
      EXPECT_TRUE(bit_equal(loaded.parameter(parameter->name).value, parameter->value)) << parameter->name;
    }
    EXPECT_EQ(loaded.parameter(parameter->name).trainable(), parameter->trainable()) << parameter->name;
  }
  EXPECT_TRUE(bit_equal(log_probabilities(loaded), log_probabilities(model)));
  const LoraConfig config = read_lora_config(folder.path() / "adapter");
  const LoraConfig& given = GetParam().lora;
  EXPECT_EQ(config.use_rslora, given.use_rslora);
  EXPECT_EQ(config.rank_pattern, given.rank_pattern);
  EXPECT_EQ(config.alpha_pattern, given.alpha_pattern);
  EXPECT_EQ(config.modules_to_save, given.modules_to_save);
  EXPECT_EQ(config.trainable_token_indices, given.trainable_token_indices);
}

/// As transformers 5 and 4 name the parts of a whole model; a tower's adapters are left out.
TEST(AdaptersOfAWholeModel, AreTheDecodersOwn) {
  LoraConfig lora;
  lora.r = 3;
  lora.lora_alpha = 5.0;
  lora.target_modules = {"q_proj", "v_proj", "down_proj"};
  for (const auto& [decoder, head] : {std::pair<std::string, std::string>{"model.language_model.", "lm_head"},
                                      {"language_model.model.", "language_model.lm_head"}}) {
    const TempFolder folder;
    const std::filesystem::path path = folder.path() / "adapter";
    LoraConfig own = lora;
    // By whole names: what a pattern says of layers holds for the decoder inside.
    own.rank_pattern = {{R"(model\.layers\.1\.self_attn\.q_proj)", 2}};
    own.alpha_pattern = {{"down_proj", 7.0}};
    Model model = frozen_model("gemma3-tiny");
    model.attach_adapters(own, 7);
    for (const auto& parameter : model.parameters())
      if (is_peft_name(parameter->name)) parameter->value.normal_();
    model.save_adapters(path, "base");
    const std::filesystem::path file = path / "adapter_model.safetensors";
    std::map<std::string, at::Tensor> whole;
    {
      const SafetensorsFile stored = SafetensorsFile::open(file);
      const std::string prefix = std::string(kPeftPrefix) + "model.";
      for (const auto& [name, entry] : stored.entries()) {
        ASSERT_TRUE(name.starts_with(prefix)) << name;
        whole[kPeftPrefix + decoder + name.substr(prefix.size())] = read_tensor(stored, name);
      }
    }
    whole["base_model.model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight"] = at::ones({3, 4});
    write_tensors(file, whole);
    LoraConfig named = own;
    named.target_modules.clear();
    named.target_pattern = "(?:.*(?:language_model|vision_tower).*\\.(?:q_proj|v_proj|down_proj))";
    const std::string layer = decoder == "model.language_model."
                                  ? R"(language_model\.layers\.1\.self_attn\.q_proj)"
                                  : R"(language_model\.model\.layers\.1\.self_attn\.q_proj)";
    named.rank_pattern = {{layer, 2}};
    write_lora_config(path, named, "base");
    Model loaded = frozen_model("gemma3-tiny");
    loaded.load_adapters(path);
    ASSERT_EQ(loaded.parameters().size(), model.parameters().size()) << decoder;
    for (const auto& parameter : model.parameters())
      EXPECT_TRUE(bit_equal(loaded.parameter(parameter->name).value, parameter->value)) << parameter->name;
    EXPECT_TRUE(bit_equal(log_probabilities(loaded), log_probabilities(model))) << decoder;
  }
}

TEST_P(Adapters, BeginAsTheirBase) {
  Model base = frozen_model(GetParam().preset);
  Model model = frozen_model(GetParam().preset);
  model.attach_adapters(GetParam().lora, 7);
  // A head with an adapter or trained rows is not the fused one, which rounds otherwise.
  const bool other_head = model.head().adapter || model.head().trained_rows != nullptr;
  const at::Tensor with = log_probabilities(model), without = log_probabilities(base);
  EXPECT_TRUE(other_head ? relative_error(with, without) <= 1e-14 : bit_equal(with, without));
}

TEST_P(Adapters, SwitchedOffAreTheirBaseButForTrainedBiases) {
  const bool is_base = GetParam().lora.bias == "none";  // trained biases stay, as PEFT has it
  Model base = frozen_model(GetParam().preset);
  Model model = adapted_model(GetParam());
  const at::Tensor with = log_probabilities(model);
  for (int i = 0; i < 2; ++i) {
    model.enable_adapters(false);
    EXPECT_EQ(bit_equal(log_probabilities(model), log_probabilities(base)), is_base);
  }
  EXPECT_GT(relative_error(with, log_probabilities(base)), 1e-6);
  for (int i = 0; i < 2; ++i) {
    model.enable_adapters(true);
    EXPECT_TRUE(bit_equal(log_probabilities(model), with));
  }
}

TEST_P(Adapters, MergedSayTheSame) {
  Model model = adapted_model(GetParam());
  const at::Tensor with = log_probabilities(model);
  std::vector<std::string> names;
  for (const ParameterShape& shape : parameter_shapes(model.config())) names.push_back(shape.name);
  model.merge_adapters();
  for (const auto& parameter : model.parameters()) {
    EXPECT_FALSE(is_peft_name(parameter->name)) << parameter->name;
    EXPECT_EQ(&model.parameter(parameter->name), parameter.get());
  }
  for (const std::string& name : names) EXPECT_NO_THROW(model.parameter(name)) << name;
  EXPECT_EQ(model.parameters().size(), parameter_shapes(model.config()).size());
  const double error = relative_error(log_probabilities(model), with);
  EXPECT_TRUE(error <= 1e-13) << error;
}

TEST_P(Adapters, AloneHaveGradients) {
  Model model = adapted_model(GetParam());
  const Batch batch = random_batch({9, 5}, model.config().vocab_size, 3);
  const auto objective = make_objective("sft", batch);
  Settings settings;
  settings.method = Method::kStandard;
  backpropagate(model, batch, *objective, settings);
  std::map<std::string, at::Tensor> expected;
  for (const auto& parameter : model.parameters()) {
    EXPECT_EQ(parameter->gradient.defined(), is_peft_name(parameter->name)) << parameter->name;
    if (is_peft_name(parameter->name)) expected[parameter->name] = parameter->gradient.clone();
  }
  for (const int64_t chunk : {1, 4, 14}) {
    model.zero_gradients();
    settings.method = Method::kStreambp;
    settings.chunk = chunk;
    settings.head_chunk = 3;
    backpropagate(model, batch, *objective, settings);
    for (const auto& [name, gradient] : expected) {
      const double error = relative_error(model.parameter(name).gradient, gradient);
      EXPECT_TRUE(error <= 1e-12) << name << ": " << error;
    }
  }
}

/// Those of models whose loss is smooth: in a mixture a step may change the choice of experts.
TEST(AdaptersOfSharedBlocks, AreNotMerged) {
  Model model = Model::random(preset("zamba2-tiny"), {at::kDouble, at::kCPU, at::kDouble, {}}, 1);
  LoraConfig lora;
  lora.target_modules = {"o_proj"};
  model.attach_adapters(lora, 7);
  try {
    model.merge_adapters();
    FAIL() << "adapters of one layer went into a weight of several";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("shared_transformer.self_attn.o_proj"), std::string::npos);
  }
}

class SmoothAdapters : public testing::TestWithParam<AdapterVariant> {};

std::vector<AdapterVariant> smooth_variants() {
  std::vector<AdapterVariant> variants = adapter_variants();
  std::erase_if(variants,
                [](const AdapterVariant& each) { return preset(each.preset).mixture.num_experts > 0; });
  return variants;
}

/// Of a loss, by six points around each of some entries.
TEST_P(SmoothAdapters, HaveTheGradientsOfTheirLoss) {
  Model model = adapted_model(GetParam());
  const Batch batch = random_batch({9, 5}, model.config().vocab_size, 3);
  const auto objective = make_objective("sft", batch);
  backpropagate(model, batch, *objective, {});
  at::Generator generator = at::detail::createCPUGenerator(9);
  double derivative = 0.0;
  std::vector<std::pair<at::Tensor, at::Tensor>> moves;  // what is moved, and the direction
  for (const auto& parameter : model.parameters()) {
    if (!is_peft_name(parameter->name)) continue;
    const at::Tensor direction = at::randn(parameter->value.sizes(), generator, at::kDouble).mul_(0.01);
    derivative += parameter->gradient.mul(direction).sum().item<double>();
    moves.emplace_back(parameter->value, direction);
  }
  const auto loss_at = [&](double step) {
    for (const auto& [value, direction] : moves) value.add_(direction, step);
    model.zero_gradients();
    const double loss = backpropagate(model, batch, *objective, {}).loss;
    for (const auto& [value, direction] : moves) value.sub_(direction, step);
    return loss;
  };
  constexpr double kStep = 0.01;  // the delta rule bends: of 0.02 the rest of the series is 3e-8
  const auto difference = [&](double steps) { return loss_at(steps * kStep) - loss_at(-steps * kStep); };
  const double measured = (45.0 * difference(1.0) - 9.0 * difference(2.0) + difference(3.0)) / (60.0 * kStep);
  EXPECT_TRUE(std::abs(measured - derivative) <= 1e-8 * std::abs(derivative))
      << measured << ", " << derivative;
}

std::string name_of(const testing::TestParamInfo<AdapterVariant>& kind) {
  std::string name = kind.param.name;
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Adapters, testing::ValuesIn(adapter_variants()), name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, SmoothAdapters, testing::ValuesIn(smooth_variants()), name_of);

TEST(AdapterRefusals, NameWhatDoesNotFitTheModel) {
  const auto attach = [](const std::function<void(LoraConfig&)>& change) {
    LoraConfig lora = lora_config();
    change(lora);
    frozen_model("qwen3-tiny").attach_adapters(lora, 1);
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
        Model model = adapted_model(adapter_variants().front());
        model.attach_adapters(lora_config(), 1);
      },
      "adapters already"));
  EXPECT_TRUE(refused([] { frozen_model("qwen3-tiny").save_adapters("nowhere", "base"); }, "no adapters"));
}

TEST(AdapterRefusals, NameFileAndKeyOfOtherFolders) {
  const Model model = adapted_model(adapter_variants().front());
  const auto load_changed =
      [&](const std::function<void(nlohmann::json&)>& change_config,
          const std::function<void(std::map<std::string, at::Tensor>&)>& change_tensors) {
        const TempFolder folder;
        save_changed(model, folder.path() / "adapter", change_config, change_tensors);
        frozen_model("qwen3-tiny").load_adapters(folder.path() / "adapter");
      };
  const auto with = [&](const char* key, const nlohmann::json& value) {
    load_changed([&](nlohmann::json& config) { config[key] = value; }, nullptr);
  };
  EXPECT_NO_THROW(with("use_dora", nullptr));
  EXPECT_TRUE(refused([&] { with("use_dora", true); }, "adapter_config.json", "use_dora"));
  EXPECT_TRUE(refused([&] { with("modules_to_save", {"lm_head"}); }, "adapter_model.safetensors",
                      "base_model.model.lm_head.weight"));
  EXPECT_TRUE(refused(
      [&] {
        with("trainable_token_indices", {3, 4});
      },
      "adapter_model.safetensors", "model.embed_tokens.token_adapter.trainable_tokens_delta"));
  EXPECT_TRUE(refused(
      [&] {
        with("rank_pattern", {{"q_proj", 4}});
      },
      "q_proj.lora_A", "expected floating [4, "));
  EXPECT_TRUE(refused([&] { with("peft_type", "LOHA"); }, "peft_type"));
  EXPECT_TRUE(refused([&] { with("r", 0); }, "adapter_config.json", "r is 0"));
  EXPECT_TRUE(refused([&] { with("r", 2.5); }, "r is 2.5"));
  EXPECT_TRUE(
      refused([&] { with("r", 4); }, "adapter_model.safetensors", "lora_A", "expected floating [4, "));
  EXPECT_TRUE(refused([&] { with("target_modules", "all"); }, "no target modules"));
  EXPECT_TRUE(refused(
      [&] {
        with("target_modules", {"q_proj", "k_proj"});
      },
      "adapter_model.safetensors", "k_proj"));

  const std::string a = lora_parameter_name("model.layers.1.mlp.down_proj", 'A');
  EXPECT_TRUE(refused([&] { load_changed(nullptr, [&](auto& tensors) { tensors.erase(a); }); }, a));
  EXPECT_TRUE(
      refused([&] { load_changed(nullptr, [&](auto& tensors) { tensors["surplus"] = at::zeros({2}); }); },
              "\"surplus\""));
  EXPECT_TRUE(refused(
      [&] { load_changed(nullptr, [&](auto& tensors) { tensors[a] = tensors[a].t().contiguous(); }); }, a));
  EXPECT_TRUE(
      refused([&] { load_changed(nullptr, [&](auto& tensors) { tensors[a] = tensors[a].to(at::kLong); }); },
              a, "I64"));
  EXPECT_TRUE(
      refused([] { frozen_model("qwen3-tiny").load_adapters("no-such-folder"); }, "adapter_config.json"));
}

// A rank that only adapter_config.json names would take 1.5 GB here.
TEST(AdapterRefusals, AllocateNothingOfAWrongRank) {
  install_meters();
  const TempFolder folder;
  save_changed(
      adapted_model(adapter_variants().front()), folder.path() / "adapter",
      [](nlohmann::json& config) { config["r"] = 1'000'000; }, nullptr);
  Model model = frozen_model("qwen3-tiny");
  reset_peak(at::kCPU);
  const int64_t before = read_meter(at::kCPU).peak_bytes;
  EXPECT_TRUE(refused([&] { model.load_adapters(folder.path() / "adapter"); }, "adapter_model.safetensors",
                      "lora_A", "expected floating [1000000, "));
  EXPECT_LE(read_meter(at::kCPU).peak_bytes, before + 100'000);
}

TEST(ValueHead, RefusesAnotherShapeAndASecondOne) {
  Model model = frozen_model("qwen3-tiny");
  const int64_t size = model.config().hidden_size;
  EXPECT_TRUE(refused([&] { model.attach_value_head(at::zeros({size, 1}, at::kDouble)); }, "value head"));
  model.attach_value_head(at::zeros({1, size}, at::kDouble));
  EXPECT_TRUE(refused([&] { model.attach_value_head(at::zeros({1, size}, at::kDouble)); }, "already"));
}

}  // namespace
}  // namespace streambp
