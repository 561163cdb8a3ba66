#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/records/longest_report.h"
#include "bench/sweep/budget.h"
#include "bench/sweep/cells/remedies.h"
#include "bench/sweep/cells/sweep_cells.h"
#include "bench/sweep/progress.h"
#include "streambp/error.h"
#include "streambp/plan/pieces.h"
#include "streambp/plan/suggest.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

struct TypedMaxLength {
  std::string budget;
  std::string host_budget;
  std::string device = "meta:cuda";
  std::string margin;
  int64_t seq_len = 0;
  bool suggest = false;
  bool json = false;
  bool quiet = false;
};

constexpr const char* kMaxLengthExamples = R"(Examples:
  streambp-bench max-length --model qwen3-8b --budget 80GiB
  streambp-bench max-length --model qwen3-8b --lora-rank 32 --budget rtx-4090
  streambp-bench max-length --model qwen3-8b --budget 80GiB --optimizer adamw --optimizer-bits 8
  streambp-bench max-length --model llama-3.1-8b --lora-rank 32 --objective sft,dpo,grpo --batch 8 --budget 24GB --json
  streambp-bench max-length --model qwen3-14b --budget 80GiB --suggest --seq-len 32768
  streambp-bench max-length --model qwen3-8b --budget 80GiB --method standard,auto

Of a folder config.json is enough, unless its weights are quantised.

The peak is that of one back-propagation as the allocator would count it; what is counted and what is not stands under every
answer. Objectives that compare with a reference (dpo, kto; grpo and ppo with a weight on it) have one next to the policy, as in TRL's
trainers, and none with LoRA, whose base is one; --reference none leaves it out. A length is that of a sequence; for pairs (dpo, cpo, reward,
...) of a pair, half of the tokens for each.

The answer of --suggest: of the configurations by rising cost, the last that goes further than the cheaper ones by 1 % at least and
by more than it costs more. What goes less than 5 % further than a cheaper one is not in the table.

Costs (--suggest, --method auto): time relative to standard back-propagation by the operations that are executed, what goes
to the host and back, and 1 + 20 / chunk for products of few rows (streambp/plan/flops/cost_model.h); an estimate to rank settings by.

Exit codes: 0 all good; 2 bad usage or input, a budget below weights, gradients and optimizer states among them;
3 some method does not fit at any length.)";

LongestRow row_of(Cell cell, const plan::Suggestion& suggestion) {
  cell.settings = suggestion.settings;
  cell.seq_len = suggestion.fit.seq_len;
  return {std::move(cell), suggestion.fit, suggestion.cost, suggestion.best, suggestion.listed, nullptr};
}

/// What needs the least for the shortest sequence; with a wanted one, of the longest at which any was tried.
std::vector<plan::Suggestion>::iterator leanest_of(std::vector<plan::Suggestion>& found,
                                                   const plan::Budget& budget) {
  return std::min_element(found.begin(), found.end(),
                          [&](const plan::Suggestion& a, const plan::Suggestion& b) {
                            const auto rank = [&](const plan::Prediction& tried) {
                              return std::pair(-tried.seq_len, budget.share(tried));
                            };
                            return rank(a.fit.at_shortest) < rank(b.fit.at_shortest);
                          });
}

/// Of what suggest() found, the best; where nothing fits, the leanest.
LongestRow furthest_of(const Cell& cell, std::vector<plan::Suggestion> found, const plan::Budget& budget) {
  auto best = std::find_if(found.begin(), found.end(), [](const plan::Suggestion& one) { return one.best; });
  if (best == found.end()) best = leanest_of(found, budget);
  LongestRow row = row_of(cell, *best);
  const std::string name = configuration_text(best->settings);
  const std::string reason =
      best->best
          ? fmt::format("{}: {} tokens, as far as any of {} configurations that gain more than they cost",
                        name, best->fit.seq_len, found.size())
          : fmt::format("no length fits {}: {}, the leanest of {} configurations, needs {} for {} tokens",
                        format_bytes(budget.device), name, found.size(),
                        format_bytes(best->fit.at_shortest.peak_bytes), best->fit.at_shortest.seq_len);
  json considered = json::array();
  for (const plan::Suggestion& other : found) {
    considered.push_back({{"way", configuration_text(other.settings)},
                          {"seq_len", other.fit.seq_len},
                          {"relative_cost", other.cost}});
  }
  row.choice = {{"asked", "auto"},
                {"budget_bytes", budget.device},
                {"relative_cost", best->cost},
                {"reason", reason},
                {"considered", considered}};
  return row;
}

