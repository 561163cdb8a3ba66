// Activations that a streamed forward pass keeps for its backward pass: no bit of a gradient changes, and
// they take the bytes that they should.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/objective/objective.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"
#include "verify/tests/turns.h"

namespace streambp {

using namespace verify;
namespace {

TEST(KeptLayers, AreReadAsTheyAreWritten) {
  for (const char* text : {"none", "attention", "attention:3", "queries", "keys-values,gate-up:12",
                           "attention:1,keys-values:2,attention-half:3,gate-up:4"})
    EXPECT_EQ(kept_layers_text(parse_kept_layers(text)), text);
  EXPECT_EQ(kept_layers_text(parse_kept_layers("gate-up,attention")), "attention,gate-up");
  for (const char* wrong :
       {"", ",", "attention,", "attention,attention:2", "attention:0", "attention:-1", "attention:x",
        "attention:", "inputs", "none,attention", "attention:99999999999999999999"})
    EXPECT_THROW(parse_kept_layers(wrong), InputError) << wrong;
}

TEST(KeptLayers, AreCountedFromTheHighest) {
  EXPECT_TRUE(keeps_of(1, 3, 4));
  EXPECT_FALSE(keeps_of(1, 2, 4));
  EXPECT_FALSE(keeps_of(0, 3, 4));
  EXPECT_TRUE(keeps_of(kAllLayers, 0, 4));
}

/// What is kept in addition to inputs, in the combinations that differ.
const char* const kKept[] = {"attention",
                             "queries",
                             "keys-values",
                             "attention-half",
                             "gate-up",
                             "attention:1",
                             "keys-values,attention-half:2,gate-up:1",
                             "attention,gate-up",
                             "attention,queries:1",
                             "attention,queries,keys-values,attention-half,gate-up"};

/// SFT on three sequences: 13, 37 and 25 tokens, as the sweep packs them.
struct Packed {
  std::string name;
  Model model = equality_model(name, 3, {});
  Batch batch = equality_batch("three", 37, model.config().vocab_size, 5);
  std::unique_ptr<Objective> objective = make_objective("sft", batch);

  Evaluation run(const Settings& settings) { return evaluate(model, batch, *objective, settings); }
};

TEST(KeptActivations, ChangeNoBitOfTheGradients) {
  Turns turns(11);
  // With norms of queries, with biases of them, rotated in place, with experts, with gates of theirs.
  for (const char* name :
       {"qwen3-tiny", "qwen2-tiny", "llama-tiny", "gemma3-tiny", "qwen3-moe-tiny", "qwen3.5-tiny"}) {
    Packed packed{name};
    for (const int64_t chunk : {1, 24, 26, 75}) {
      Settings settings;
      settings.chunk = chunk;
      const Evaluation plain = packed.run(settings);
      for (const char* kept : kKept) {
        settings.keep = parse_kept_layers(kept);
        for (const char* offload : {"none", "host", "host:1"}) {
          for (const int64_t every : {1, 2}) {
            if (!turns.next()) continue;
            settings.every = every;
            set_setting(setting_kind("offload"), settings, offload);
            EXPECT_TRUE(bit_equal(packed.run(settings), plain))
                << name << ": " << configuration_text(settings);
          }
        }
      }
    }
  }
}

TEST(KeptActivations, ComposeWithForwardOrder) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny"}) {
    Packed packed{name};
    Settings settings;
    settings.order = Order::kForward;
    settings.chunk = 9;
    const Evaluation plain = packed.run(settings);
    for (const char* kept : kKept) {
      settings.keep = parse_kept_layers(kept);
      // Keys of a whole prefix come out of one product instead of one for each chunk: BLAS libraries may
      // round the two differently.
      const double error = measure(packed.run(settings), plain).worst();
      EXPECT_TRUE(error <= 1e-14) << name << ", " << kept << ": " << error;
    }
  }
}

