// Records of a sweep: keys are stable, and the figures drawn from records are the right ones.
#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <set>

#include "bench/cli/records.h"
#include "bench/paper/measured.h"
#include "bench/records/report.h"
#include "bench/report_pages/statistics.h"
#include "bench/sweep/cells/cell_run.h"
#include "bench/sweep/setting_members.h"
#include "streambp/plan/flops/model_flops.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

TEST(RecordKey, IsStableAndSeesEverything) {
  // Computed by an independent FNV-1a of the text {"a":1,"b":"x"}.
  EXPECT_EQ(record_key(json::parse(R"({"b": "x", "a": 1})")), "cfcc937b86ef6c1d");
  EXPECT_EQ(record_key(json::parse(R"({"a": 1, "b": "x"})")),
            record_key(json::parse(R"({"b": "x", "a": 1})")));
  EXPECT_NE(record_key({{"a", 1}}), record_key({{"a", 2}}));
  EXPECT_NE(record_key({{"a", 1}}), record_key({{"a", "1"}}));
  EXPECT_NE(record_key({{"a", nullptr}}), record_key(json::object()));
}

Bench tiny_bench() {
  install_meters();
  Bench bench;
  bench.options.setup.model = "qwen3-tiny";
  bench.options.setup.dtype = bench.options.setup.gradient_dtype = at::kDouble;
  bench.config = preset("qwen3-tiny");
  return bench;
}

Cell cell_of(Method method, int64_t seq_len) {
  Cell cell;
  cell.settings.method = method;
  cell.seq_len = seq_len;
  return cell;
}

TEST(CellConfiguration, HasAnotherKeyForEveryChange) {
  const Bench bench = tiny_bench();
  const Cell cell = cell_of(Method::kStreambp, 33);
  const std::vector<std::function<void(Bench&, Cell&)>> changes{
      [](Bench& b, Cell&) { b.options.setup.model = "other"; },
      [](Bench& b, Cell&) { b.options.setup.dtype = at::kFloat; },
      [](Bench& b, Cell&) { b.options.setup.gradient_dtype = at::kFloat; },
      [](Bench& b, Cell&) { b.options.setup.head_dtype = at::kDouble; },
      [](Bench& b, Cell&) { b.options.device = "meta"; },
      [](Bench& b, Cell&) { b.options.threads = 2; },
      [](Bench& b, Cell&) { b.options.repeats = 5; },
      [](Bench& b, Cell&) { b.options.setup.seed = 1; },
      [](Bench& b, Cell&) { b.options.memory_limit = 1; },
      [](Bench& b, Cell&) {
        b.options.objective_options = {{"divisor", "2"}};
      },
      [](Bench& b, Cell&) { b.options.setup.freeze = {"norm"}; },
      [](Bench& b, Cell&) { b.options.micro_batches = 2; },
      [](Bench& b, Cell&) { b.options.setup.lora = LoraConfig{}; },
      [](Bench& b, Cell&) { b.options.setup.adapter = "adapter"; },
      [](Bench& b, Cell&) { b.options.setup.reference = "other"; },
      [](Bench& b, Cell&) { b.options.setup.teacher = "other"; },
      [](Bench& b, Cell&) { b.options.tokens = "tokens.safetensors"; },
      [](Bench& b, Cell&) { b.options.tokens = "tokens.safetensors", b.batch_key = "other"; },
      [](Bench&, Cell& c) { c.objective = "dpo"; },
      [](Bench&, Cell& c) { c.settings.method = Method::kStandard; },
      [](Bench&, Cell& c) { c.settings.chunk = 7; },
      [](Bench&, Cell& c) { c.settings.head_chunk = 7; },
      [](Bench&, Cell& c) { c.settings.stream_head = false; },
      [](Bench&, Cell& c) { c.settings.order = Order::kForward; },
      [](Bench&, Cell& c) { c.seq_len = 34; },
      [](Bench&, Cell& c) { c.batch = 2; },
      [](Bench& b, Cell&) {
        b.inputs.keys = {{"model", "1"}};
      },
      [](Bench& b, Cell&) {
        b.inputs.keys = {{"model", "2"}};
      },
      [](Bench& b, Cell&) {
        b.inputs.keys = {{"tokens", "2"}};
      },
      [](Bench&, Cell& c) { c.automatic = true; },
      [](Bench& b, Cell& c) { c.automatic = true, b.options.budget = 1000; },
      [](Bench& b, Cell& c) { c.automatic = true, b.options.host_budget = 1000; },
      [](Bench& b, Cell& c) { c.automatic = true, b.options.chunks = {7}; },
      [](Bench& b, Cell& c) { c.automatic = true, b.options.given.stream_head = false; },
      [](Bench& b, Cell& c) { c.automatic = true, b.options.fixed = {"every"}; },
      [](Bench& b, Cell& c) { c.automatic = true, b.options.fixed = {"every"}, b.options.given.every = 2; },
  };
  std::set<std::string> keys{record_key(cell_configuration(bench, cell))};
  for (size_t i = 0; i < changes.size(); ++i) {
    Bench other_bench = bench;
    Cell other_cell = cell;
    changes[i](other_bench, other_cell);
    EXPECT_TRUE(keys.insert(record_key(cell_configuration(other_bench, other_cell))).second)
        << "change " << i;
  }
  // What only decides how a sweep is run or shown is no part of it.
  Bench same = bench;
  same.options.json = same.options.quiet = same.options.resume = true;
  same.options.out = "elsewhere";
  EXPECT_EQ(keys.count(record_key(cell_configuration(same, cell))), 1u);
}