/// A dry run takes every chunk of every sequence in each layer: refuses those that would take hours before
/// they begin. Layer inputs alone limit the tokens that can fit.
void require_quick(const Bench& bench, const Cell& cell, const plan::Budget& budget) {
  constexpr auto kMostPieces = static_cast<double>(plan::kMostPieces);
  const auto layers = static_cast<double>(bench.config.num_hidden_layers);
  const double inputs = layers * static_cast<double>(bench.config.residual_width()) *
                        static_cast<double>(c10::elementSize(bench.options.setup.dtype));
  const double tokens =
      std::min((static_cast<double>(budget.device) + static_cast<double>(budget.host)) / inputs,
               static_cast<double>(plan::kLongest));
  const auto batch = static_cast<double>(cell.batch), chunk = static_cast<double>(cell.settings.chunk);
  if (layers * batch > kMostPieces)
    throw InputError("--batch {}: its sequences are run one by one in {} layers; expected at most {}",
                     cell.batch, bench.config.num_hidden_layers, static_cast<int64_t>(kMostPieces / layers));
  if (chunk > 0.0 && layers * tokens / chunk > kMostPieces)
    throw InputError(
        "--chunk {}: up to {:.0f} chunks would be run one by one in {} layers; expected at least {:.0f}, "
        "or auto",
        cell.settings.chunk, tokens / chunk, bench.config.num_hidden_layers,
        std::ceil(layers * tokens / kMostPieces));
}

std::vector<LongestRow> longest_of_all(const Bench& bench, plan::Predictor& predictor,
                                       const plan::Budget& budget, ProgressLine& progress) {
  std::vector<LongestRow> rows;
  for (Cell& cell : list_cells(bench)) {
    const std::string method = cell.automatic ? "auto" : method_name(cell.settings.method);
    progress.show(fmt::format("{}, {}", cell.objective, method));
    require_quick(bench, cell, budget);
    const plan::TrainingStep step = step_of(bench, cell);
    if (!cell.automatic) {
      LongestRow row;
      row.fit = plan::longest(predictor, step, cell.settings, budget);
      cell.seq_len = row.fit.seq_len;
      cell.settings = row.fit.settings;
      row.cell = cell;
      rows.push_back(row);
      continue;
    }
    cell.automatic = false;
    rows.push_back(furthest_of(
        cell, plan::suggest(predictor, step, search_space(bench.options), budget, /*wanted=*/0), budget));
    progress.clear();
    if (bench.options.quiet) continue;
    print_line(stderr, "batch {}, {}: auto: {}", cell.batch, cell.objective,
               rows.back().choice.at("reason").get<std::string>());
  }
  return rows;
}

std::vector<LongestRow> suggestions(const Bench& bench, plan::Predictor& predictor,
                                    const plan::Budget& budget, int64_t wanted, ProgressLine& progress) {
  std::vector<LongestRow> rows;
  for (const int64_t batch : bench.options.batches) {
    for (const std::string& objective : bench.options.objectives) {
      Cell cell;
      cell.objective = objective;
      cell.batch = batch;
      require_quick(bench, cell, budget);
      progress.show(fmt::format("{}, batch {}: trying configurations", objective, batch));
      std::vector<plan::Suggestion> found =
          plan::suggest(predictor, step_of(bench, cell), search_space(bench.options), budget, wanted);
      // Where nothing fits, the table shows what comes nearest.
      if (std::none_of(found.begin(), found.end(), [](const plan::Suggestion& one) { return one.best; }))
        leanest_of(found, budget)->listed = true;
      for (const plan::Suggestion& one : found) rows.push_back(row_of(cell, one));
    }
  }
  return rows;
}

/// Objectives that take the same models.
struct Group {
  SweepOptions options;
  bool default_reference = false;
};

/// As TRL's trainers have it, an objective that compares with a reference has a frozen copy of the model next
/// to the policy, unless adapters make the base one.
std::vector<Group> groups_of(const SweepOptions& options, const RunFlags& flags) {
  if (flags.names_reference() || options.setup.lora || options.setup.adapter) return {{options, false}};
  std::vector<Group> groups;
  for (const std::string& objective : options.objectives) {
    const bool compares = plan::uses_reference(objective, options.objective_options);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& other) { return other.default_reference == compares; });
    if (group == groups.end()) {
      group = groups.insert(group, {options, compares});
      group->options.objectives.clear();
      if (compares) group->options.setup.reference = options.setup.model;
    }
    group->options.objectives.push_back(objective);
  }
  return groups;
}

/// Models of more budgets than this are beyond any change of settings: a device holds a layer at a time at
/// least, and none has so many of them.
constexpr int64_t kMostBudgets = 1024;

/// The budget holds the models, or an InputError says what would.
void check_floor(const Bench& bench, const Group& group, std::optional<plan::Predictor>& predictor,
                 const plan::Budget& budget, const std::string& typed_budget, ProgressLine& progress) {
  const plan::Prediction floor = predictor->floor();
  if (floor.peak_bytes <= budget.device) return;
  predictor.reset();
  std::string remedies = fmt::format("no settings make up for more than {} times the budget", kMostBudgets);
  if (floor.peak_bytes / kMostBudgets <= budget.device) {
    progress.show("looking for what would fit");
    remedies = describe_remedies(bench, group.default_reference, budget);
  }
  progress.clear();
  throw InputError(
      "--budget {}: below what {} needs before any pass{}, {}; {}", typed_budget, bench.options.setup.model,
      bench.options.setup.reference.empty() ? "" : " with the reference " + bench.options.setup.reference,
      plan::describe(floor.breakdown), remedies);
}

