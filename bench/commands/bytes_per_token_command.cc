#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/records.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/records/bytes_report.h"
#include "bench/records/report_folder.h"
#include "bench/sweep/cells/sweep_cells.h"
#include "bench/sweep/progress.h"
#include "streambp/error.h"
#include "streambp/model/open_model.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

struct TypedBytesPerToken {
  std::string lengths = "131072,262144";
  std::string out;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> arguments;
};

constexpr const char* kBytesPerTokenExamples = R"(Examples:
  streambp-bench bytes-per-token --out results/bytes-per-token
  streambp-bench bytes-per-token --model qwen3-8b,qwen2.5-7b --method streambp,chunk-major --chunk 512 --out out/bytes
  streambp-bench bytes-per-token --model llama-3.1-8b --lora-rank 32 --objective sft,dpo --json --out out/bytes

Without --method: every method, and streambp also with what it may keep and where. Writes bytes-per-token.md and
results.jsonl into --out; scripts/plot_bytes.py draws the crossover of streambp and chunk-major from them.

Exit codes: 0 written; 2 bad usage or input.)";

/// The models of the list, small to large: `all` stands for every published preset.
std::vector<std::string> read_models(const std::string& list) {
  std::vector<std::string> models = parse_words(list, "--model");
  if (models == std::vector<std::string>{"all"}) {
    models = preset_names();
    std::erase_if(models,
                  [](const std::string& name) { return name.ends_with("-cpu") || name.ends_with("-tiny"); });
  }
  std::stable_sort(models.begin(), models.end(), [](const std::string& a, const std::string& b) {
    return parameter_count(open_config(a)) < parameter_count(open_config(b));
  });
  return models;
}

/// The cells of one model; without named methods, each also with the switches and words that a search tries:
/// what is kept of the layers, and where.
std::vector<Cell> list_bytes_cells(const Bench& bench, bool with_variants) {
  std::vector<Cell> cells;
  for (const Cell& cell : list_cells(bench)) {
    cells.push_back(cell);
    if (!with_variants) continue;
    for (const SettingKind& kind : setting_kinds()) {
      if (kind.candidates == nullptr || kind.type == SettingType::kNumber) continue;
      if (!takes(cell.settings.method, kind.name)) continue;
      cells.push_back(cell);
      set_setting(kind, cells.back().settings, kind.same_bits.front());
    }
  }
  return cells;
}

/// All objectives and batches of one model; adds their records to `records`.
std::vector<ModelBytes> measure(const Bench& bench, bool with_variants, const std::vector<int64_t>& lengths,
                                std::vector<json>& records) {
  plan::Predictor predictor(bench.options.setup, bench.device);
  const plan::AnalyticBytes analytic =
      plan::analytic_bytes(bench.config, bench.options.setup.dtype, lengths[1]);
  const int64_t full_layers = plan::layers_without_window(bench.config, lengths[1]);
  const bool several = bench.options.objectives.size() > 1 || bench.options.batches.size() > 1;
  std::vector<ModelBytes> models;
  for (const Cell& cell : list_bytes_cells(bench, with_variants)) {
    const std::string workload = several ? fmt::format("{}, batch {}", cell.objective, cell.batch) : "";
    if (models.empty() || models.back().workload != workload)
      models.push_back({bench.options.setup.model, workload, bench.config, full_layers, analytic, {}});
    models.back().configurations.push_back(
        {cell,
         plan::bytes_per_token(predictor, step_of(bench, cell), cell.settings, lengths[0], lengths[1])});
  }
  for (const ModelBytes& model : models) {
    for (const CellBytes& one : model.configurations) records.push_back(bytes_record(bench, model, one));
  }
  return models;
}

int run_bytes_per_token(const RunFlags& flags, const TypedBytesPerToken& typed) {
  SweepOptions options;
  flags.read(options);
  options.device = "meta";
  options.lengths = parse_integers(typed.lengths, "--seq-len", 1);
  const std::vector<int64_t> lengths = options.lengths;
  if (lengths.size() != 2 || lengths[0] >= lengths[1])
    throw InputError("--seq-len {}: expected two lengths, the longer one last", typed.lengths);
  if (options.picks_method) throw InputError("--method auto: expected methods by name");
  const bool with_variants = !flags.names_methods();
  if (with_variants) options.methods = plan::all_methods();
  options.lengths = {lengths[1]};
  const std::vector<std::string> names = read_models(options.setup.model);
  open_report_folder(typed.out, {"bytes-per-token.md", "results.jsonl"});
  ProgressLine progress(!typed.quiet);
  std::vector<ModelBytes> models;
  std::vector<json> records;
  for (const std::string& name : names) {
    progress.show(fmt::format("[{}/{}] {}", &name - names.data() + 1, names.size(), name));
    options.setup.model = name;
    const std::vector<ModelBytes> of = measure(open_bench(options), with_variants, lengths, records);
    models.insert(models.end(), of.begin(), of.end());
  }
  progress.clear();
  const json environment = describe_environment(usable_cores(), /*cuda_index=*/-1, typed.arguments);
  std::string lines;
  for (json& record : records) {
    record["environment"] = environment;
    lines += record_line(record) + "\n";
  }
  const std::filesystem::path out = typed.out;
  write_file(out / "results.jsonl", lines);
  write_file(out / "bytes-per-token.md", bytes_markdown(models, lengths[0], lengths[1]));
  fmt::print("{}", typed.json ? lines : bytes_table(models));
  return kExitGood;
}

}  // namespace

void add_bytes_per_token_command(CLI::App& app, Action& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<TypedBytesPerToken>();
  typed->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "bytes-per-token", "Memory of one more token, by model and method, predicted without a GPU");
  command->footer(kBytesPerTokenExamples);
  const auto flags = std::make_shared<RunFlags>(*command, RunFlags::Defaults{"all", "bfloat16"});
  command->get_option("--model")->description(
      "Hugging Face folders or presets, comma-separated; all: every published preset");
  command->add_option("--seq-len", typed->lengths, "Two lengths: the slope between them is the answer")
      ->capture_default_str();
  command->add_option("--out", typed->out, "Folder for bytes-per-token.md and results.jsonl")->required();
  command->add_flag("--json", typed->json, "Print the records instead of the tables");
  command->add_flag("--quiet", typed->quiet, "No progress on the terminal");
  command->callback(
      [typed, flags, &action] { action = [typed, flags] { return run_bytes_per_token(*flags, *typed); }; });
}

}  // namespace streambp::bench
