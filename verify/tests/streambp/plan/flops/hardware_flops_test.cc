// What the records say that a method executes, held against a count by hand and against the products that
// ATen is really called for.
#include "streambp/plan/flops/hardware_flops.h"

#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/record_function.h>

#include "bench/baseline/hugging_face.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/plan/flops/delta_rule_flops.h"
#include "streambp/plan/flops/model_flops.h"
#include "verify/equality/batches.h"
#include "verify/tests/streambp/model/adapter_testing.h"
#include "verify/tests/turns.h"

namespace streambp::plan {

using namespace verify;
namespace {

double executed_flops = 0.0;
// Of the products that mix streams as many, and as wide; other batches of products are within what is counted
// as a whole.
double mixed_streams = 0.0, mixed_width = 0.0;

double size(const c10::IValue& tensor, int64_t dimension) {
  return static_cast<double>(tensor.toTensor().size(dimension));
}

std::unique_ptr<at::ObserverContext> count_products(const at::RecordFunction& function) {
  const std::string name = function.name();
  const auto inputs = function.inputs();
  if (name == "aten::mm") {
    executed_flops += 2.0 * size(inputs[0], 0) * size(inputs[0], 1) * size(inputs[1], 1);
  } else if (name == "aten::bmm" && size(inputs[0], 1) == mixed_streams &&
             std::max(size(inputs[0], 2), size(inputs[1], 2)) == mixed_width) {
    executed_flops += 2.0 * size(inputs[0], 0) * size(inputs[0], 1) * size(inputs[0], 2) * size(inputs[1], 2);
  } else if (name == "aten::addmm" || name == "aten::addmm_") {
    executed_flops += 2.0 * size(inputs[1], 0) * size(inputs[1], 1) * size(inputs[2], 1);
  } else if (name == "streambp::attention" || name == "streambp::attention_backward") {
    // Queries [n, H, E] and how many pairs of a query and a key see each other.
    const double product =
        2.0 * size(inputs[0], 1) * size(inputs[0], 2) * static_cast<double>(inputs[1].toInt());
    executed_flops += product * (name == "streambp::attention" ? 2.0 : 5.0);
  } else if (name == "streambp::target_head" || name == "streambp::target_head_backward") {
    // Rows [n, D] and the weight [V, D]: logits and, where a backward pass follows, what the gradient of the
    // rows needs; the gradient of the weight, where it is trained.
    const double product = 2.0 * size(inputs[0], 0) * size(inputs[0], 1) * size(inputs[1], 0);
    executed_flops +=
        product * ((name == "streambp::target_head" ? 1.0 : 0.0) + (inputs[2].toBool() ? 1.0 : 0.0));
  } else if (name == "streambp::delta_rule" || name == "streambp::delta_rule_backward") {
    // Blocks of one size: what a token takes is the library's own count, how often it is taken is not.
    const DeltaRuleFlops one = delta_rule_flops({.key_heads = inputs[1].toInt(),
                                                 .value_heads = inputs[2].toInt(),
                                                 .key_head_dim = inputs[3].toInt(),
                                                 .value_head_dim = inputs[4].toInt(),
                                                 .state_space = !inputs[6].toBool(),
                                                 .channel_gates = inputs[7].toBool()});
    const double outputs = inputs[5].toBool() ? one.forward : one.state;
    executed_flops += size(inputs[0], 0) * (name == "streambp::delta_rule" ? outputs : one.backward);
  }
  return nullptr;
}

/// Of the matrix products and attention kernels that `run` calls.
double executed(const std::function<void()>& run) {
  executed_flops = 0.0;
  const auto callback = at::addGlobalCallback(
      at::RecordFunctionCallback(&count_products).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(callback);
  return executed_flops;
}

struct NamedSettings {
  std::string name;
  Settings settings;
};

std::vector<NamedSettings> all_settings() {
  bench::add_baselines();
  std::vector<NamedSettings> all;
  const auto add = [&](const std::string& name, const std::function<void(Settings&)>& change) {
    Settings settings;
    settings.chunk = 7;
    settings.head_chunk = 5;
    change(settings);
    if (!is_chunked(settings.method)) settings.chunk = 0;
    all.push_back({name, settings});
  };
  add("standard", [](Settings& s) { s.method = Method::kStandard; });
  add("standard, head streamed", [](Settings& s) { s.method = Method::kStandard, s.stream_head = true; });
  add("checkpoint", [](Settings& s) { s.method = Method::kCheckpoint; });
  add("checkpoint, Hugging Face's",
      [](Settings& s) { s.method = Method::kCheckpoint, s.baseline = "hugging-face"; });
  add("streambp", [](Settings&) {});
  add("streambp, chunk 1", [](Settings& s) { s.chunk = 1; });
  add("streambp, one chunk", [](Settings& s) { s.chunk = 1000; });
  add("streambp, head in full", [](Settings& s) { s.stream_head = false; });
  add("streambp, attention kept", [](Settings& s) { s.keep.attention = kAllLayers; });
  add("streambp, forward order", [](Settings& s) { s.order = Order::kForward; });
  add("logits-only", [](Settings& s) { s.method = Method::kLogitsOnly; });
  add("tiled", [](Settings& s) { s.method = Method::kTiled; });
  add("chunk-major", [](Settings& s) { s.method = Method::kChunkMajor; });
  add("streambp, every 2", [](Settings& s) { s.every = 2; });
  add("streambp, every 2, attention kept", [](Settings& s) { s.every = 2, s.keep.attention = kAllLayers; });
  for (const char* kept : {"keys-values", "attention-half", "gate-up", "queries", "attention,queries:2",
                           "attention:1,keys-values:2,gate-up:1", "queries,attention-half",
                           "attention,queries,keys-values,attention-half,gate-up"}) {
    for (const int64_t every : {1, 2}) {
      add(fmt::format("streambp, every {}, {} kept", every, kept),
          [&](Settings& s) { s.every = every, s.keep = parse_kept_layers(kept); });
    }
  }
  add("streambp, forward order, keys and values kept", [](Settings& s) {
    s.order = Order::kForward, s.keep = parse_kept_layers("queries,keys-values,gate-up");
  });
  return all;
}

void expect_all_as_executed(Model& model, const Batch& batch, const std::string& objective,
                            const std::map<std::string, std::string>& options, const std::string& what,
                            Model* teacher = nullptr) {
  static Turns turns(5);
  const auto made = make_objective(objective, batch, options);
  for (const auto& [name, settings] : all_settings()) {
    if (!turns.next()) continue;
    model.zero_gradients();
    const double run = executed([&] { backpropagate(model, batch, *made, settings, teacher); });
    const double counted = hardware_flops(model, batch, *made, settings, teacher);
    EXPECT_GT(run, 0.0) << what << ", " << name;
    EXPECT_TRUE(std::abs(counted - run) <= 1e-12 * run)
        << what << ", " << name << ": counted " << counted << ", executed " << run;
  }
}

Model frozen(const std::string& preset_name) {
  return equality_model(preset_name, 3, [](const std::string&) { return false; });
}

TEST(HardwareFlops, AreThoseOfTheProductsThatAreExecuted) {
  for (const char* name : {"qwen3-tiny",
                           "qwen2-tiny",
                           "llama-tied-tiny",
                           "gemma3-tiny",
                           "mistral-tiny",
                           "phi3-tiny",
                           "qwen3-moe-tiny",
                           "qwen3-moe-plain-tiny",
                           "gpt-oss-tiny",
                           "deepseek-v3-tiny",
                           "deepseek-v3-plain-tiny",
                           "glm4-moe-tiny",
                           "gemma4-tiny",
                           "gemma4-per-layer-tiny",
                           "gemma4-moe-tiny",
                           "granite-hybrid-tiny",
                           "granite-hybrid-moe-tiny",
                           "ernie4-5-moe-tiny",
                           "lfm2-moe-tiny",
                           "lfm3-tiny",
                           "falcon-h1-tiny",
                           "kimi-linear-tiny",
                           "step3p7-tiny",
                           "muse-glimmer-tiny",
                           "muse-spark-tiny"}) {
    Model model = equality_model(name, 3);
    const int64_t vocabulary = model.config().vocab_size;
    expect_all_as_executed(model, equality_batch("masked", 23, vocabulary, 5), "sft", {}, name);
    Model adapted = frozen(name);
    adapted.attach_adapters({3, 6.0, false, {kAllLinear}}, 7);
    expect_all_as_executed(adapted, equality_batch("three", 23, vocabulary, 5), "sft", {},
                           std::string(name) + ", LoRA");
  }
}

// Of rows that see all rows up to themselves, since picked ones are products under a mask.
TEST(HardwareFlops, CountTheGatesOfStreams) {
  nlohmann::json config = nlohmann::json::parse(preset_json("hy-v4-tiny"));
  config["index_topk"] = 64;
  Model model = Model::random(parse_config(config.dump(), "hy-v4-tiny"),
                              {.dtype = at::kDouble, .gradient_dtype = at::kDouble}, 3);
  expect_all_as_executed(model, equality_batch("masked", 23, model.config().vocab_size, 5), "sft", {},
                         "hy-v4-tiny");
  Model adapted = Model::random(model.config(),
                                {.dtype = at::kDouble,
                                 .gradient_dtype = at::kDouble,
                                 .trainable = [](const std::string&) { return false; }},
                                3);
  adapted.attach_adapters({3, 6.0, false, {kAllLinear}}, 7);
  expect_all_as_executed(adapted, equality_batch("three", 23, model.config().vocab_size, 5), "sft", {},
                         "hy-v4-tiny, LoRA");
}

// Of rows that see all rows up to themselves.
TEST(HardwareFlops, CountLatentLayersThatDoNotRotate) {
  for (const char* name : {"mistral-large4-tiny", "glm5-next-tiny"}) {
    const Config streams = preset(name);
    mixed_streams = static_cast<double>(streams.hyper.streams);
    mixed_width = static_cast<double>(streams.hidden_size);
    nlohmann::json config = nlohmann::json::parse(preset_json(name));
    config["index_topk"] = 66;
    Model model = Model::random(parse_config(config.dump(), name),
                                {.dtype = at::kDouble, .gradient_dtype = at::kDouble}, 3);
    expect_all_as_executed(model, equality_batch("masked", 23, model.config().vocab_size, 5), "sft", {},
                           name);
  }
  mixed_streams = 0.0;
}

TEST(ModelFlops, CountTheRowsOfPickedGroups) {
  const std::vector<int64_t> lengths{23, 7};
  nlohmann::json json = nlohmann::json::parse(preset_json("glm5-next-tiny"));
  const int64_t size = json.at("index_kpool");
  // Of at most `rows` in groups that have ended, and those of its own group up to itself.
  const auto pairs = [&](int64_t rows) {
    int64_t sum = 0;
    for (const int64_t length : lengths)
      for (int64_t row = 1; row <= length; ++row) sum += std::min(row / size * size, rows) + row % size;
    return sum;
  };
  const auto flops = [&](int64_t rows) {
    json["index_topk"] = rows;
    return model_flops(Model::random(parse_config(json.dump(), "glm5-next-tiny"), {}, 3), lengths);
  };
  const Config config = preset("glm5-next-tiny");
  int64_t width = 0;  // of what a pair is multiplied with, over the layers that attend
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    if (config.attends(layer)) width += config.query_width(layer) + config.attention_width(layer);
  ASSERT_GT(width, 0);
  EXPECT_EQ(flops(3 * size) - flops(size),
            6.0 * static_cast<double>(width * (pairs(3 * size) - pairs(size))));
}

// Likewise.
TEST(HardwareFlops, CountTheMlpsOfLayersThatPickBlocksOfKeys) {
  nlohmann::json config = nlohmann::json::parse(preset_json("minimax-m3-tiny"));
  config["index_topk_blocks"] = 64;
  Model model = Model::random(parse_config(config.dump(), "minimax-m3-tiny"),
                              {.dtype = at::kDouble, .gradient_dtype = at::kDouble}, 3);
  expect_all_as_executed(model, equality_batch("masked", 23, model.config().vocab_size, 5, false), "sft", {},
                         "minimax-m3-tiny");
}

// Likewise, with n-grams and a head that reads streams.
TEST(HardwareFlops, CountTheMapsOfStreams) {
  nlohmann::json config = nlohmann::json::parse(preset_json("qwen4-exp-tiny"));
  config["indexer_budget"] = 66;
  const auto made = [&](bool trains) {
    return Model::random(parse_config(config.dump(), "qwen4-exp-tiny"),
                         {.dtype = at::kDouble,
                          .gradient_dtype = at::kDouble,
                          .trainable = [=](const std::string&) { return trains; }},
                         3);
  };
  Model model = made(true), adapted = made(false);
  expect_all_as_executed(model, equality_batch("masked", 23, model.config().vocab_size, 5), "sft", {},
                         "qwen4-exp-tiny");
  adapted.attach_adapters({3, 6.0, false, {kAllLinear}}, 7);
  expect_all_as_executed(adapted, equality_batch("three", 23, model.config().vocab_size, 5), "sft", {},
                         "qwen4-exp-tiny, LoRA");
}

// Chunks leave states for which a shared block runs once more.
TEST(HardwareFlops, CountBlocksAsOftenAsTheyRun) {
  for (const char* name : {"zamba2-tiny", "zamba2-plain-tiny"}) {
    Model model = equality_model(name, 3);
    expect_all_as_executed(model, equality_batch("masked", 23, model.config().vocab_size, 5), "sft", {},
                           name);
    Model adapted = frozen(name);
    adapted.attach_adapters({3, 6.0, false, {kAllLinear}}, 7);
    expect_all_as_executed(adapted, equality_batch("three", 23, model.config().vocab_size, 5), "sft", {},
                           std::string(name) + ", LoRA");
  }
}

TEST(HardwareFlops, LeaveOutWhatIsFrozen) {
  const Config config = preset("llama-tiny");
  for (const Trainable& trainable : trainable_choices(config)) {
    Model model = equality_model("llama-tiny", 3, trainable.chosen);
    expect_all_as_executed(model, equality_batch("three", 23, config.vocab_size, 5), "sft", {},
                           trainable.name);
  }
  Model adapted = frozen("qwen2-tiny");
  adapted.attach_adapters({2, 2.0, false, {"q_proj", "down_proj"}}, 7);
  expect_all_as_executed(adapted, equality_batch("single", 23, 101, 5), "sft", {}, "two adapters");
}

TEST(HardwareFlops, CountAdaptersOfEveryKind) {
  for (const AdapterVariant& variant : adapter_variants()) {
    const auto& targets = variant.lora.target_modules;
    // What the look-up's adapter takes is not counted.
    if (std::find(targets.begin(), targets.end(), "embed_tokens") != targets.end()) continue;
    if (variant.preset == "gemma2-tiny") continue;  // its attention's products are not counted above
    Model model = adapted_model(variant);
    const int64_t vocabulary = model.config().vocab_size;
    expect_all_as_executed(model, equality_batch("masked", 23, vocabulary, 5), "sft", {}, variant.name);
  }
}

TEST(HardwareFlops, CountASecondHeadPassAndATeacher) {
  Model model = equality_model("qwen3-tiny", 3);
  const std::map<std::string, std::string> free{{"reference_free", "true"}};
  const ObjectiveKind& dpo = objective_kind("dpo");
  expect_all_as_executed(model, synthetic_batch(dpo, complete_options(dpo, free), 2, 30, 101, 1), "dpo", free,
                         "dpo");
  Model teacher = equality_model("llama-tied-tiny", 4, [](const std::string&) { return false; });
  expect_all_as_executed(model, equality_batch("masked", 37, 101, 5), "distill", {}, "distill", &teacher);
}

TEST(HardwareFlops, AreThoseCountedByHand) {
  // Two layers; D 32, four query heads and two key heads of 16, F 44, V 101; one sequence of 12 tokens.
  const Model model = equality_model("qwen3-tiny", 3);
  const Batch batch = equality_batch("single", 12, 101, 5);
  const auto made = make_objective("sft", batch);
  const double scored = static_cast<double>(count(batch).scored);
  const double tokens = 12.0, layers = 2.0, pairs = 78.0;
  const double queries = 32 * 64, keys_values = 2 * 32 * 32, output = 64 * 32, mlp = 3 * 32 * 44,
               head = 32 * 101;
  const double linear = 2.0 * tokens * (queries + keys_values + output + mlp);
  const double attention = 4.0 * 64.0 * pairs;
  const double full_head = 2.0 * tokens * head, streamed_head = 2.0 * scored * head;
  Settings settings;
  const auto flops = [&] { return hardware_flops(model, batch, *made, settings); };

  settings.method = Method::kStandard;
  const double standard = layers * (3.0 * linear + 3.5 * attention) + 3.0 * full_head;
  EXPECT_EQ(flops(), standard);
  EXPECT_EQ(flops() - model_flops(model, {12}), layers * 0.5 * attention)
      << "standard executes what the model asks for, and the scores once more";
  settings.method = Method::kCheckpoint;
  const double down = 2.0 * tokens * 32 * 44;  // nobody reads the output of a layer that runs again
  EXPECT_EQ(flops(), standard + layers * (linear - down + attention));
  settings.baseline = "hugging-face";
  EXPECT_EQ(flops(), standard + layers * (linear + attention));
  settings.baseline = "fair";
  settings.method = Method::kStreambp;
  settings.chunk = 5;  // 5 + 5 + 2: ten tokens' keys and values are somebody's prefix
  const double streamed = layers * (4.0 * linear + 4.5 * attention + 2.0 * 10.0 * keys_values) -
                          (linear + attention) -  // the last layer is run once
                          (layers - 1.0) * down + 3.0 * streamed_head;
  EXPECT_TRUE(std::abs(flops() - streamed) <= 1e-12 * streamed) << flops() << ", by hand " << streamed;
  settings.keep.attention = kAllLayers;
  EXPECT_TRUE(std::abs(flops() - (streamed - (layers - 1.0) * attention)) <= 1e-12 * streamed) << flops();
}

}  // namespace
}  // namespace streambp::plan
