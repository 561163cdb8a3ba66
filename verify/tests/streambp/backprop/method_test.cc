// The methods' names, and what the sweep of streambp-verify does not reach: settings that compose with an
// order, and layers below the lowest trainable one.
#include "streambp/backprop/method.h"

#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/objective/objective.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"

namespace streambp {

using namespace verify;
namespace {

TEST(Methods, AreKnownByName) {
  // Records and scripts name them.
  for (const char* name : {"standard", "checkpoint", "streambp", "tiled", "logits-only", "chunk-major"})
    EXPECT_EQ(method_name(parse_method(name)), name);
  EXPECT_THROW(parse_method("seco"), InputError);
}

TEST(Methods, ChunksAreChosenWithinTheStream) {
  const c10::Device cpu = at::kCPU, gpu = at::kCUDA;
  EXPECT_EQ(auto_chunk(7, cpu), 7);
  EXPECT_EQ(auto_chunk(300, cpu), 256);
  EXPECT_EQ(auto_chunk(1025, cpu), 512);
  EXPECT_EQ(auto_chunk(100000, cpu), 1024);
  EXPECT_EQ(auto_chunk(7, cpu, Method::kChunkMajor), 7);
  EXPECT_EQ(auto_chunk(100000, cpu, Method::kChunkMajor), 256);
  EXPECT_EQ(auto_chunk(7, gpu), 7);
  EXPECT_EQ(auto_chunk(8000, gpu), 8000);
  EXPECT_EQ(auto_chunk(8192, gpu), 8192);
  EXPECT_EQ(auto_chunk(100000, gpu), 8192);
  EXPECT_EQ(auto_chunk(100000, at::kMeta), auto_chunk(100000, cpu));
}

TEST(Methods, ValuesNeedAValueHead) {
  Model model = equality_model("qwen3-tiny", 3);
  Batch batch = random_batch({3, 2}, 101, 5);
  batch.targets.fill_(kNoTarget);
  score_ends(batch);
  for (const Method method : {Method::kStandard, Method::kCheckpoint, Method::kStreambp}) {
    Settings settings;
    settings.method = method;
    try {
      evaluate(model, batch, *make_objective("reward", batch), settings);
      ADD_FAILURE() << method_name(method) << " gave a loss";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("no value head"), std::string::npos) << error.what();
    }
  }
}

TEST(Methods, DistillationNeedsATeacherWithAHead) {
  Model model = equality_model("qwen3-tiny", 3);
  Config config = model.config();
  config.value_model = true;
  const Model::Placement placement{at::kDouble, at::kCPU, at::kDouble,
                                   [](const std::string&) { return false; }};
  Model headless = Model::random(config, placement, 4);
  const Batch batch = random_batch({3, 2}, 101, 5);
  const auto objective = make_objective("distill", batch);
  for (Model* teacher : {static_cast<Model*>(nullptr), &headless}) {
    try {
      evaluate(model, batch, *objective, {}, teacher);
      ADD_FAILURE() << (teacher == nullptr ? "no teacher" : "a teacher without a head") << " gave a loss";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("needs a teacher model"), std::string::npos) << error.what();
    }
  }
}

/// sft on three sequences: 13, 37 and 25 tokens, as the sweep packs them.
struct PackedRun {
  std::string name;
  std::function<bool(const std::string&)> trainable = {};
  Batch batch = equality_batch("three", 37, preset(name).vocab_size, 5);

  Evaluation run(Model& model, const Settings& settings) const {
    return evaluate(model, batch, *make_objective("sft", batch), settings);
  }
  Model model() const { return equality_model(name, 3, trainable); }
};

TEST(ForwardOrder, ComposesWithWhatIsKept) {
  for (const char* name : {"gemma3-tiny", "qwen3-moe-tiny"}) {
    const PackedRun packed{name};
    Model model = packed.model();
    Settings settings;
    settings.order = Order::kForward;
    settings.chunk = 9;
    const Evaluation plain = packed.run(model, settings);
    settings.every = 2;
    settings.offload = Offload::kHost;
    EXPECT_TRUE(bit_equal(packed.run(model, settings), plain)) << name;
    // In this order attention that runs again sees keys out of one product over the whole prefix, where the
    // forward pass had one for each chunk: BLAS libraries may round the two differently.
    settings.keep.attention = kAllLayers;
    const double error = measure(packed.run(model, settings), plain).worst();
    EXPECT_TRUE(error <= 1e-14) << name << " " << error;
  }
}

