#include "bench/records/longest_report.h"

#include <algorithm>
#include <fmt/ranges.h>

#include "bench/cli/records.h"
#include "bench/cli/table.h"
#include "bench/records/json_members.h"
#include "bench/sweep/setting_members.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/runtime/bytes.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr size_t kWidth = 120;  // of a table without flags
constexpr const char* kNoRow = "-";

const plan::Prediction& shown_of(const LongestRow& row) {
  return row.fit.fits() ? *row.fit.at_longest : row.fit.at_shortest;
}

/// What a pass keeps of its layers, in a word or two.
std::string describe_kept(const Settings& settings) {
  const auto describe = method_kind(settings.method).describe_kept;
  return describe == nullptr ? kNoRow : describe(settings);
}

struct LongestColumn {
  std::string name;
  std::vector<std::string> cells;
  bool always = false;  // in the table, even where all cells are alike

  bool alike() const {
    return std::all_of(cells.begin(), cells.end(), [&](const auto& c) { return c == cells[0]; });
  }
  size_t width() const {
    size_t most = name.size();
    for (const std::string& cell : cells) most = std::max(most, cell.size());
    return most;
  }
};

void add_cells(const LongestRow& row, std::vector<LongestColumn>& columns) {
  const Settings& settings = row.cell.settings;
  const plan::Prediction& shown = shown_of(row);
  const std::string cells[] = {row.cell.objective,
                               method_name(settings.method) + (row.choice.is_null() ? "" : " auto"),
                               shown.chunk > 0 ? fmt::format("{}", shown.chunk) : kNoRow,
                               describe_kept(settings),
                               settings.streams_head() ? "streamed" : "full",
                               fmt::format("{}", row.cell.batch),
                               row.fit.fits() ? fmt::format("{}", shown.seq_len) : kNoRow,
                               row.fit.fits() ? fmt::format("{}", shown.tokens) : kNoRow,
                               format_bytes(shown.peak_bytes),
                               shown.host_peak_bytes > 0 ? format_bytes(shown.host_peak_bytes) : kNoRow};
  for (size_t i = 0; i < columns.size(); ++i) columns[i].cells.push_back(cells[i]);
}

/// The largest parts of the peak in at most `width` characters.
std::string parts_of(const LongestRow& row, size_t width) {
  const plan::Prediction& shown = shown_of(row);
  std::string text = plan::describe(shown.breakdown);
  text = text.substr(text.find(':') + 2);
  if (!row.fit.fits()) text = fmt::format("at {} tokens: {}", shown.seq_len, text);
  if (text.size() <= width) return text;
  const size_t end = text.rfind(',', width > 5 ? width - 5 : 0);
  return (end == std::string::npos ? text.substr(0, text.find(',')) : text.substr(0, end)) + ", ...";
}

/// What all rows have in common, for above the table; taken out of `columns`.
std::string take_common(std::vector<LongestColumn>& columns) {
  std::vector<std::string> words;
  std::erase_if(columns, [&](const LongestColumn& column) {
    if (column.always || !column.alike()) return false;
    if (column.cells[0] != kNoRow && column.name != "tokens")
      words.push_back(column.name + " " + column.cells[0]);
    return true;
  });
  return fmt::format("{}", fmt::join(words, ", "));
}

/// "adamw in 32 bits", "no optimizer".
std::string optimizer_text(const plan::ModelSetup& setup) {
  if (setup.fused_optimizer) return "fused " + setup.fused_optimizer->name;
  const OptimizerStates& states = setup.optimizer;
  if (states.states == 0) return states.name == "none" ? "no optimizer" : states.name;
  return fmt::format("{} in {} bits", states.name, 8 * c10::elementSize(states.dtype));
}

