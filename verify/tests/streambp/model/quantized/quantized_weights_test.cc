// Models whose layers' matrices are in 4 or 8 bits: every method gives the bits of the same model with the
// dequantised numbers resident.
#include "streambp/model/quantized/quantized_weights.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/objective/terms.h"
#include "verify/evaluation.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

constexpr uint64_t kSeed = 3;

Model::Placement frozen(at::ScalarType dtype, c10::Device device = at::kCPU) {
  Model::Placement placement{dtype, device, dtype, [](const std::string&) { return false; }};
  return placement;
}

LoraConfig lora_of_all() {
  LoraConfig lora;
  lora.r = 3;
  lora.lora_alpha = 6.0;
  lora.target_modules = {kAllLinear};
  return lora;
}

/// Adapters, and matrices of a quantised layer and of the head that are trained whole: copies, which begin as
/// the numbers.
LoraConfig lora_with_copies() {
  LoraConfig lora = lora_of_all();
  lora.target_modules = {"q_proj"};
  lora.modules_to_save = {"layers.0.mlp.up_proj", "lm_head"};
  return lora;
}

/// Adapters that change what the model computes: fresh ones have a B of zeros.
void adapt(Model& model, const LoraConfig& lora) {
  model.attach_adapters(lora, kSeed);
  at::Generator generator = at::detail::createCPUGenerator(kSeed);
  for (const auto& parameter : model.parameters()) {
    if (!parameter->trainable() || parameter->name.find("lora") == std::string::npos) continue;
    parameter->value.copy_(at::randn(parameter->value.sizes(), generator, at::kDouble).mul_(0.1));
  }
}

Model quantized_model(const std::string& name, const Quantization& quantization, at::ScalarType dtype,
                      const LoraConfig& lora = lora_of_all()) {
  Model::Placement placement = frozen(dtype);
  const Config config = preset(name);
  const auto weights = quantize_layers(config, quantization, placement);
  Model model = Model::random(config, placement, kSeed);
  model.provide(weights);
  adapt(model, lora);
  return model;
}

/// The same with the numbers that they stand for.
Model resident_model(const std::string& name, const Quantization& quantization, at::ScalarType dtype,
                     const LoraConfig& lora = lora_of_all()) {
  Model model = Model::random(preset(name), frozen(dtype), kSeed);
  for (const ParameterShape& shape : parameter_shapes(model.config())) {
    if (!is_quantizable(shape, quantization)) continue;
    const at::Tensor& value = model.parameter(shape.name).value;
    dequantize_into(quantize(value, quantization), value);
  }
  adapt(model, lora);
  return model;
}

void expect_same_bits(const std::string& name, const Quantization& quantization, const std::string& objective,
                      at::ScalarType dtype, const LoraConfig& lora = lora_of_all()) {
  Model quantized = quantized_model(name, quantization, dtype, lora);
  Model resident = resident_model(name, quantization, dtype, lora);
  Batch batch = random_batch({9, 6, 7, 5}, resident.config().vocab_size, kSeed);
  const Outcome reference = [&] {
    const AdaptersOff off(resident);
    return evaluate(resident, batch);
  }();
  if (objective == "dpo")
    batch.token_inputs[inputs::kReferenceLogProbabilities] = reference.log_probabilities;
  const auto loss = make_objective(objective, batch);
  for (const MethodKind& kind : method_kinds()) {
    Settings settings;
    settings.method = kind.method;
    settings.chunk = 4;
    const auto ours = verify::evaluate(quantized, batch, *loss, settings);
    const auto theirs = verify::evaluate(resident, batch, *loss, settings);
    EXPECT_TRUE(verify::bit_equal(ours, theirs)) << name << " " << kind.name << " " << objective;
    double largest = 0.0;
    for (const auto& [parameter, gradient] : ours.gradients)
      largest = std::max(largest, gradient.abs().max().item<double>());
    EXPECT_GT(largest, 0.0) << name << " " << kind.name;
  }
  const AdaptersOff off(quantized);
  EXPECT_TRUE(at::equal(evaluate(quantized, batch).log_probabilities, reference.log_probabilities)) << name;
}

TEST(QuantizedWeights, FoldersOfTransformersAreTheModelsOfTheirNumbers) {
  for (const char* name : {"nf4", "fp4", "int8"}) {
    const auto folder = std::filesystem::path(STREAMBP_GOLDENS) / "quantized" / name;
    Model model = Model::load(Checkpoint::open(folder), frozen(at::kDouble));
    ASSERT_NE(model.provider(), nullptr) << name;
    const SafetensorsFile file = SafetensorsFile::open(folder / "log_probabilities.safetensors");
    const at::Tensor expected = read_tensor(file, "log_probabilities");  // of the tokens that follow
    const Batch batch = pack(read_tensor(file, "input_ids"), {}, {}, {}, model.config().vocab_size);
    const at::Tensor found = unpack(batch, evaluate(model, batch).log_probabilities);
    const double error = (found.narrow(1, 0, expected.size(1)) - expected).abs().max().item<double>();
    EXPECT_TRUE(error <= 1e-12) << name << ": " << error;
  }
}

TEST(QuantizedWeights, EveryMethodGivesTheBitsOfResidentNumbers) {
  for (const char* name : {"qwen3-tiny", "phi3-tiny", "qwen3-moe-tiny", "gpt-oss-tiny", "qwen3.5-tiny",
                           "gemma4-tiny", "deepseek-v3-tiny"})
    expect_same_bits(name, {QuantType::kNf4, true}, "sft", at::kDouble);
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4, QuantType::kInt8})
    expect_same_bits("llama-tiny", {type, false}, "dpo", at::kDouble);
  expect_same_bits("qwen3-tiny", {QuantType::kNf4, true}, "dpo", at::kFloat);
  expect_same_bits("qwen3-tiny", {QuantType::kNf4, true}, "dpo", at::kDouble, lora_with_copies());
}