/// Records of earlier versions are found by their keys: which defaults are in them stays as it is.
TEST(CellConfiguration, HasTheDefaultsThatItHad) {
  using nlohmann::json;
  Settings settings;
  settings.method = Method::kStreambp;
  EXPECT_EQ(setting_members(settings), json({{"baseline", nullptr},
                                             {"chunk", "auto"},
                                             {"every", 1},
                                             {"head", "streamed"},
                                             {"head_chunk", "auto"},
                                             {"keep_attention", false},
                                             {"offload", "none"},
                                             {"order", "reverse"}}));
  settings.method = Method::kStandard;
  EXPECT_EQ(setting_members(settings), json({{"baseline", "fair"},
                                             {"chunk", nullptr},
                                             {"every", nullptr},
                                             {"head", "full"},
                                             {"head_chunk", nullptr},
                                             {"keep_attention", nullptr},
                                             {"offload", nullptr},
                                             {"order", nullptr}}));
}

/// Of every setting that a method takes, every value has a key of its own.
TEST(CellConfiguration, HasAnotherKeyForEverySetting) {
  const Bench bench = tiny_bench();
  Cell cell = cell_of(Method::kStreambp, 33);
  std::set<std::string> keys;
  size_t configurations = 0;
  for (const MethodKind& method : method_kinds()) {
    Settings plain;
    plain.method = method.method;
    std::vector<Settings> all{plain};
    for (const SettingKind& kind : setting_kinds()) {
      if (!method.takes(kind.name)) continue;
      std::vector<std::string> values = kind.examples;
      if (kind.type == SettingType::kSwitch) values = {"true"};
      if (kind.type == SettingType::kNumber) values = {"3", "4"};
      for (const std::string& choice : kind.choices) {
        if (choice != kind.text({})) values.push_back(choice);
      }
      for (const std::string& value : values) {
        Settings settings = plain;
        set_setting(kind, settings, value);
        // The head is recorded as it is run.
        const bool as_plain = kind.name == "head" && settings.streams_head() == plain.streams_head();
        if (applies(kind, settings) && !as_plain) all.push_back(settings);
      }
    }
    for (const Settings& settings : all) {
      if (method.head == HeadDefault::kAlwaysStreamed && !settings.streams_head()) continue;
      cell.settings = settings;
      keys.insert(record_key(cell_configuration(bench, cell)));
      ++configurations;
    }
  }
  EXPECT_EQ(keys.size(), configurations);
  EXPECT_GT(configurations, 30u);
}