SweepOptions read_options(const RunFlags& flags, const TypedMaxLength& typed) {
  SweepOptions options;
  flags.read(options);
  if (typed.suggest && !flags.names_methods()) {
    options.methods.clear();
    options.picks_method = true;
  }
  options.quiet = typed.quiet;
  if (typed.device != "meta" && typed.device != "meta:cuda")
    throw InputError("--device '{}': lengths are predicted, expected meta or meta:cuda", typed.device);
  if (typed.seq_len > 0 && !typed.suggest)
    throw InputError("--seq-len: the wanted length, expected with --suggest");
  if (typed.seq_len > plan::kLongest)
    throw InputError("--seq-len {}: expected {} at most", typed.seq_len, plan::kLongest);
  options.device = typed.device;
  options.lengths = {plan::kShortest};
  return options;
}

std::optional<int64_t> margin_of(const TypedMaxLength& typed) {
  if (typed.margin.empty()) return std::nullopt;
  return typed.margin == "0" ? 0 : parse_bytes(typed.margin, "--margin");
}

int run_max_length(const RunFlags& flags, const TypedMaxLength& typed) {
  const SweepOptions options = read_options(flags, typed);
  AskedBudget asked{parse_budget(typed.budget, typed.device).bytes, {}};
  plan::Budget& budget = asked.usable;
  budget.device =
      plan::less_margin(asked.bytes, margin_of(typed), typed.device == "meta:cuda" ? c10::kCUDA : c10::kCPU);
  if (!typed.host_budget.empty()) budget.host = parse_bytes(typed.host_budget, "--host-budget");
  ProgressLine progress(!typed.quiet);
  std::vector<LongestRow> rows;
  std::vector<Counted> counted;
  for (const Group& group : groups_of(options, flags)) {
    const Bench bench = open_bench(group.options);
    progress.show("making " + options.setup.model);
    std::optional<plan::Predictor> predictor(std::in_place, bench.options.setup, bench.device);
    predictor->watch([&](int64_t done) { progress.go_on(fmt::format("{} passes predicted", done)); });
    check_floor(bench, group, predictor, budget, typed.budget, progress);
    counted.push_back(what_is_counted(bench, predictor->models(), group.default_reference));
    const std::vector<LongestRow> found =
        typed.suggest ? suggestions(bench, *predictor, budget, typed.seq_len, progress)
                      : longest_of_all(bench, *predictor, budget, progress);
    predictor.reset();
    progress.clear();
    rows.insert(rows.end(), found.begin(), found.end());
    const bool fits =
        std::any_of(found.begin(), found.end(), [](const LongestRow& row) { return row.fit.fits(); });
    if (!fits && typed.seq_len == 0)
      print_line(stderr, "streambp-bench: no length fits {}; {}", typed.budget,
                 describe_remedies(bench, group.default_reference, budget));
    if (!typed.json) continue;
    for (const LongestRow& row : found)
      fmt::print("{}\n", json_text(longest_json(bench, row, asked, counted.back())));
  }
  if (!typed.json) fmt::print("{}", longest_text(options, rows, asked, counted));
  const auto counts = [&](const LongestRow& row) { return typed.suggest ? row.best : !row.fit.fits(); };
  const bool any = std::any_of(rows.begin(), rows.end(), counts);
  return any == typed.suggest ? kExitGood : kExitOutOfMemory;
}

}  // namespace

void add_max_length_command(CLI::App& app, Action& action) {
  const auto typed = std::make_shared<TypedMaxLength>();
  CLI::App* const command = app.add_subcommand(
      "max-length",
      "The longest sequence that fits a memory budget, predicted without a GPU; lists are comma-separated");
  command->footer(plan::describe_cards() + "\n" + kMaxLengthExamples);
  const auto flags = std::make_shared<RunFlags>(*command, RunFlags::Defaults{"qwen3-8b", "model"});
  command
      ->add_option("--budget", typed->budget,
                   "Memory of the device, such as 80GB or 80GiB, or a card by name, such as h100-80")
      ->required();
  command->add_option("--margin", typed->margin,
                      "Of the budget, what tensors can't have: the device's driver, libraries and "
                      "fragmentation; default 1 GB and 2 % of a GPU's, 0 of a CPU's");
  command->add_option(
      "--host-budget", typed->host_budget,
      "Memory of the host for --offload host; with --suggest or --method auto, offloading is tried too");
  command->add_flag(
      "--suggest", typed->suggest,
      "Also try chunks and heads, and without --method all methods: which reach --seq-len, or the greatest "
      "length, at the least cost");
  command->add_option("--seq-len", typed->seq_len, "Wanted tokens of a sequence, with --suggest")
      ->check(from_to(1, static_cast<int>(plan::kLongest)));
  command
      ->add_option(
          "--device", typed->device,
          "What the answer is for: meta:cuda, a GPU, or meta, a CPU; their kernels and chunks differ")
      ->capture_default_str();
  command->add_flag("--json", typed->json, "Print a JSON object for each row instead of the table");
  command->add_flag("--quiet", typed->quiet, "No progress on the terminal");
  command->callback(
      [typed, flags, &action] { action = [typed, flags] { return run_max_length(*flags, *typed); }; });
}

}  // namespace streambp::bench
