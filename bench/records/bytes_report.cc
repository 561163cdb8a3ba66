#include "bench/records/bytes_report.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/cli/records.h"
#include "bench/cli/table.h"
#include "streambp/plan/configurations.h"
#include "streambp/runtime/bytes.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

std::string rounded(double bytes) {
  return format_bytes(std::llround(bytes));
}

std::string slope_text(const plan::BytesPerToken& bytes) {
  return rounded(bytes.device()) +
         (bytes.host() > 0.0 ? fmt::format(" + {} host", rounded(bytes.host())) : "");
}

/// Half of what a token hands on in a layer, their mean where layers differ: K E, or of latent attention.
double carry_width(const Config& config) {
  int64_t sum = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) sum += config.carry_width(layer);
  return static_cast<double>(sum) / static_cast<double>(2 * config.num_hidden_layers);
}

/// D / (K E).
double width_ratio(const ModelBytes& model) {
  const Config& config = model.config;
  return static_cast<double>(config.residual_width()) / carry_width(config);
}

const plan::BytesPerToken* plain(const ModelBytes& model, Method method) {
  const auto& all = model.configurations;
  const auto found = std::find_if(all.begin(), all.end(), [&](const CellBytes& one) {
    const Settings& settings = one.cell.settings;
    return settings.method == method &&
           std::all_of(setting_kinds().begin(), setting_kinds().end(), [&](const SettingKind& kind) {
             return kind.candidates == nullptr || is_default(kind, settings);
           });
  });
  return found == all.end() ? nullptr : &found->bytes;
}

std::string measured_over(const ModelBytes& model, Method method, int64_t analytic) {
  const plan::BytesPerToken* const bytes = plain(model, method);
  if (bytes == nullptr || analytic == 0) return "-";
  return fmt::format("{:.3f}", bytes->device() / static_cast<double>(analytic));
}

std::string winner(double layer_inputs, double keys_values) {
  if (layer_inputs == keys_values) return "equal";
  return layer_inputs < keys_values ? "streambp" : "chunk-major";
}

std::string title(const ModelBytes& model) {
  return model.workload.empty() ? model.model : fmt::format("{}, {}", model.model, model.workload);
}

using Grid = std::vector<std::vector<std::string>>;  // the header first

/// A row for each model, a column for each configuration.
Grid grid(const std::vector<ModelBytes>& models,
          const std::function<std::string(const plan::BytesPerToken&)>& cell_text) {
  const auto name_of = [](const CellBytes& one) { return configuration_text(one.cell.settings); };
  std::vector<std::string> names;
  for (const ModelBytes& model : models) {
    for (const CellBytes& one : model.configurations) {
      if (std::find(names.begin(), names.end(), name_of(one)) == names.end()) names.push_back(name_of(one));
    }
  }
  Grid rows{{"model"}};
  rows.front().insert(rows.front().end(), names.begin(), names.end());
  for (const ModelBytes& model : models) {
    const auto& all = model.configurations;
    std::vector<std::string> row{title(model)};
    for (const std::string& name : names) {
      const auto found =
          std::find_if(all.begin(), all.end(), [&](const CellBytes& one) { return name_of(one) == name; });
      row.push_back(found == all.end() ? "-" : cell_text(found->bytes));
    }
    rows.push_back(row);
  }
  return rows;
}

Grid crossover_grid(const std::vector<ModelBytes>& models) {
  Grid rows{{"model", "D", "L", "full L", "K E", "D / K E", "inputs", "streambp / it", "keys, values",
             "chunk-major / it", "predicted", "measured"}};
  for (const ModelBytes& model : models) {
    const Config& config = model.config;
    rows.push_back(
        {title(model), fmt::format("{}", config.hidden_size), fmt::format("{}", config.num_hidden_layers),
         fmt::format("{}", model.layers_without_window), fmt::format("{:.4g}", carry_width(config)),
         fmt::format("{:.2f}", width_ratio(model)), format_bytes(model.analytic.layer_inputs),
         measured_over(model, Method::kStreambp, model.analytic.layer_inputs),
         format_bytes(model.analytic.keys_values),
         measured_over(model, Method::kChunkMajor, model.analytic.keys_values), predicted_winner(model),
         measured_winner(model)});
  }
  return rows;
}

