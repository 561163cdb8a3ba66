// What the planner says of a method's work and memory, held against counts by hand: how often it runs each
// part of a layer, how many numbers of a token it keeps or sends away, how many rows of logits it takes at
// once.
#include "streambp/backprop/layer_runs.h"

#include <array>
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"

namespace streambp {
namespace {

/// Five layers of a small Qwen3 whose widths all differ: a token has 24 numbers of attention, 12 of keys and
/// values, 32 of a hidden state and 88 of gate and up.
Config five_layers() {
  Config config = preset("qwen3-tiny");
  config.num_hidden_layers = 5;
  config.num_key_value_heads = 1;
  config.head_dim = config.rotary_dim = 6;
  config.windows.assign(5, 0);
  return config;
}

Config with_window(int64_t window) {
  Config config = five_layers();
  config.windows.assign(5, window);
  return config;
}

/// The first layer recurrent.
Config with_states() {
  Config config = five_layers();
  config.linear_attention = {true, false, false, false, false};
  return config;
}

/// The layers 0 and 2 with experts.
Config with_experts() {
  Config config = five_layers();
  config.mixture.num_experts = 4;
  config.mixture.sparse = {true, false, true, false, false};
  return config;
}

/// Layers 3 and 4 read the keys and values of lower ones, and their MLPs are twice as wide.
Config with_shared() {
  Config config = five_layers();
  config.gemma4.num_kv_shared_layers = 2;
  config.gemma4.use_double_wide_mlp = true;
  return config;
}

Config with_norms_after() {
  Config config = five_layers();
  config.sandwich_norms = true;
  return config;
}

Settings settings_of(int64_t chunk, const std::string& keep = "none", Order order = Order::kReverse) {
  Settings settings;
  settings.chunk = chunk;
  settings.keep = parse_kept_layers(keep);
  settings.order = order;
  return settings;
}

/// projections, attention, output, mlp, down, keys_values, keys_values_backward, prefixes.
using Runs = std::array<double, 8>;

Runs numbers(const LayerRuns& runs) {
  return {runs.projections,          runs.attention, runs.output, runs.mlp, runs.down, runs.keys_values,
          runs.keys_values_backward, runs.prefixes};
}

struct ByChunks {
  const char* what;
  Config config;
  Settings settings;
  std::vector<int64_t> lengths;
  int64_t layer;
  bool joined;
  Runs expected;
};

TEST(LayerRuns, OfChunksAreThoseOfEachSetting) {
  const std::vector<int64_t> two{10, 3};  // chunks of 4 begin at 4 and 8 of the first, at 2 of the second
  const Config plain = five_layers();
  const Settings four = settings_of(4);
  const auto kept = [](const std::string& keep) { return settings_of(4, keep); };
  const auto forward = [](const std::string& keep) { return settings_of(4, keep, Order::kForward); };
  const double last = 12.0 / 13.0,
               seen = 14.0 / 13.0;  // all but the last token; the rows that chunks look at
  Settings unfair = four;
  unfair.baseline = "hugging-face";
  const std::vector<ByChunks> cases{
      {"plain", plain, four, two, 0, false, {2, 2, 2, 2, 1, last, 0, seen}},
      {"joined", plain, four, two, 4, true, {1, 1, 1, 1, 1, last, 0, seen}},
      {"chunks end with sequences", plain, four, {8, 4}, 0, false, {2, 2, 2, 2, 1, 8.0 / 12, 0, 4.0 / 12}},
      {"chunks across sequences", plain, settings_of(6), {8, 4}, 0, false, {2, 2, 2, 2, 1, 0.5, 0, 0.5}},
      {"one chunk", plain, settings_of(13), two, 0, false, {2, 2, 2, 2, 1, 0, 0, 0}},
      {"a window of 5", with_window(5), four, two, 0, false, {2, 2, 2, 2, 1, last, 0, 10.0 / 13}},
      {"a window of 3", with_window(3), four, two, 0, false, {2, 2, 2, 2, 1, last, 0, 6.0 / 13}},
      {"norms after", with_norms_after(), four, two, 0, false, {2, 2, 2, 2, 2, last, 0, seen}},
      {"another's ops", plain, unfair, two, 0, false, {2, 2, 2, 2, 2, last, 0, seen}},
      {"attention", plain, kept("attention"), two, 0, false, {2, 1, 2, 2, 1, last, 0, seen}},
      {"attention of four", plain, kept("attention:4"), two, 0, false, {2, 2, 2, 2, 1, last, 0, seen}},
      {"attention of four", plain, kept("attention:4"), two, 1, false, {2, 1, 2, 2, 1, last, 0, seen}},
      {"keys", plain, kept("keys-values"), two, 0, false, {2, 2, 2, 2, 1, -1, 0, seen}},
      {"keys, joined", plain, kept("keys-values"), two, 4, true, {1, 1, 1, 1, 1, last, 0, seen}},
      {"keys of one", plain, kept("keys-values:1"), two, 3, false, {2, 2, 2, 2, 1, last, 0, seen}},
      {"half", plain, kept("attention-half"), two, 0, false, {2, 2, 1, 2, 1, last, 0, seen}},
      {"gate-up", plain, kept("gate-up"), two, 0, false, {2, 2, 2, 1, 1, last, 0, seen}},
      {"gate-up of experts", with_experts(), kept("gate-up"), two, 0, false, {2, 2, 2, 2, 1, last, 0, seen}},
      {"gate-up of a dense layer",
       with_experts(),
       kept("gate-up"),
       two,
       1,
       false,
       {2, 2, 2, 1, 1, last, 0, seen}},
      {"states", with_states(), kept("attention,keys-values"), two, 0, false, {2, 2, 2, 2, 1, last, 0, 0}},
      {"next to states", with_states(), kept("attention"), two, 1, false, {2, 1, 2, 2, 1, last, 0, seen}},
      {"forward", plain, forward("none"), two, 0, false, {2, 2, 2, 2, 2, seen, seen, seen}},
      {"forward, keys", plain, forward("keys-values"), two, 0, false, {2, 2, 2, 2, 2, -1, seen, seen}},
      {"forward, keys, joined",
       plain,
       forward("keys-values"),
       two,
       4,
       true,
       {1, 1, 1, 1, 1, seen, seen, seen}},
      {"forward, states", with_states(), forward("keys-values"), two, 0, false, {2, 2, 2, 2, 1, last, 0, 0}},
      {"forward, shared keys",
       with_shared(),
       forward("none"),
       two,
       3,
       false,
       {2, 2, 2, 2, 1, last, 0, seen}}};
  for (const ByChunks& one : cases) {
    const LayerRuns runs = run_again_by_chunks(one.settings, one.lengths, one.config, one.layer, one.joined);
    EXPECT_EQ(numbers(runs), one.expected) << one.what << ", layer " << one.layer;
  }
}

TEST(LayerRuns, ProjectQueriesOnceLessWhereTheyAreKept) {
  const std::vector<int64_t> two{10, 3};
  const auto queries = [&](const Config& config, const std::string& keep, int64_t layer, bool joined) {
    return run_again_by_chunks(settings_of(4, keep), two, config, layer, joined).queries;
  };
  EXPECT_EQ(queries(five_layers(), "attention,keys-values", 0, false), 0);
  EXPECT_EQ(queries(five_layers(), "queries", 0, false), -1);
  EXPECT_EQ(queries(five_layers(), "queries", 4, true), 0) << "goes through the head, run once";
  EXPECT_EQ(queries(five_layers(), "queries:2", 2, false), 0);
  EXPECT_EQ(queries(five_layers(), "queries:2", 3, false), -1);
  EXPECT_EQ(queries(with_states(), "queries", 0, false), 0);
  EXPECT_EQ(queries(with_shared(), "queries", 3, false), -1) << "its queries are its own";
  Settings every = settings_of(4, "queries");
  every.every = 2;
  EXPECT_EQ(rebuild_by_every(every, five_layers(), 1, 1).value().queries, -1);
  EXPECT_EQ(rebuild_by_every(every, with_states(), 0, 0).value().queries, 0);
}

TEST(LayerRuns, OfOtherMethodsAreTheirs) {
  const Config plain = five_layers();
  const std::vector<int64_t> two{10, 3};
  const Settings four = settings_of(4);
  const double seen = 14.0 / 13.0;
  const Runs once{1, 1, 1, 1, 1, 0, 0, 0};
  EXPECT_EQ(numbers(run_once(four, two, plain, 0, false)), once);
  EXPECT_EQ(numbers(run_again(four, two, plain, 0, false)), (Runs{2, 2, 2, 2, 1, 0, 0, 0}));
  EXPECT_EQ(numbers(run_again(four, two, with_norms_after(), 0, false)), (Runs{2, 2, 2, 2, 2, 0, 0, 0}));
  EXPECT_EQ(numbers(run_again(four, two, plain, 4, true)), once);
  // The output of each layer but the last goes into the next one's graph.
  EXPECT_EQ(numbers(run_again_chunk_major(four, two, plain, 3, false)), (Runs{2, 2, 2, 2, 2, 0, 0, seen}));
  EXPECT_EQ(numbers(run_again_chunk_major(four, two, plain, 4, false)), (Runs{2, 2, 2, 2, 1, 0, 0, seen}));
  EXPECT_EQ(numbers(run_again_chunk_major(four, two, with_states(), 0, false)),
            (Runs{2, 2, 2, 2, 2, 0, 0, 0}));
  EXPECT_EQ(numbers(run_again_chunk_major(four, two, plain, 4, true)), once);
}

TEST(LayerRuns, ToMakeAnInputAgainLeaveOutWhatIsKept) {
  const auto rebuilt = [](const Config& config, const std::string& keep, int64_t layer, int64_t every = 2,
                          int64_t first = 1) {
    Settings settings = settings_of(4, keep);
    settings.every = every;
    return rebuild_by_every(settings, config, layer, first);
  };
  const Config plain = five_layers();
  // Of the trained layers 1 to 4 the inputs of 1 and 3 are kept, and of the last two.
  for (const int64_t layer : {0, 2, 3, 4}) EXPECT_FALSE(rebuilt(plain, "none", layer)) << layer;
  ASSERT_TRUE(rebuilt(plain, "none", 1));
  for (const int64_t layer : {0, 1, 2, 3, 4}) EXPECT_FALSE(rebuilt(plain, "none", layer, 1)) << layer;
  for (const int64_t layer : {0, 1, 2, 3, 4})
    EXPECT_EQ(rebuilt(plain, "none", layer, 4, 0).has_value(), layer < 3) << layer;
  const std::vector<std::pair<std::string, Runs>> cases{
      {"none", {1, 1, 1, 1, 1, 0, 0, 0}},           {"keys-values", {1, 1, 1, 1, 1, -1, 0, 0}},
      {"keys-values:3", {1, 1, 1, 1, 1, 0, 0, 0}},  {"attention", {0, 0, 1, 1, 1, 0, 0, 0}},
      {"attention:4", {0, 0, 1, 1, 1, 0, 0, 0}},    {"attention,keys-values", {0, 0, 1, 1, 1, 0, 0, 0}},
      {"attention-half", {0, 0, 0, 1, 1, 0, 0, 0}}, {"gate-up", {1, 1, 1, 0, 1, 0, 0, 0}}};
  for (const auto& [keep, expected] : cases)
    EXPECT_EQ(numbers(rebuilt(plain, keep, 1).value()), expected) << keep;
  const Runs once{1, 1, 1, 1, 1, 0, 0, 0};
  EXPECT_EQ(numbers(rebuilt(with_states(), "attention,keys-values", 0, 2, 0).value()), once);
  EXPECT_EQ(numbers(rebuilt(with_experts(), "gate-up", 0, 2, 0).value()), once);
}

TEST(KeptWidth, IsThatOfEachKindInTheLayersThatCanKeepIt) {
  const auto width = [](const Config& config, const std::string& keep, int64_t layer) {
    return method_kind(Method::kStreambp).kept_width(settings_of(4, keep), config, layer);
  };
  const Config plain = five_layers();
  EXPECT_EQ(width(plain, "none", 0), 0);
  EXPECT_EQ(width(plain, "attention", 0), 24);
  EXPECT_EQ(width(plain, "queries", 0), 24);
  EXPECT_EQ(width(plain, "keys-values", 0), 12);
  EXPECT_EQ(width(plain, "attention-half", 0), 32);
  EXPECT_EQ(width(plain, "gate-up", 0), 88);
  Config gated = plain;
  gated.attention_output_gate = true;
  EXPECT_EQ(width(gated, "queries", 0), 48) << "q_proj makes gates too";
  const std::string all = "attention,queries,keys-values,attention-half,gate-up";
  EXPECT_EQ(width(plain, all, 2), 24 + 24 + 12 + 32 + 88);
  EXPECT_EQ(width(with_states(), all, 0), 32 + 88);
  EXPECT_EQ(width(with_experts(), all, 0), 24 + 24 + 12 + 32);
  EXPECT_EQ(width(with_experts(), all, 1), 24 + 24 + 12 + 32 + 88);
  EXPECT_EQ(width(with_shared(), all, 3), 24 + 24 + 32 + 2 * 88);
  const std::string some = "attention:1,keys-values:2,attention-half:3,gate-up:4";
  const std::vector<int64_t> expected{0, 88, 32 + 88, 12 + 32 + 88, 24 + 12 + 32 + 88};
  for (int64_t layer = 0; layer < 5; ++layer)
    EXPECT_EQ(width(plain, some, layer), expected[static_cast<size_t>(layer)]) << layer;
}

TEST(OffloadedWidth, IsInputsAndWhatIsKeptOrThatOfTheLowestLayers) {
  const Config plain = five_layers();
  const auto widths = [&](const std::string& offload, int64_t first) {
    Settings settings = settings_of(4, "attention-half:3");
    set_setting(setting_kind("offload"), settings, offload);
    std::vector<int64_t> all;
    for (int64_t layer = first; layer < 5; ++layer)
      all.push_back(method_kind(Method::kStreambp).offloaded_width(settings, plain, layer, first));
    return all;
  };
  using Widths = std::vector<int64_t>;
  EXPECT_EQ(widths("none", 0), (Widths{0, 0, 0, 0, 0}));
  EXPECT_EQ(widths("host", 0), (Widths{0, 32, 64, 64, 64})) << "the lowest input is the embedding";
  EXPECT_EQ(widths("host", 1), (Widths{32, 64, 64, 64}));
  EXPECT_EQ(widths("host:0", 0), (Widths{0, 0, 0, 0, 0}));
  EXPECT_EQ(widths("host:3", 0), (Widths{0, 0, 32, 0, 0}));
  EXPECT_EQ(widths("host:3", 1), (Widths{0, 32, 32, 0}));
}

TEST(AutoHeadChunk, IsAsManyRowsAsFitIntoMemoryThatIsThereAnyway) {
  Config config = preset("qwen3-tiny");  // two layers, 64 numbers of keys and values
  config.vocab_size = 10000;
  config.intermediate_size = 3000;
  const auto rows = [](const Config& of, at::ScalarType dtype, const HeadRequest& request = {}) {
    return auto_head_chunk(of, 4096, 512, dtype, request);
  };
  // (4 x 2 x 4096 x 64 + 4 x 4 x 512 x 3000) / 40000, in sixteens.
  EXPECT_EQ(rows(config, at::kFloat), 656);
  EXPECT_EQ(rows(config, at::kDouble), 656);
  EXPECT_EQ(rows(config, at::kBFloat16), 320) << "logits are float32";
  Config windows = config;
  windows.windows = {1000, 1000};  // of 1512 tokens
  EXPECT_EQ(rows(windows, at::kFloat), 624);
  windows.windows = {1000, 0};
  EXPECT_EQ(rows(windows, at::kFloat), 656);
  Config large = config;
  large.vocab_size = 100000;
  EXPECT_EQ(rows(large, at::kFloat), 256);
  large.vocab_size = 100;
  EXPECT_EQ(rows(large, at::kFloat), 1024);
  HeadRequest request;
  request.entropies = true;
  EXPECT_EQ(rows(config, at::kFloat, request), 656 / 2);
  request.log_sum_squares = true;
  EXPECT_EQ(rows(config, at::kFloat, request), 656 / 3);
  request.divergence = Divergence::kForward;
  EXPECT_EQ(rows(config, at::kFloat, request), 656 / 5);
  request.divergence_temperature = 2.0;
  EXPECT_EQ(rows(config, at::kFloat, request), 656 / 6);
  config.final_logit_softcapping = 30.0;
  EXPECT_EQ(rows(config, at::kFloat, request), 656 / 7);
}

TEST(AutoHeadChunk, OfAChunkIsEqualPartsOfIt) {
  Config config = preset("qwen3-tiny");
  config.vocab_size = 10000;
  const auto rows = [&](int64_t tokens, int64_t chunk, const HeadRequest& request = {}) {
    return auto_head_chunk(config, tokens, chunk, at::kFloat, request, /*by_chunks=*/true);
  };
  config.intermediate_size = 1000;
  // 4 x 4 x 1000 x 1000 / 40000 = 400 rows at most: three parts of 334, in tiles of 64.
  EXPECT_EQ(rows(4096, 1000), 384);
  EXPECT_EQ(rows(1000, 4096), 384) << "no more rows than tokens";
  EXPECT_EQ(rows(300, 300), 300) << "256 rows at least, which 300 are one and a bit of";
  EXPECT_EQ(rows(4096, 500), 256);
  HeadRequest request;
  request.entropies = true;  // 200 rows at most, and no tiles
  EXPECT_EQ(rows(4096, 1000, request), 200);
  request.entropies = false;
  request.divergence = Divergence::kReverse;  // 133
  EXPECT_EQ(rows(4096, 1000, request), 125);
  config.intermediate_size = 100000;  // 1024 at most
  EXPECT_EQ(rows(8192, 8192), 1024);
}

}  // namespace
}  // namespace streambp
