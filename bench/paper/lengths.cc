// Table 3.
#include <algorithm>
#include <array>

#include "bench/paper/configurations.h"
#include "bench/paper/paper.h"
#include "bench/paper/published.h"
#include "streambp/plan/longest.h"

namespace streambp::bench {
namespace {

constexpr int64_t kPrompt = 1000;
constexpr int64_t kGroup = 8;

/// A column of table 3 as printed, such as "8B full", and what stands for it here.
struct LengthColumn {
  const char* name;
  const char* model;
  bool lora;
};
constexpr std::array<LengthColumn, 6> kColumns{{{"4B full", "qwen3-4b", false},
                                                {"4B LoRA", "qwen3-4b", true},
                                                {"8B full", "qwen3-8b", false},
                                                {"8B LoRA", "qwen3-8b", true},
                                                {"14B LoRA", "qwen3-14b", true},
                                                {"32B LoRA", "qwen3-32b", true}}};

SweepOptions options_of_column(const LengthColumn& column, const std::string& objective, int optimizer_bits) {
  SweepOptions options;
  options.setup.model = column.model;
  options.objectives = {objective};
  options.setup.optimizer = parse_optimizer(optimizer_bits > 0 ? "adamw" : "none",
                                            std::max(optimizer_bits, 8), false, at::kBFloat16);
  if (column.lora) options.setup.lora = paper_lora();
  if (objective == "sft") return options;
  options.prompt = kPrompt;
  // With adapters the reference is the base without them.
  if (!column.lora) options.setup.reference = column.model;
  if (objective == "grpo") {
    options.batches = {kGroup};
    options.objective_options = {{"beta", "0.04"}};
  }
  return options;
}

/// Thousands of tokens of one sequence; none where not even the shortest fits.
std::optional<double> thousands(std::optional<int64_t> seq_len, const std::string& objective) {
  if (!seq_len || *seq_len == 0) return std::nullopt;
  // A pair is one sample, the tokens of both its sequences together.
  return static_cast<double>(*seq_len) / (objective == "dpo" ? 2000.0 : 1000.0);
}

/// Fills in one cell for each configuration of `method`.
void add_cells(const PaperRun& run, PaperModel& model, const PaperCell& blank, Method method,
               PaperTable& table) {
  const std::string& objective = model.bench().options.objectives.front();
  for (const PaperConfiguration& one : trainer_configurations(method, objective)) {
    Cell cell{objective, one.settings, plan::kShortest, model.bench().options.batches.front()};
    PaperCell filled = blank;
    filled.configuration = one.name;
    filled.measured =
        thousands(run.measured.longest(cell_configuration(model.bench(), cell), run.budget), objective);
    if (model.predictor().floor().peak_bytes <= run.budget) {
      const plan::LongestFit fit =
          plan::longest(model.predictor(), step_of(model.bench(), cell), cell.settings, {run.budget, 0});
      filled.predicted = thousands(fit.seq_len, objective);
      if (fit.fits()) {
        cell.seq_len = fit.seq_len;
        nlohmann::json record = prediction_record(model.bench(), cell, *fit.at_longest);
        record.update(
            {{"budget_bytes", run.budget}, {"resolution_tokens", fit.resolution}, {"way", one.name}});
        table.records.push_back(record);
      }
    }
    table.cells.push_back(filled);
  }
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

void add_column(const PaperRun& run, const LengthColumn& column, const std::string& objective,
                PaperTable& table) {
  PaperModel model(options_of_column(column, objective, column.lora ? 32 : 8));
  for (const PublishedLength& published : published_lengths()) {
    if (published.objective != objective || published.column != column.name) continue;
    run.progress(fmt::format("table 3: {} {}, {}", upper(objective), column.name, published.method));
    PaperCell cell{table.name, upper(objective), published.method, column.name, "", "thousands of tokens",
                   true};
    cell.published = published.thousands;
    add_cells(run, model, cell, parse_method(published.method), table);
  }
}

/// Which states agree with the published lengths of full fine-tuning.
void add_optimizers(const PaperRun& run, PaperTable& table) {
  const LengthColumn& column = kColumns[2];
  for (const int bits : {0, 8, 16, 32}) {
    run.progress(fmt::format("table 3: SFT {}, optimizer states of {} bits", column.name, bits));
    PaperModel model(options_of_column(column, "sft", bits));
    for (const PublishedLength& published : published_lengths()) {
      if (published.objective != "sft" || published.column != column.name) continue;
      PaperCell cell{"3, optimizer",
                     "8B full, SFT, by AdamW's states",
                     published.method,
                     bits == 0 ? "none" : fmt::format("2 x {} bits", bits),
                     "",
                     "thousands of tokens",
                     true};
      cell.published = published.thousands;
      add_cells(run, model, cell, parse_method(published.method), table);
    }
  }
}

/// "2.1 (standard), ...": what the published lengths leave for an optimizer, from the paper's own curves.
std::string bytes_left(int64_t budget) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const auto parameters = static_cast<double>(parameter_count(preset("qwen3-8b")));
  std::vector<std::string> texts;
  for (const PublishedCurve& curve : published_curves()) {
    if (curve.model != "qwen3-8b") continue;
    for (const PublishedLength& length : published_lengths()) {
      if (length.objective != "sft" || length.column != kColumns[2].name || length.method != curve.method)
        continue;
      const double taken = (curve.floor + curve.slope * *length.thousands) * kGiB;
      texts.push_back(
          fmt::format("{:.1f} ({})", (static_cast<double>(budget) - taken) / parameters, curve.method));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

PaperTable paper_lengths(const PaperRun& run) {
  PaperTable table{"3", "Table 3: the longest sequence, thousands of tokens", {}, {}, {}};
  table.assumptions = {
      "weights and gradients in bfloat16; Qwen3 at its published sizes, batch 1 in one packed stream without "
      "padding",
      fmt::format("full: AdamW with two states of 8 bits, which the paper does not say. Its curves and "
                  "lengths of 8B full "
                  "SFT leave {} bytes per parameter in addition to weights and gradients of 2 bytes each",
                  bytes_left(run.budget)),
      "LoRA: rank 32, alpha 128, all linear layers; AdamW with two float32 states of the adapters",
      "DPO: a pair of two sequences of the length that is given, prompt of 1,000 tokens in each; GRPO: 8 "
      "sequences of that "
      "length in one batch, prompt of 1,000 tokens, beta 0.04. Where a sequence is shorter than 2,000 tokens "
      "its "
      "prompt is half of it: the published lengths below 1,000 can't have had the longer one",
      "DPO and GRPO, full: a frozen bfloat16 reference model stays next to the policy; LoRA: the reference "
      "is "
      "the base "
      "model without adapters",
      "checkpoint and standard take the whole batch's logits in float32 for every objective, as transformers "
      "does for "
      "SFT; TRL's DPO and GRPO take them sequence by sequence in bfloat16, so that their published baselines "
      "are leaner "
      "than these",
      "predicted: the engine's own allocations on the meta device; neither a CUDA context nor fragmentation"};
  for (const char* objective : {"sft", "grpo", "dpo"}) {
    for (const LengthColumn& column : kColumns) add_column(run, column, objective, table);
  }
  add_optimizers(run, table);
  return table;
}

}  // namespace streambp::bench