/// Gemma 4's: chunks and layers leave gradients for the same rows.
TEST(Methods, SumWhatLayersAndChunksLeaveForSharedKeysAndValues) {
  const PackedRun packed{"gemma4-per-layer-tiny"};
  Model model = packed.model();
  ASSERT_GT(model.config().gemma4.num_kv_shared_layers, 1);
  Settings settings;
  settings.method = Method::kStandard;
  const Evaluation standard = packed.run(model, settings);
  for (const Method method : {Method::kStreambp, Method::kChunkMajor}) {
    for (const int64_t chunk : {9, 20, 75}) {
      settings.method = method;
      settings.chunk = chunk;
      const EvaluationErrors errors = measure(packed.run(model, settings), standard);
      EXPECT_TRUE(errors.worst() <= 1e-12)
          << configuration_text(settings) << ": " << errors.worst() << " in " << errors.worst_parameter();
    }
  }
}

TEST(Methods, StopAboveFrozenLayers) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny"}) {
    const int64_t layers = preset(name).num_hidden_layers;
    for (int64_t lowest = 0; lowest <= layers; ++lowest) {
      const PackedRun packed{name, [=](const std::string& parameter) {
                               if (parameter == "model.norm.weight") return true;
                               for (int64_t layer = lowest; layer < layers; ++layer) {
                                 if (parameter.starts_with(fmt::format("model.layers.{}.", layer)))
                                   return true;
                               }
                               return false;
                             }};
      Model model = packed.model();
      ASSERT_EQ(model.lowest_trainable_layer(), lowest);
      Settings settings;
      settings.method = Method::kStandard;
      const Evaluation standard = packed.run(model, settings);
      settings.chunk = 9;
      for (const std::string& method : method_names()) {
        settings.method = parse_method(method);
        const EvaluationErrors errors = measure(packed.run(model, settings), standard);
        EXPECT_TRUE(errors.worst() <= 1e-12)
            << name << ", " << method << ", lowest " << lowest << ": " << errors.worst();
      }
    }
  }
}

/// Each of the head's chunks adds to the final norm's gradient: rounded to float32 with every one of them, it
/// has 1.5 times the error that it has with one chunk.
TEST(Methods, ManyChunksOfTheHeadRoundTheNormsGradientOnce) {
  const Config config = preset("gemma3-tiny");
  Model model = Model::random(config, {at::kFloat, at::kCPU, at::kFloat, {}}, 3);
  Model wide = Model::random(config, {at::kDouble, at::kCPU, at::kDouble, {}}, 3);
  for (const auto& parameter : model.parameters())
    wide.parameter(parameter->name).value.copy_(parameter->value);
  constexpr int64_t kTokens = 1024;
  double squares_of_one = 0.0, squares_of_many = 0.0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Batch batch = random_batch({kTokens}, config.vocab_size, seed);
    const auto objective = make_objective("sft", batch);
    Settings settings;
    settings.method = Method::kLogitsOnly;
    const auto gradient_of = [&](Model& of, int64_t head_chunk) {
      settings.head_chunk = head_chunk;
      return evaluate(of, batch, *objective, settings).gradients.at("model.norm.weight").to(at::kDouble);
    };
    const at::Tensor truth = gradient_of(wide, kTokens);
    const auto square = [&](const at::Tensor& got) { return (got - truth).square().sum().item<double>(); };
    squares_of_one += square(gradient_of(model, kTokens));
    squares_of_many += square(gradient_of(model, 1));
  }
  const double ratio = std::sqrt(squares_of_many / squares_of_one);
  fmt::print("{:.2f} x the error of one chunk\n", ratio);
  EXPECT_TRUE(ratio <= 1.15) << ratio;
}

}  // namespace
}  // namespace streambp