std::string longest_table_of(const SweepOptions& options, const std::vector<const LongestRow*>& rows) {
  std::vector<LongestColumn> columns{
      {"objective", {}}, {"method", {}, true},  {"chunk", {}},  {"keeps", {}},      {"head", {}},
      {"batch", {}},     {"seq_len", {}, true}, {"tokens", {}}, {"peak", {}, true}, {"host", {}}};
  for (const LongestRow* row : rows) add_cells(*row, columns);
  const auto of = [&](const char* name) {
    return std::find_if(columns.begin(), columns.end(),
                        [&](const LongestColumn& column) { return column.name == name; });
  };
  if (of("tokens")->cells == of("seq_len")->cells) columns.erase(of("tokens"));
  if (rows.front()->cost) {  // flags to paste say what these columns do
    std::erase_if(columns, [](const LongestColumn& column) {
      return column.name == "method" || column.name == "chunk" || column.name == "keeps" ||
             column.name == "head";
    });
  }
  const std::string common = take_common(columns);
  if (rows.front()->cost) {
    LongestColumn cost{"cost", {}}, flags{"flags", {}};
    for (const LongestRow* row : rows) {
      flags.cells.push_back(settings_flags(row->cell.settings) + (row->best ? "  <- the answer" : ""));
      cost.cells.push_back(fmt::format("{:.3f}", row->cost.value_or(0.0)));
    }
    columns.insert(columns.end(), {cost, flags});
  } else {
    size_t used = 0;
    for (const LongestColumn& column : columns) used += column.width() + 2;
    LongestColumn parts{"of it", {}};
    for (const LongestRow* row : rows)
      parts.cells.push_back(parts_of(*row, used + 20 < kWidth ? kWidth - used : 20));
    columns.push_back(parts);
  }
  std::vector<std::string> header;
  for (const LongestColumn& column : columns) header.push_back(column.name);
  Table table(header);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> cells;
    for (const LongestColumn& column : columns) cells.push_back(column.cells[i]);
    table.add(cells);
  }
  return fmt::format("{} in {} on {}, {}{}{}\n", options.setup.model, dtype_name(options.setup.dtype),
                     options.device == "meta:cuda" ? "a GPU" : "a CPU", optimizer_text(options.setup),
                     common.empty() ? "" : ": ", common) +
         table.text();
}

/// One line for each batch and objective: the answer as it is typed.
std::string answers(const std::vector<LongestRow>& rows) {
  std::string text;
  for (const LongestRow& row : rows) {
    if (!row.best) continue;
    text += fmt::format("{}, batch {}: {} reaches {} tokens at {:.3f} x the time of standard\n",
                        row.cell.objective, row.cell.batch, settings_flags(row.cell.settings),
                        row.fit.seq_len, *row.cost);
    const auto furthest =
        std::max_element(rows.begin(), rows.end(), [&](const LongestRow& a, const LongestRow& b) {
          const auto reach = [&](const LongestRow& one) {
            return one.cell.objective == row.cell.objective && one.cell.batch == row.cell.batch
                       ? one.fit.seq_len
                       : -1;
          };
          return reach(a) < reach(b);
        });
    if (furthest->fit.seq_len > row.fit.seq_len) {
      text += fmt::format(
          "  {:.1f} % further, at {:.3f} x: {}\n",
          100.0 * (static_cast<double>(furthest->fit.seq_len) / static_cast<double>(row.fit.seq_len) - 1.0),
          furthest->cost.value_or(0.0), settings_flags(furthest->cell.settings));
    }
  }
  return text.empty() ? "" : text + "\n";
}

/// "a pair, half of them for each of its two sequences".
std::string sample_of(const ObjectiveKind& kind) {
  if (has_pairs(kind.layout)) return "a pair, half for each of its two sequences";
  if (kind.layout == Layout::kTexts) return "an anchor and its texts, alike for each";
  return "a sequence";
}

std::string meaning_of_length(const std::vector<std::string>& objectives) {
  std::vector<std::pair<std::string, std::vector<std::string>>> samples;
  for (const std::string& name : objectives) {
    const std::string sample = sample_of(objective_kind(name));
    const auto found =
        std::find_if(samples.begin(), samples.end(), [&](const auto& s) { return s.first == sample; });
    (found != samples.end() ? *found : samples.emplace_back(sample, std::vector<std::string>{}))
        .second.push_back(name);
  }
  std::vector<std::string> texts;
  for (const auto& [sample, names] : samples)
    texts.push_back(fmt::format("{} ({})", sample, fmt::join(names, ", ")));
  return fmt::format("seq_len: tokens of {}\n", fmt::join(texts, "; of "));
}

