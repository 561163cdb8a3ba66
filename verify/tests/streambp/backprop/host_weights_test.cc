// Weights in the host's memory: no bit changes, layers are asked for as often as WeightProvider says, and two
// layers are on the device.
#include "streambp/backprop/host_weights.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "streambp/objective/terms.h"
#include "streambp/optimizer/optimizer.h"
#include "verify/evaluation.h"
#include "verify/tests/streambp/model/adapter_testing.h"
#include "verify/tests/streambp/ops/ops_testing.h"
#include "verify/tests/turns.h"

namespace streambp {

using verify::bit_equal;
using verify::Evaluation;
namespace {

bool all(const std::string&) {
  return true;
}
bool none(const std::string&) {
  return false;
}

/// The model of a preset twice: with all weights on the device, and with the layers' in the host's memory.
Model model_of(const Config& config, bool on_host, bool (*trainable)(const std::string&),
               c10::Device device = at::kCPU, at::ScalarType dtype = at::kDouble) {
  Model::Placement placement{dtype, device, dtype, trainable};
  if (!on_host) return Model::random(config, placement, 1);
  const auto host = std::make_shared<HostWeights>(device);
  placement.filled = [host](Parameter& parameter) { host->take(parameter); };
  Model model = Model::random(config, placement, 1);
  model.provide(host);
  return model;
}

Batch texts(const char* objective) {
  Batch batch = random_batch({13, 37, 25, 6}, 101, 3);
  if (std::string(objective) == "dpo") batch.sequence_inputs[inputs::kReferenceSums] = random({4}, 5) - 40.0;
  return batch;
}

/// Every method, and what else changes when a layer is asked for.
std::vector<Settings> all_settings() {
  std::vector<Settings> found;
  for (const MethodKind& kind : method_kinds()) {
    Settings settings;
    settings.method = kind.method;
    settings.chunk = is_chunked(kind.method) ? 11 : 0;
    found.push_back(settings);
  }
  Settings settings;
  settings.chunk = 20;
  settings.every = 2;
  found.push_back(settings);
  settings.keep = parse_kept_layers("attention");
  settings.offload = Offload::kHost;
  found.push_back(settings);
  settings = {};
  settings.order = Order::kForward;
  settings.stream_head = false;
  settings.chunk = 33;
  found.push_back(settings);
  return found;
}

void expect_equal(Model& resident, Model& on_host, const std::string& name) {
  static size_t turn = 0;
  for (const char* objective : {"sft", "dpo"}) {
    const Batch batch = texts(objective);
    const auto made = make_objective(objective, batch, {});
    for (const Settings& settings : verify::in_turns(all_settings(), 2, turn)) {
      SCOPED_TRACE(fmt::format("{}, {}: {}", name, objective, configuration_text(settings)));
      const Evaluation expected = verify::evaluate(resident, batch, *made, settings);
      EXPECT_TRUE(bit_equal(verify::evaluate(on_host, batch, *made, settings), expected));
      for (const auto& parameter : on_host.parameters())
        EXPECT_EQ(parameter->value.storage().data() == nullptr, layer_of(parameter->name).has_value())
            << parameter->name;
    }
    EXPECT_TRUE(
        at::equal(evaluate(on_host, batch).log_probabilities, evaluate(resident, batch).log_probabilities));
  }
}

TEST(HostWeights, ChangeNoBit) {
  for (const char* name : {"qwen3-tiny",
                           "llama-tied-tiny",
                           "phi3-tiny",
                           "qwen3-moe-tiny",
                           "gpt-oss-tiny",
                           "qwen3.5-tiny",
                           "gemma4-per-layer-tiny",
                           "deepseek-v3-tiny",
                           "granite-moe-tiny",
                           "falcon-h1-tiny",
                           "kimi-linear-tiny",
                           "step3p7-tiny",
                           "hy-v4-tiny",
                           "zamba2-tiny",
                           "mistral-large4-tiny",
                           "minimax-m3-tiny",
                           "glm5-next-tiny",
                           "qwen4-exp-tiny",
                           "lfm3-tiny",
                           "muse-spark-tiny"}) {
    Model resident = model_of(preset(name), false, all), on_host = model_of(preset(name), true, all);
    expect_equal(resident, on_host, name);
  }
}

TEST(HostWeights, ChangeNoBitBelowAdapters) {
  for (const AdapterVariant& variant : adapter_variants()) {
    Model resident = model_of(preset(variant.preset), false, none);
    Model on_host = model_of(preset(variant.preset), true, none);
    for (Model* model : {&resident, &on_host}) {
      model->attach_adapters(variant.lora, 7);
      const AllLayerWeights weights(*model);  // biases of the base are trained and moved too
      disturb(*model, 8);
    }
    const Batch batch = texts("sft");
    const auto sft = make_objective("sft", batch, {});
    Settings settings;
    settings.chunk = 20;
    const auto run = [&](Model& model) { return verify::evaluate(model, batch, *sft, settings); };
    EXPECT_TRUE(bit_equal(run(on_host), run(resident))) << variant.name;
    {
      const AdaptersOff off(resident), off_on_host(on_host);
      EXPECT_TRUE(
          at::equal(evaluate(on_host, batch).log_probabilities, evaluate(resident, batch).log_probabilities))
          << variant.name;
    }
    if (variant.lora.lora_bias) continue;  // can't be merged
    resident.merge_adapters();
    on_host.merge_adapters();
    EXPECT_TRUE(
        at::equal(evaluate(on_host, batch).log_probabilities, evaluate(resident, batch).log_probabilities))
        << variant.name;
  }
}

TEST(HostWeights, TakeTheStepsOfAFusedOptimizer) {
  for (const char* name : {"qwen3-tiny", "llama-tied-tiny", "gpt-oss-tiny", "qwen3.5-tiny"}) {
    for (const std::string& optimizer_name : optimizer_names()) {
      OptimizerSettings step;
      step.name = optimizer_name;
      step.learning_rate = 0.01;
      step.rank = 4;
      Model resident = model_of(preset(name), false, all), on_host = model_of(preset(name), true, all);
      for (const bool is_scored : {true, false}) {
        Batch batch = texts("sft");
        if (!is_scored) batch.targets.fill_(kNoTarget);  // adamw decays weights all the same
        const auto sft = make_objective("sft", batch, {});
        for (Model* model : {&resident, &on_host}) {
          const auto optimizer = make_optimizer(step);
          Settings settings;
          settings.chunk = 20;
          settings.every = 2;
          settings.consumer = optimizer.get();
          for (int i = 0; i < 3; ++i) backpropagate(*model, batch, *sft, settings);
        }
      }
      const AllLayerWeights weights(on_host);
      for (const auto& parameter : resident.parameters())
        EXPECT_TRUE(at::equal(on_host.parameter(parameter->name).value, parameter->value))
            << name << ", " << optimizer_name << ": " << parameter->name;
    }
  }
}

/// Notes who is asked for.
class Asked final : public WeightProvider {
 public:
  void enter(int64_t layer, std::optional<int64_t> next) override {
    EXPECT_EQ(expected_.value_or(layer), layer) << "not the layer that was said to come next";
    expected_ = next;
    layers.push_back(layer);
  }
  void leave(int64_t) noexcept override {}