TEST(CellRun, RecordsWhatItMeasuredAndSurvivesRunningOutOfMemory) {
  const Bench bench = tiny_bench();
  plan::Models models;
  models.policy = Model::random(bench.config, {at::kDouble, at::kCPU, at::kDouble, {}}, 3);
  const auto measured = [&](CellRun& run, int repeats) {
    for (int i = 0; i < repeats && !run.failed(); ++i) run.repeat(models);
    return run.record({});
  };
  CellRun checkpoint(bench, cell_of(Method::kCheckpoint, 61));
  const json checkpoint_record = measured(checkpoint, 3);
  ASSERT_EQ(checkpoint_record.at("status"), "ok") << checkpoint_record.dump(2);
  EXPECT_EQ(checkpoint_record.at("seconds").size(), 3u);
  EXPECT_GT(checkpoint_record.at("seconds_median"), 0.0);
  for (const char* clock : {"seconds", "cpu_seconds"}) {
    std::vector<double> seconds = checkpoint_record.at(clock);
    ASSERT_EQ(seconds.size(), 3u) << clock;
    std::sort(seconds.begin(), seconds.end());
    EXPECT_EQ(checkpoint_record.at(fmt::format("{}_median", clock)), seconds[1]);
  }
  EXPECT_DOUBLE_EQ(checkpoint_record.at("tokens_per_second").get<double>(),
                   61.0 / checkpoint_record.at("seconds_median").get<double>());
  int64_t at_peak = 0;
  for (const auto& scope : checkpoint_record.at("breakdown_at_peak")) at_peak += scope.get<int64_t>();
  EXPECT_EQ(at_peak, checkpoint_record.at("peak_bytes"));

  const int64_t alive = read_meter(at::kCPU).live_bytes;
  set_memory_limit(c10::DeviceType::CPU, checkpoint_record.at("peak_bytes").get<int64_t>());
  CellRun standard(bench, cell_of(Method::kStandard, 61));
  const json standard_record = measured(standard, 3);
  CellRun again(bench, cell_of(Method::kCheckpoint, 61));
  const json again_record = measured(again, 1);
  set_memory_limit(c10::DeviceType::CPU, 0);
  EXPECT_EQ(standard_record.at("status"), "oom");
  EXPECT_NE(standard_record.at("error").get<std::string>().find("out of memory on cpu"), std::string::npos);
  EXPECT_TRUE(standard_record.at("peak_bytes").is_null());
  EXPECT_EQ(read_meter(at::kCPU).live_bytes, alive) << "bytes that the failed pass left behind";
  EXPECT_EQ(again_record.at("status"), "ok") << again_record.at("error");
  EXPECT_EQ(again_record.at("loss"), checkpoint_record.at("loss"));
  EXPECT_EQ(again_record.at("peak_bytes"), checkpoint_record.at("peak_bytes"));
}