/// " (the layers' matrices in nf4, experts not, and one layer's dequantised)"; "" of what is not quantised.
std::string packed_matrices(const std::optional<Quantization>& quantization, bool has_experts) {
  if (!quantization) return "";
  const char* const doubly = quantization->double_quant ? ", double quantised" : "";
  const char* const experts = quantization->experts ? ", experts too" : ", experts not";
  return fmt::format(" (the layers' matrices in {}{}{}, and one layer's dequantised)",
                     quant_type_name(quantization->type), doubly, has_experts ? experts : "");
}

std::string weights_and_gradients(const Bench& bench) {
  const plan::ModelSetup& setup = bench.options.setup;
  std::string weights = dtype_name(setup.dtype);
  if (setup.head_dtype) weights += fmt::format(" (lm_head's in {})", dtype_name(*setup.head_dtype));
  const std::string gradients = dtype_name(setup.gradient_dtype);
  const std::string trained = setup.lora || setup.adapter ? " of the adapters" : "";
  const std::string alive = setup.fused_optimizer ? " (one layer's at a time)" : "";
  if (setup.weights_on_host)
    return fmt::format("weights (of layers two at a time) in {}, gradients{}{} in {}", weights, trained,
                       alive, gradients);
  if (setup.dtype == setup.gradient_dtype && trained.empty())
    return fmt::format("weights and gradients{} in {}", alive, weights);
  const std::string packed = packed_matrices(setup.quantization, bench.config.mixture.num_experts > 0);
  return fmt::format("weights in {}{}, gradients{}{} in {}", weights, packed, trained, alive, gradients);
}

void count_optimizer(const plan::ModelSetup& setup, const plan::Models& models, Counted& result) {
  const OptimizerStates& states = setup.optimizer;
  if (setup.fused_optimizer) {
    if (setup.fused_optimizer->name != "sgd")
      result.counted.push_back("states of the fused " + setup.fused_optimizer->name);
  } else if (states.states > 0) {
    result.counted.push_back(
        fmt::format("states of {} in {} bits", states.name, 8 * c10::elementSize(states.dtype)));
  } else if (states.name == "paged-adamw") {
    result.not_counted.emplace_back("optimizer states, paged to the host's memory");
  } else {
    int64_t trained = 0;
    for (const auto& parameter : models.policy->parameters()) {
      if (parameter->trainable()) trained += parameter->value.numel();
    }
    constexpr int64_t kMoments = 2 * sizeof(float);
    result.not_counted.push_back(
        fmt::format("optimizer states (--optimizer adamw adds {})", format_bytes(trained * kMoments)));
  }
  const auto& fused = setup.fused_optimizer;
  if (states.master_weights || (fused && fused->master_weights))
    result.counted.emplace_back("a float32 copy of the trained weights");
}

void count_reference(const Bench& bench, bool default_reference, Counted& result) {
  const plan::ModelSetup& setup = bench.options.setup;
  const bool compares = std::any_of(
      result.objectives.begin(), result.objectives.end(),
      [&](const std::string& name) { return plan::uses_reference(name, bench.options.objective_options); });
  if (!compares && setup.reference.empty()) return;
  if (setup.reference.empty()) {
    const bool adapted = setup.lora || setup.adapter;
    result.not_counted.emplace_back(adapted ? "a reference model (the base without its adapters is one)"
                                            : "a reference model (its log-probabilities are given)");
  } else if (setup.release_reference) {
    result.not_counted.push_back(
        fmt::format("the reference model {}, released before the passes", setup.reference));
  } else {
    result.counted.push_back(fmt::format("the weights of the reference model {}{}", setup.reference,
                                         default_reference ? " (--reference none leaves it out)" : ""));
  }
}

std::string counted_text(const Counted& counted, bool names_objectives) {
  const std::string of =
      names_objectives ? fmt::format(" ({})", fmt::join(counted.objectives, ", ")) : std::string();
  return fmt::format("counted{}: {}\nnot counted{}: {}\n", of, fmt::join(counted.counted, ", "), of,
                     fmt::join(counted.not_counted, ", "));
}

}  // namespace

