// The planner as a program other than streambp-bench calls it, against what that program's commands record.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/cli/command_line.h"
#include "bench/cli/records.h"
#include "bench/commands/commands.h"
#include "bench/sweep/choice.h"
#include "bench/sweep/sweep.h"
#include "streambp/memory/meter.h"
#include "streambp/plan/choice.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp::plan {
namespace {

using nlohmann::json;

Workload workload_of(const std::string& objective, int64_t seq_len) {
  Workload workload;
  workload.setup.model = "qwen3-tiny";
  workload.step.objective = objective;
  workload.step.seq_len = seq_len;
  workload.step.sequences = 2;
  return workload;
}

Settings settings_of(Method method, int64_t chunk = 0) {
  Settings settings;
  settings.method = method;
  settings.chunk = chunk;
  return settings;
}

/// The record of a sweep of one cell on `device`; `auto`, where `budget` is set, of the method that is
/// chosen.
json record_of(const Workload& workload, const Settings& settings, const std::string& device,
               std::optional<int64_t> budget = {}) {
  install_meters();  // as the program's main() does
  const TempFolder folder;
  bench::SweepOptions options;
  options.setup = workload.setup;
  options.objectives = {workload.step.objective};
  options.lengths = {workload.step.seq_len};
  options.batches = {workload.step.sequences};
  options.methods = {settings.method};
  options.chunks = {settings.chunk};
  if (budget) {
    options.methods.clear();
    options.picks_method = true;
    options.budget = budget;
  }
  options.device = device;
  options.quiet = true;
  options.out = folder.path() / "out";
  EXPECT_EQ(bench::run_sweep(options), kExitGood);
  const RecordFile file(options.out);
  EXPECT_EQ(file.records().size(), 1u);
  return file.records().at(0);
}

void expect_as_recorded(const Prediction& prediction, const json& record) {
  EXPECT_EQ(record.at("peak_bytes"), prediction.peak_bytes);
  EXPECT_EQ(record.at("resident_bytes"), prediction.resident_bytes);
  EXPECT_EQ(record.at("breakdown_at_peak"), json(prediction.breakdown));
  EXPECT_EQ(record.at("tokens"), prediction.tokens);
  EXPECT_EQ(record.at("model_flops"), prediction.model_flops);
  EXPECT_EQ(record.at("hardware_flops"), prediction.hardware_flops);
}

/// What a command of streambp-bench prints.
json run_command(const std::vector<std::string>& arguments) {
  CLI::App app;
  bench::Action action;
  bench::add_max_length_command(app, action);
  std::vector<const char*> argv{"streambp-bench"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  const int code =
      run_command_line(app, static_cast<int>(argv.size()), argv.data(), [&] { return action(); });
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, kExitGood);
  return json::parse(text);
}

TEST(Plan, PredictsWhatASweepRecords) {
  for (const char* objective : {"sft", "dpo", "ppo"}) {
    Workload workload = workload_of(objective, 65);
    workload.setup.optimizer = parse_optimizer("adamw", 32, false, at::kFloat);
    workload.setup.reference = "qwen3-tiny";
    for (const Settings& settings : {settings_of(Method::kCheckpoint), settings_of(Method::kStreambp, 16)})
      expect_as_recorded(predict(workload, settings), record_of(workload, settings, "meta"));
  }
}

TEST(Plan, PredictsForAGpuWithinAProcessThatPredictsForTheCpu) {
  Workload workload = workload_of("sft", 300);
  const Settings settings = settings_of(Method::kStreambp, 64);
  const Prediction cpu = predict(workload, settings);
  workload.device = at::kCUDA;
  const Prediction gpu = predict(workload, settings);
  EXPECT_TRUE(gpu.breakdown.contains("kernel workspace"));
  expect_as_recorded(gpu, record_of(workload, settings, "meta:cuda"));
  expect_as_recorded(cpu, record_of(workload, settings, "meta"));
  workload.device = at::kCPU;
  EXPECT_EQ(predict(workload, settings).peak_bytes, cpu.peak_bytes)
      << "the GPU's dry run left something behind";
}

TEST(Plan, FindsTheLongestSequenceThatTheCommandFinds) {
  constexpr int64_t kBudget = 5000000;
  Workload workload = workload_of("sft", 0);
  const Settings settings = settings_of(Method::kStreambp, 128);
  const LongestFit fit = longest(workload, settings, {kBudget, 0});
  ASSERT_TRUE(fit.fits());
  EXPECT_LE(fit.at_longest->peak_bytes, kBudget);
  workload.step.seq_len = fit.seq_len + fit.resolution;
  EXPECT_GT(predict(workload, settings).peak_bytes, kBudget);

  const json record = run_command({"max-length", "--model", "qwen3-tiny", "--device", "meta", "--dtype",
                                   "float32", "--method", "streambp", "--chunk", "128", "--batch", "2",
                                   "--budget", "5MB", "--json", "--quiet"});
  EXPECT_EQ(record.at("seq_len"), fit.seq_len);
  EXPECT_EQ(record.at("resolution_tokens"), fit.resolution);
  EXPECT_EQ(record.at("evaluations"), fit.evaluations);
  EXPECT_EQ(record.at("peak_bytes"), fit.at_longest->peak_bytes);

  EXPECT_FALSE(longest(workload, settings, {1000, 0}).fits()) << "less than the weights";
}

TEST(Plan, ChoosesWhatASweepChooses) {
  Workload workload = workload_of("sft", 1000);
  workload.device = at::kMeta;  // costs as the meta device's sweep has them
  const int64_t least = predict(workload, settings_of(Method::kStreambp, 64)).peak_bytes;
  for (const int64_t budget : {least, 10 * least}) {
    const Choice choice = choose(workload, {}, {budget, 0});
    ASSERT_TRUE(choice.chosen);
    const Considered& chosen = choice.considered[*choice.chosen];
    const json record = record_of(workload, {}, "meta", budget);
    EXPECT_EQ(record.at("choice"), bench::choice_member(choice));
    EXPECT_EQ(record.at("method"), method_name(chosen.settings.method));
    EXPECT_EQ(record.at("peak_bytes"), chosen.predicted->peak_bytes);
  }
}

TEST(Plan, LeavesAFusedOptimizerToMethodsThatTakeIt) {
  Workload workload = workload_of("sft", 300);
  workload.setup.fused_optimizer = OptimizerSettings{};
  const Choice choice = choose(workload, {}, {int64_t{1} << 30, 0});
  ASSERT_TRUE(choice.chosen);
  for (const Considered& one : choice.considered)
    EXPECT_TRUE(method_kind(one.settings.method).fuses_optimizer) << method_name(one.settings.method);
}

}  // namespace
}  // namespace streambp::plan