std::string as_table(const Grid& rows) {
  Table table(rows.front());
  for (size_t i = 1; i < rows.size(); ++i) table.add(rows[i]);
  return table.text();
}

std::string as_markdown(const Grid& rows) {
  std::string text = fmt::format("| {} |\n|---|", fmt::join(rows.front(), " | "));
  for (size_t i = 1; i < rows.front().size(); ++i) text += "---:|";
  text += "\n";
  for (size_t i = 1; i < rows.size(); ++i) text += fmt::format("| {} |\n", fmt::join(rows[i], " | "));
  return text;
}

Grid intercepts(const std::vector<ModelBytes>& models) {
  return grid(models, [](const plan::BytesPerToken& bytes) { return rounded(bytes.intercept()); });
}

}  // namespace

std::string predicted_winner(const ModelBytes& model) {
  return winner(static_cast<double>(model.analytic.layer_inputs),
                static_cast<double>(model.analytic.keys_values));
}

std::string measured_winner(const ModelBytes& model) {
  const plan::BytesPerToken* const inputs = plain(model, Method::kStreambp);
  const plan::BytesPerToken* const keys_values = plain(model, Method::kChunkMajor);
  return inputs == nullptr || keys_values == nullptr ? "-" : winner(inputs->device(), keys_values->device());
}

std::string bytes_table(const std::vector<ModelBytes>& models) {
  return "bytes per token\n" + as_table(grid(models, slope_text)) + "\nintercept: bytes at a length of 0\n" +
         as_table(intercepts(models)) + "\nstreambp's layer inputs and chunk-major's keys and values\n" +
         as_table(crossover_grid(models));
}

std::string bytes_markdown(const std::vector<ModelBytes>& models, int64_t shorter, int64_t longer) {
  return fmt::format(
      "# Bytes per token\n\n"
      "Slope of the predicted peak between {} and {} tokens, by model and configuration.\n\n{}\n"
      "## Intercept\n\n"
      "Where the same lines meet a length of 0: weights, gradients, and what does not grow.\n\n{}\n"
      "## Layer inputs or keys and values\n\n"
      "By design streambp keeps D numbers a layer and token (`inputs`), chunk-major 2 K E keys and values of "
      "each layer and as many gradients of those without a window (`full L`), of half-precision ones in "
      "float32 "
      "(`keys, values`). Next to each the slope as a multiple of it: 1 where nothing else grows. The smaller "
      "of "
      "the two is the predicted winner, the smaller slope the measured one: in bfloat16 the two meet at "
      "D / K E = 6 where no layer has a window.\n\n{}",
      shorter, longer, as_markdown(grid(models, slope_text)), as_markdown(intercepts(models)),
      as_markdown(crossover_grid(models)));
}

json bytes_record(const Bench& bench, const ModelBytes& model, const CellBytes& one) {
  const plan::BytesPerToken& bytes = one.bytes;
  json record = prediction_record(bench, one.cell, bytes.longer);
  const json lengths{bytes.shorter.seq_len, bytes.longer.seq_len};
  const Config& config = model.config;
  record.update({{"key", record_key({cell_configuration(bench, one.cell), lengths})},
                 {"way", configuration_text(one.cell.settings)},
                 {"seq_lens", lengths},
                 {"peaks", {bytes.shorter.peak_bytes, bytes.longer.peak_bytes}},
                 {"host_peaks", {bytes.shorter.host_peak_bytes, bytes.longer.host_peak_bytes}},
                 {"bytes_per_token", bytes.device()},
                 {"host_bytes_per_token", bytes.host()},
                 {"intercept_bytes", bytes.intercept()},
                 {"hidden_size", config.hidden_size},
                 {"layers", config.num_hidden_layers},
                 {"layers_without_window", model.layers_without_window},
                 {"key_value_width", carry_width(config)},
                 {"analytic_layer_inputs", model.analytic.layer_inputs},
                 {"analytic_keys_values", model.analytic.keys_values},
                 {"predicted_winner", predicted_winner(model)},
                 {"measured_winner", measured_winner(model)}});
  return record;
}

}  // namespace streambp::bench