Counted what_is_counted(const Bench& bench, const plan::Models& models, bool default_reference) {
  const plan::ModelSetup& setup = bench.options.setup;
  Counted result{bench.options.objectives, {weights_and_gradients(bench)}, {}};
  count_optimizer(setup, models, result);
  count_reference(bench, default_reference, result);
  if (!setup.teacher.empty()) result.counted.push_back("the weights of the teacher " + setup.teacher);
  if (setup.trainer != plan::Trainer::kNone)
    result.counted.push_back(
        fmt::format("what the loop {} keeps of its own (--trainer)", plan::trainer_name(setup.trainer)));
  result.counted.emplace_back("all tensors of one forward and backward pass");
  const bool samples =
      std::any_of(result.objectives.begin(), result.objectives.end(), [](const std::string& name) {
        const Layout layout = objective_kind(name).layout;
        return layout == Layout::kCompletions || layout == Layout::kResponses;
      });
  if (samples) result.not_counted.emplace_back("the sampling of completions and reward models");
  if (!setup.optimizer.foreach) result.not_counted.emplace_back("the optimizer's step");
  result.not_counted.emplace_back("what a device's driver and libraries take");
  return result;
}

json longest_json(const Bench& bench, const LongestRow& row, const AskedBudget& budget,
                  const Counted& counted) {
  const plan::LongestFit& fit = row.fit;
  const plan::Prediction& shown = shown_of(row);
  json object = cell_configuration(bench, row.cell);
  object.update({{"schema", kRecordSchema},
                 {"kind", "predicted"},
                 {"budget_bytes", budget.bytes},
                 {"margin_bytes", budget.margin()},
                 {"host_budget_bytes", positive_or_null(budget.usable.host)},
                 {"seq_len", fit.fits() ? shown.seq_len : 0},
                 {"tokens", fit.fits() ? shown.tokens : 0},
                 {"model_flops", shown.model_flops},
                 {"hardware_flops", shown.hardware_flops},
                 {"resolution_tokens", fit.resolution},
                 {"chunk", positive_or_null(shown.chunk)},
                 {"head_chunk", positive_or_null(shown.head_chunk)},
                 {"peak_bytes", shown.peak_bytes},
                 {"resident_bytes", shown.resident_bytes},
                 {"host_peak_bytes", shown.host_peak_bytes},
                 {"breakdown", shown.breakdown},
                 {"counted", counted.counted},
                 {"not_counted", counted.not_counted},
                 {"evaluations", fit.evaluations},
                 {"status", fit.fits() ? "ok" : "oom"},
                 {"error", nullptr}});
  if (!fit.fits())
    object["error"] = fmt::format("{} tokens need {}", shown.seq_len, plan::describe(shown.breakdown));
  if (row.cost) object.update({{"relative_cost", *row.cost}, {"suggested", row.best}});
  if (!row.choice.is_null()) object["choice"] = row.choice;
  return object;
}

std::string longest_text(const SweepOptions& options, const std::vector<LongestRow>& rows,
                         const AskedBudget& budget, const std::vector<Counted>& counted) {
  std::vector<const LongestRow*> listed;
  for (const LongestRow& row : rows) {
    if (row.listed) listed.push_back(&row);
  }
  std::string text = answers(rows);
  if (!listed.empty()) text += longest_table_of(options, listed);
  if (listed.size() < rows.size()) {
    text += fmt::format("{} of {} configurations; --json has all of them\n", listed.size(), rows.size());
  }
  text += meaning_of_length(options.objectives);
  for (const Counted& one : counted) text += counted_text(one, counted.size() > 1);
  text += fmt::format("budget: {} ({} bytes)", format_bytes(budget.bytes), budget.bytes);
  if (budget.margin() > 0) {
    text += fmt::format(", {} of them left to the driver, libraries and fragmentation (--margin)",
                        format_bytes(budget.margin()));
  }
  const int64_t host = budget.usable.host;
  return text + (host > 0 ? fmt::format("; of the host {}", format_bytes(host)) : "") + "\n";
}

}  // namespace streambp::bench