  std::vector<int64_t> layers;

 private:
  std::optional<int64_t> expected_;
};

TEST(HostWeights, AreAskedForOncePerDirectionWhateverTheChunks) {
  using Layers = std::vector<int64_t>;
  Model model = model_of(preset("llama-tied-tiny"), false, all);
  ASSERT_EQ(model.layers().size(), 3U);
  const Batch batch = texts("sft");
  const auto sft = make_objective("sft", batch, {});
  const auto asked = [&](const Settings& settings) {
    const auto provider = std::make_shared<Asked>();
    model.provide(provider);
    backpropagate(model, batch, *sft, settings);
    model.provide(nullptr);
    return provider->layers;
  };
  for (const MethodKind& kind : method_kinds()) {
    const Method method = kind.method;
    for (const int64_t chunk : {1, 20, 1000}) {
      Settings settings;
      settings.method = method;
      settings.chunk = is_chunked(method) ? chunk : 0;
      const bool once = method == Method::kChunkMajor;
      // streambp takes the last layer through the head: it runs once.
      const Layers twice = method == Method::kStreambp ? Layers{0, 1, 2, 1, 0} : Layers{0, 1, 2, 2, 1, 0};
      EXPECT_EQ(asked(settings), once ? (Layers{0, 1, 2}) : twice) << configuration_text(settings);
    }
  }
  Settings settings;
  settings.chunk = 20;
  settings.stream_head = false;
  EXPECT_EQ(asked(settings), (Layers{0, 1, 2, 2, 1, 0}));
  settings.every = 3;
  EXPECT_EQ(asked(settings), (Layers{0, 1, 2, 2, 1, 0}));  // of the last three layers all inputs are kept
  const auto provider = std::make_shared<Asked>();
  model.provide(provider);
  evaluate(model, batch);
  EXPECT_EQ(provider->layers, (Layers{0, 1, 2}));
}

/// What every k-th input leaves out is run again, and asked for again.
TEST(HostWeights, AreAskedForAgainWhereLayersRunAgain) {
  using Layers = std::vector<int64_t>;
  Config config = preset("llama-tied-tiny");
  config.num_hidden_layers = 5;
  config.windows.assign(5, 0);
  Model model = Model::random(config, {at::kDouble, at::kCPU, at::kDouble, {}}, 1);
  Batch batch = texts("sft");
  Settings settings;
  settings.chunk = 20;
  settings.every = 2;
  Layers scored;
  for (const bool is_scored : {true, false}) {
    if (!is_scored) batch.targets.fill_(kNoTarget);
    const auto provider = std::make_shared<Asked>();
    model.provide(provider);
    OptimizerSettings sgd;
    const auto optimizer = make_optimizer(sgd);
    settings.consumer = optimizer.get();
    backpropagate(model, batch, *make_objective("sft", batch, {}), settings);
    // Layer 1's input is made by layer 0, layer 3's by layer 2.
    if (is_scored) scored = provider->layers;
    EXPECT_EQ(provider->layers, scored);
  }
  EXPECT_EQ(scored, (Layers{0, 1, 2, 3, 4, 4, 2, 3, 2, 0, 1, 0}));
}

int64_t bytes_of(const Model& model, bool of_layers) {
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters()) {
    if (layer_of(parameter->name).has_value() == of_layers)
      bytes += static_cast<int64_t>(parameter->value.nbytes());
  }
  return bytes;
}

TEST(HostWeights, AreOnTheDeviceTwoLayersAtATime) {
  install_meters();
  Config config = preset("qwen3-cpu");
  config.vocab_size = 4000;
  for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kMeta)}) {
    const int64_t before = read_meter(device).live_bytes;
    Model model = model_of(config, true, none, device, at::kFloat);
    LoraConfig lora;
    lora.r = 1;
    lora.target_modules = {"q_proj"};
    model.attach_adapters(lora, 1);
    const int64_t elsewhere = bytes_of(model, false), layers = bytes_of(model, true);
    int64_t adapters = 0;
    for (const auto& parameter : model.parameters()) {
      if (is_peft_name(parameter->name)) adapters += static_cast<int64_t>(parameter->value.nbytes());
    }
    const int64_t base = layers - adapters;
    EXPECT_EQ(read_meter(device).live_bytes - before, elsewhere + 2 * adapters);  // and their gradients
    const Batch batch = random_batch({700, 324}, config.vocab_size, 2);
    const auto sft = make_objective("sft", batch, {});
    Settings settings;
    settings.chunk = 256;
    const int64_t resident = read_meter(device).live_bytes;  // on the CPU with the batch
    reset_peak(device);
    backpropagate(model, batch, *sft, settings);
    const MemoryReading reading = read_meter(device);
    EXPECT_EQ(reading.live_bytes, resident) << "the pass left something behind";
    EXPECT_EQ(reading.at_peak.at("weights"), elsewhere + adapters + 2 * base / config.num_hidden_layers);
    EXPECT_EQ(reading.host_peak_bytes, base);
  }
}

/// A pass that ends early leaves the model as it was.
TEST(HostWeights, SurviveAPassThatFails) {
  install_meters();
  Model model = model_of(preset("qwen3-tiny"), true, all);
  const Batch batch = texts("sft");
  const auto sft = make_objective("sft", batch, {});
  Settings settings;
  settings.chunk = 20;
  const Evaluation expected = verify::evaluate(model, batch, *sft, settings);
  class Failing final : public GradientConsumer {
   public:
    bool frees() const override { return false; }
    void use(const std::vector<Parameter*>& parameters) override {
      if (layer_of(parameters.front()->name) == 1) throw std::runtime_error("no step");
    }
  } failing;
  settings.consumer = &failing;
  EXPECT_THROW(backpropagate(model, batch, *sft, settings), std::runtime_error);
  settings.consumer = nullptr;
  EXPECT_TRUE(bit_equal(verify::evaluate(model, batch, *sft, settings), expected));
}

}  // namespace
}  // namespace streambp