TEST(CellRun, RecordsThatMemoryDoesNotSufficeForTheBatch) {
  const Bench bench = tiny_bench();
  plan::Models models;
  models.policy = Model::random(bench.config, {at::kDouble, at::kCPU, at::kDouble, {}}, 3);
  const int64_t limit = read_meter(at::kCPU).live_bytes + 100'000;
  set_memory_limit(c10::DeviceType::CPU, limit);
  CellRun run(bench, cell_of(Method::kStreambp, 100'000));
  run.prepare(models);
  const json oom_record = run.record({});
  CellRun next(bench, cell_of(Method::kStreambp, 5));
  next.prepare(models);
  set_memory_limit(c10::DeviceType::CPU, 0);
  EXPECT_EQ(oom_record.at("status"), "oom");
  EXPECT_NE(oom_record.at("error").get<std::string>().find("out of memory on cpu"), std::string::npos);
  EXPECT_TRUE(oom_record.at("tokens").is_null());
  const json& shortage = oom_record.at("out_of_memory");
  EXPECT_GE(shortage.at("asked_bytes"), 100'000 * 4);
  EXPECT_EQ(shortage.at("limit_bytes"), limit);
  EXPECT_EQ(shortage.at("needed_bytes").get<int64_t>(),
            shortage.at("asked_bytes").get<int64_t>() + shortage.at("alive_bytes").get<int64_t>());
  EXPECT_EQ(oom_record.at("seq_len"), 100'000);
  EXPECT_FALSE(next.failed()) << next.error();
}

TEST(MeasuredOnAGpu, ComparesWithTheSameConfigurationAlone) {
  const Bench bench = tiny_bench();
  const auto record_of = [&](Cell cell, const char* device, int64_t peak) {
    json record = cell_configuration(bench, cell);
    record.update({{"kind", "measured"}, {"device", device}, {"status", "ok"}, {"peak_bytes", peak}});
    return record_line(record) + '\n';
  };
  const Cell plain = cell_of(Method::kStreambp, 61), checkpoint = cell_of(Method::kCheckpoint, 61);
  Cell every = plain, kept = plain, host = plain, longer = plain, baseline = checkpoint;
  every.settings.every = 6;
  kept.settings.keep.attention = kAllLayers;
  host.settings.offload = Offload::kHost;
  longer.seq_len = 100;
  baseline.settings.baseline = "hugging-face";
  const TempFolder folder;
  folder.write("results.jsonl", record_of(plain, "cpu", 1) + record_of(every, "cuda", 2) +
                                    record_of(kept, "cuda", 3) + record_of(host, "cuda:1", 4) +
                                    record_of(longer, "cuda", 50) + record_of(baseline, "cuda", 6) + "torn");
  const Measured measured(folder.path());
  EXPECT_EQ(measured.size(), 5u);
  const auto configuration = [&](const Cell& cell) { return cell_configuration(bench, cell); };
  EXPECT_EQ(measured.peak(configuration(plain)), std::nullopt) << "others keep less, or more";
  EXPECT_EQ(measured.peak(configuration(every)), 2);
  EXPECT_EQ(measured.peak(configuration(kept)), 3);
  EXPECT_EQ(measured.peak(configuration(host)), 4);
  EXPECT_EQ(measured.peak(configuration(checkpoint)), std::nullopt);
  EXPECT_EQ(measured.peak(configuration(baseline)), 6);
  EXPECT_EQ(measured.longest(configuration(plain), 49), std::nullopt);
  for (const int64_t budget : {50, 52}) EXPECT_EQ(measured.longest(configuration(plain), budget), 100);
  EXPECT_EQ(measured.longest(configuration(plain), 53), std::nullopt) << "a longer one may fit";
}

TEST(ModelFlops, CountsProductsAndPairs) {
  for (const char* name : {"qwen3-tiny", "llama-tied-tiny"}) {
    const Config config = preset(name);
    double weights = 0.0;
    for (const ParameterShape& shape : parameter_shapes(config)) {
      if (shape.shape.size() != 2) continue;
      const bool looked_up =
          shape.name.find("embed_tokens") != std::string::npos && !config.tie_word_embeddings;
      if (!looked_up) weights += static_cast<double>(shape.shape[0] * shape.shape[1]);
    }
    int64_t pairs = 0;
    for (const int64_t length : {5, 1, 12}) {
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t j = 0; j <= i; ++j) ++pairs;
      }
    }
    // Scores and their product with the values: 2 E operations each for a head and a pair, three times with
    // the backward pass.
    const auto attention = static_cast<double>(3 * 4 * config.head_dim * config.num_attention_heads *
                                               config.num_hidden_layers * pairs);
    Model model = Model::random(config, {at::kDouble, at::kMeta, at::kDouble, {}}, 0);
    EXPECT_EQ(plan::model_flops(model, {5, 1, 12}), 6.0 * weights * 18.0 + attention) << name;

    // A frozen base has no weight gradients; an adapter's weights are trained ones.
    Model adapted = Model::random(
        config, {at::kDouble, at::kMeta, at::kDouble, [](const std::string&) { return false; }}, 0);
    adapted.attach_adapters({3, 3.0, false, {"q_proj", "down_proj"}}, 0);
    const auto of_layer =
        static_cast<double>(3 * (config.hidden_size + config.num_attention_heads * config.head_dim +
                                 config.intermediate_size + config.hidden_size));
    const double adapters = static_cast<double>(config.num_hidden_layers) * of_layer;
    EXPECT_EQ(plan::model_flops(adapted, {5, 1, 12}), (4.0 * weights + 6.0 * adapters) * 18.0 + attention)
        << name;

    // A critic has no LM head.
    Config critic = config;
    critic.value_model = true;
    critic.tie_word_embeddings = false;
    const auto head = static_cast<double>(config.vocab_size * config.hidden_size);
    EXPECT_EQ(
        plan::model_flops(Model::random(critic, {at::kDouble, at::kMeta, at::kDouble, {}}, 0), {5, 1, 12}),
        6.0 * (weights - head) * 18.0 + attention)
        << name;

    // Below what is trained there is no backward pass.
    const std::string last = fmt::format("model.layers.{}.", config.num_hidden_layers - 1);
    const Model top = Model::random(
        config,
        {at::kDouble, at::kMeta, at::kDouble, [&](const std::string& of) { return of.starts_with(last); }},
        0);
    const auto layers = static_cast<double>(config.num_hidden_layers);
    const double layer = (weights - head) / layers;
    EXPECT_EQ(plan::model_flops(top, {5, 1, 12}),
              (2.0 * (layers - 1.0) * layer + 6.0 * layer + 4.0 * head) * 18.0 +
                  attention * ((layers - 1.0) / 3.0 + 1.0) / layers)
        << name;
  }
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({5.0}), 5.0);
  EXPECT_EQ(median({9.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({8.0, 1.0, 2.0, 4.0}), 3.0);
}

TEST(SweepTable, ComparesWithCheckpointOfTheSameLengthAndBatch) {
  const auto row = [](const char* method, int64_t seq_len, int64_t bytes, double seconds) {
    return json{{"method", method},
                {"seq_len", seq_len},
                {"batch", 1},
                {"objective", "sft"},
                {"status", "ok"},
                {"peak_beyond_resident_bytes", bytes},
                {"seconds_median", seconds},
                {"cpu_seconds_median", 3.0 * seconds}};
  };
  const std::string table = sweep_table({row("streambp", 7, 500, 2.5),
                                         row("checkpoint", 7, 2000, 2.0),
                                         row("streambp", 9, 700, 1.0),
                                         {{"method", "standard"}, {"status", "oom"}}});
  EXPECT_NE(table.find("0.250   2.500   1.250  7.500   1.250"), std::string::npos) << table;
  EXPECT_NE(table.find("700 B       -   1.000       -  3.000       -"), std::string::npos) << table;
  EXPECT_NE(table.find("oom\n"), std::string::npos) << table;
  const std::string with_bytes = sweep_table(
      {{{"method", "standard"}, {"status", "oom"}, {"out_of_memory", {{"needed_bytes", 1.5e9}}}}});
  EXPECT_NE(with_bytes.find("oom, needs at least 1.5 GB\n"), std::string::npos) << with_bytes;
}

TEST(SweepTable, NamesEverySettingThatDiffersAndComparesWithinARun) {
  const auto row = [](const char* method, int threads, int64_t bytes, json own) {
    own.update({{"threads", threads}, {"repeats", 3}});
    return json{{"method", method}, {"seq_len", 8}, {"batch", 1},     {"objective", "sft"},
                {"model", "tiny"},  {"chunk", 4},   {"status", "ok"}, {"peak_beyond_resident_bytes", bytes},
                {"settings", own}};
  };
  const json kept{{"keep_attention", true}, {"every", 4}, {"head", "streamed"}};
  const json plain{{"keep_attention", false}, {"every", 1}, {"head", "streamed"}};
  const json full{{"keep_attention", nullptr}, {"every", nullptr}, {"head", "full"}};
  const std::string table = sweep_table({row("streambp", 1, 500, kept), row("streambp", 1, 250, plain),
                                         row("checkpoint", 1, 1000, full), row("streambp", 2, 300, plain)});
  for (const char* expected : {"keep-attention, every 4, threads 1    500 B   0.500",
                               "threads 1                             250 B   0.250",
                               "threads 2                             300 B       -"})
    EXPECT_NE(table.find(expected), std::string::npos) << "no '" << expected << "' in\n" << table;

  const std::string alike = sweep_table({row("streambp", 1, 250, plain), row("checkpoint", 1, 1000, full)});
  EXPECT_EQ(alike.find("settings"), std::string::npos) << alike;
  const std::string other = sweep_table({row("streambp", 1, 250, {{"every", "of tomorrow"}})});
  EXPECT_NE(other.find("unknown"), std::string::npos) << other;
}

}  // namespace
}  // namespace streambp::bench