TEST(QuantizedWeights, LayersRunAgainAndKeptActivationsToo) {
  Model quantized = quantized_model("qwen3-tiny", {}, at::kDouble);
  Model resident = resident_model("qwen3-tiny", {}, at::kDouble);
  const Batch batch = random_batch({9, 6}, resident.config().vocab_size, kSeed);
  const auto loss = make_objective("sft", batch);
  Settings settings;
  settings.method = parse_method("streambp");
  settings.chunk = 4;
  settings.every = 2;
  EXPECT_TRUE(verify::bit_equal(verify::evaluate(quantized, batch, *loss, settings),
                                verify::evaluate(resident, batch, *loss, settings)));
}

bool has_memory(const at::Tensor& value) {
  return value.storage().data() != nullptr;
}

TEST(QuantizedWeights, ValuesAreThereWhileTheirLayerIsRunAlone) {
  Model model = quantized_model("qwen3-tiny", {}, at::kDouble);
  const at::Tensor& value = model.parameter("model.layers.1.mlp.up_proj.weight").value;
  EXPECT_FALSE(has_memory(value));
  {
    const LayerWeights one(model, 1);
    const double sum = value.abs().sum().item<double>();
    EXPECT_GT(sum, 0.0);
    {
      const LayerWeights again(model, 1);  // two passes at once
      EXPECT_EQ(value.abs().sum().item<double>(), sum);
    }
    EXPECT_EQ(value.abs().sum().item<double>(), sum);
    EXPECT_FALSE(has_memory(model.parameter("model.layers.0.mlp.up_proj.weight").value));
    EXPECT_TRUE(has_memory(model.parameter("model.layers.0.input_layernorm.weight").value));
  }
  EXPECT_FALSE(has_memory(value));
}

/// Bytes of a model's parameters as they are held between passes.
int64_t held_bytes(const Model& model, const Quantization& quantization) {
  const std::vector<ParameterShape> shapes = parameter_shapes(model.config());
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters()) {
    const auto is_it = [&](const ParameterShape& shape) { return shape.name == parameter->name; };
    const auto shape = std::find_if(shapes.begin(), shapes.end(), is_it);
    const bool packed = shape != shapes.end() && is_quantizable(*shape, quantization);
    const at::Tensor like = at::empty(parameter->value.sizes(), parameter->value.options().device(at::kMeta));
    bytes += packed ? quantize(like, quantization).bytes() : static_cast<int64_t>(like.nbytes());
  }
  return bytes;
}

TEST(QuantizedWeights, TakeThePackedBytesAndOneLayer) {
  install_meters();
  const Config config = preset("qwen3-0.6b");
  for (const Quantization& quantization :
       {Quantization{QuantType::kNf4, true}, {QuantType::kFp4, false}, {QuantType::kInt8, false}}) {
    const int64_t before = read_meter(at::kMeta).live_bytes;
    Model::Placement placement = frozen(at::kBFloat16, at::kMeta);
    const auto weights = quantize_layers(config, quantization, placement);
    Model model = Model::random(config, placement, kSeed);
    model.provide(weights);
    const int64_t held = held_bytes(model, quantization);
    EXPECT_EQ(read_meter(at::kMeta).live_bytes - before, held);
    int64_t layer = 0, matrices = 0;
    for (const ParameterShape& shape : parameter_shapes(config)) {
      if (!is_quantizable(shape, quantization)) continue;
      const int64_t numbers = shape.shape[0] * shape.shape[1];
      matrices += numbers;
      if (shape.name.starts_with("model.layers.0.")) layer += 2 * numbers;
    }
    // Four bits and the maxima: 8 + 32 / 256 bits for each 64 values, or 32.
    const double bits = quantization.type == QuantType::kInt8 ? 8.0 : quantization.double_quant ? 4.127 : 4.5;
    const auto others = static_cast<double>(2 * (parameter_count(config) - matrices));
    EXPECT_NEAR(static_cast<double>(held), others + bits / 8.0 * static_cast<double>(matrices), 1e-2 * held);

    model.attach_adapters(lora_of_all(), kSeed);
    int64_t adapters = 0;
    for (const auto& parameter : model.parameters()) {
      if (parameter->trainable()) adapters += static_cast<int64_t>(parameter->value.nbytes());
    }
    const Batch batch = random_batch({4096}, config.vocab_size, kSeed);
    Settings settings;
    settings.method = parse_method("streambp");
    settings.chunk = 1024;
    reset_peak(at::kMeta);
    backpropagate(model, batch, *make_objective("sft", batch), settings);
    const int64_t at_peak = read_meter(at::kMeta).at_peak.at("weights");
    EXPECT_GE(at_peak, held + adapters);
    EXPECT_LE(at_peak, held + adapters + layer);
    EXPECT_EQ(read_meter(at::kMeta).live_bytes - before, held + 2 * adapters) << "left something behind";
  }
}

TEST(QuantizedWeights, AreNeitherTrainedNorMerged) {
  const Config config = preset("qwen3-tiny");
  Model::Placement trained = frozen(at::kDouble);
  trained.trainable = {};
  const auto weights = quantize_layers(config, {}, trained);
  EXPECT_TRUE(refused([&] { Model::random(config, trained, kSeed); },
                      "model.layers.0.self_attn.q_proj.weight", "nf4", "--lora-rank"));
  Model model = quantized_model("qwen3-tiny", {}, at::kDouble);
  EXPECT_TRUE(refused([&] { model.merge_adapters(); }, "merged", "quantised"));
}

}  // namespace
}  // namespace streambp