TEST(KeptActivations, TakeTheBytesOfTheirShapes) {
  // float64; 75 tokens through two layers of 32, 4 heads of 16 and 2 of keys and values, an MLP of 44.
  const std::map<std::string, std::pair<std::string, int64_t>> cases{
      {"attention", {"attention outputs", 4 * 16 + 4}},
      {"queries", {"projected queries", 4 * 16}},
      {"keys-values", {"projected keys and values", 2 * 2 * 16}},
      {"attention-half", {"attention halves", 32}},
      {"gate-up", {"gate and up projections", 2 * 44}}};
  install_meters();
  Packed packed{"qwen3-tiny"};
  Settings settings;
  settings.chunk = 25;
  settings.stream_head = false;  // the last layer is kept too
  for (const auto& [kind, expected] : cases) {
    const auto& [scope, width] = expected;
    for (const int64_t layers : {1, 2}) {
      for (const char* offload : {"none", "host:1"}) {
        settings.keep = parse_kept_layers(fmt::format("{}:{}", kind, layers));
        set_setting(setting_kind("offload"), settings, offload);
        reset_peak(at::kCPU);
        packed.run(settings);
        const MemoryReading reading = read_meter(at::kCPU);
        // Of two layers the lower one's go to the host; of one kept layer, the higher, nothing does.
        const int64_t on_host = settings.offload_layers && layers == 2 ? 1 : 0;
        const int64_t bytes = 75 * width * 8;
        EXPECT_EQ(reading.host_peak_bytes, on_host * bytes) << configuration_text(settings);
        const auto found = reading.at_peak.find(scope);
        ASSERT_NE(found, reading.at_peak.end()) << configuration_text(settings);
        EXPECT_EQ(found->second, (layers - on_host) * bytes) << configuration_text(settings);
      }
    }
  }
}

TEST(KeptActivations, IncludeTheChoicesOfExperts) {
  install_meters();
  Packed packed{"qwen3-moe-tiny"};
  const Config& config = packed.model.config();
  const auto sparse = std::count(config.mixture.sparse.begin(), config.mixture.sparse.end(), true);
  for (const Method method :
       {Method::kCheckpoint, Method::kStreambp, Method::kTiled, Method::kChunkMajor, Method::kStandard}) {
    Settings settings;
    settings.method = method;
    settings.chunk = is_chunked(method) ? 25 : 0;
    settings.stream_head = false;  // the last layer runs twice too
    reset_peak(at::kCPU);
    backpropagate(packed.model, packed.batch, *packed.objective, settings);
    // A byte for each of a token's experts, where layers run again.
    const int64_t bytes = method == Method::kStandard ? 0 : sparse * 75 * config.mixture.num_experts_per_tok;
    const MemoryReading reading = read_meter(at::kCPU);
    const auto found = reading.at_peak.find("router choices");
    EXPECT_EQ(found == reading.at_peak.end() ? 0 : found->second, bytes) << method_name(method);
  }
}

TEST(KeptActivations, HaveTheirHostMemoryReserved) {
  install_meters();
  Packed packed{"qwen3-tiny"};
  for (const char* kept : {"attention,gate-up:1", "attention:1,keys-values,attention-half,gate-up"}) {
    for (const char* offload : {"none", "host", "host:0", "host:1"}) {
      for (const int64_t every : {1, 2}) {
        Settings settings;
        settings.chunk = 25;
        settings.keep = parse_kept_layers(kept);
        settings.every = every;
        settings.stream_head = false;
        set_setting(setting_kind("offload"), settings, offload);
        reset_peak(at::kCPU);
        packed.run(settings);
        const int64_t taken = read_meter(at::kCPU).host_peak_bytes;
        reset_peak(at::kCPU);
        reserve_host_memory(packed.model, 75, settings);
        const MemoryReading reserved = read_meter(at::kCPU);
        EXPECT_EQ(reserved.host_peak_bytes, taken) << configuration_text(settings);
      }
    }
  }
}

}  // namespace
}  // namespace streambp
