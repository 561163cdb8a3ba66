#include "bench/bytes_per_token.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/ways.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/records.h"
#include "streambp/cli/table.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

std::string rounded(double bytes) {
  return format_bytes(std::llround(bytes));
}

std::string slope_text(const BytesPerToken& way) {
  return rounded(way.device()) + (way.host() > 0.0 ? fmt::format(" + {} host", rounded(way.host())) : "");
}

/// D / (K E).
double width_ratio(const ModelBytes& model) {
  const Config& config = model.config;
  return static_cast<double>(config.hidden_size) /
         static_cast<double>(config.num_key_value_heads * config.head_dim);
}

const BytesPerToken* plain(const ModelBytes& model, Method method) {
  const auto found = std::find_if(model.ways.begin(), model.ways.end(), [&](const BytesPerToken& way) {
    const Settings& settings = way.cell.settings;
    return settings.method == method && !settings.keep_attention && settings.every == 1 &&
           settings.offload == Offload::kNone;
  });
  return found == model.ways.end() ? nullptr : &*found;
}

std::string measured_over(const ModelBytes& model, Method method, int64_t analytic) {
  const BytesPerToken* const way = plain(model, method);
  if (way == nullptr || analytic == 0) return "-";
  return fmt::format("{:.3f}", way->device() / static_cast<double>(analytic));
}

std::string winner(double layer_inputs, double keys_values) {
  if (layer_inputs == keys_values) return "equal";
  return layer_inputs < keys_values ? "streambp" : "chunk-major";
}

std::string title(const ModelBytes& model) {
  return model.workload.empty() ? model.model : fmt::format("{}, {}", model.model, model.workload);
}

using Grid = std::vector<std::vector<std::string>>;  // the header first

/// A row for each model, a column for each way.
Grid grid(const std::vector<ModelBytes>& models,
          const std::function<std::string(const BytesPerToken&)>& cell_text) {
  std::vector<std::string> ways;
  for (const ModelBytes& model : models) {
    for (const BytesPerToken& way : model.ways) {
      const std::string name = describe_way(way.cell.settings);
      if (std::find(ways.begin(), ways.end(), name) == ways.end()) ways.push_back(name);
    }
  }
  Grid rows{{"model"}};
  rows.front().insert(rows.front().end(), ways.begin(), ways.end());
  for (const ModelBytes& model : models) {
    std::vector<std::string> row{title(model)};
    for (const std::string& name : ways) {
      const auto found = std::find_if(model.ways.begin(), model.ways.end(), [&](const BytesPerToken& way) {
        return describe_way(way.cell.settings) == name;
      });
      row.push_back(found == model.ways.end() ? "-" : cell_text(*found));
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
    rows.push_back({title(model), fmt::format("{}", config.hidden_size),
                    fmt::format("{}", config.num_hidden_layers),
                    fmt::format("{}", model.layers_without_window),
                    fmt::format("{}", config.num_key_value_heads * config.head_dim),
                    fmt::format("{:.2f}", width_ratio(model)), format_bytes(model.analytic.layer_inputs),
                    measured_over(model, Method::kStreambp, model.analytic.layer_inputs),
                    format_bytes(model.analytic.keys_values),
                    measured_over(model, Method::kChunkMajor, model.analytic.keys_values),
                    predicted_winner(model), measured_winner(model)});
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
  return grid(models, [](const BytesPerToken& way) { return rounded(way.intercept()); });
}

}  // namespace

double BytesPerToken::intercept() const {
  return static_cast<double>(longer.peak_bytes) - device() * static_cast<double>(longer.tokens);
}

BytesPerToken bytes_per_token(Predictor& predictor, Cell cell, int64_t shorter, int64_t longer) {
  if (shorter < 1 || longer <= shorter)
    throw InputError("lengths {} and {}: expected two, the longer one last", shorter, longer);
  BytesPerToken bytes;
  cell.seq_len = shorter;
  bytes.shorter = predictor.predict(cell);
  cell.seq_len = longer;
  bytes.longer = predictor.predict(cell);
  bytes.cell = cell;
  return bytes;
}

int64_t layers_without_window(const Config& config, int64_t seq_len) {
  return std::count_if(config.windows.begin(), config.windows.end(),
                       [&](int64_t window) { return window == 0 || window >= seq_len; });
}

AnalyticBytes analytic_bytes(const Config& config, at::ScalarType dtype, int64_t seq_len) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t both = 2 * config.num_key_value_heads * config.head_dim;
  return {element * config.hidden_size * config.num_hidden_layers,
          both * (element * config.num_hidden_layers +
                  std::max<int64_t>(element, 4) * layers_without_window(config, seq_len))};
}

std::string predicted_winner(const ModelBytes& model) {
  return winner(static_cast<double>(model.analytic.layer_inputs),
                static_cast<double>(model.analytic.keys_values));
}

std::string measured_winner(const ModelBytes& model) {
  const BytesPerToken* const inputs = plain(model, Method::kStreambp);
  const BytesPerToken* const keys_values = plain(model, Method::kChunkMajor);
  return inputs == nullptr || keys_values == nullptr ? "-" : winner(inputs->device(), keys_values->device());
}

std::string bytes_table(const std::vector<ModelBytes>& models) {
  return "bytes a token\n" + as_table(grid(models, slope_text)) + "\nbytes of no token\n" +
         as_table(intercepts(models)) + "\nstreambp's layer inputs against chunk-major's keys and values\n" +
         as_table(crossover_grid(models));
}

std::string bytes_markdown(const std::vector<ModelBytes>& models, int64_t shorter, int64_t longer) {
  return fmt::format(
      "# Bytes a token\n\n"
      "Slope of the predicted peak between {} and {} tokens, by model and way of running.\n\n{}\n"
      "## Bytes of no token\n\n"
      "Where the same lines meet a length of 0: weights, gradients, and what does not grow.\n\n{}\n"
      "## Layer inputs or keys and values\n\n"
      "By design streambp keeps D numbers a layer and token (`inputs`), chunk-major 2 K E keys and values of "
      "each layer and as many gradients of those without a window (`full L`), of half-precision ones in "
      "float32 "
      "(`keys, values`). Beside each the slope as a multiple of it: 1 where nothing else grows. The smaller "
      "of "
      "the two is the predicted winner, the smaller slope the measured one: in bfloat16 the two meet at "
      "D / K E = 6 where no layer has a window.\n\n{}",
      shorter, longer, as_markdown(grid(models, slope_text)), as_markdown(intercepts(models)),
      as_markdown(crossover_grid(models)));
}

json bytes_record(const Bench& bench, const ModelBytes& model, const BytesPerToken& way) {
  json record = prediction_record(bench, way.cell, way.longer);
  const json lengths{way.shorter.seq_len, way.longer.seq_len};
  const Config& config = model.config;
  record.update({{"key", record_key({cell_configuration(bench, way.cell), lengths})},
                 {"way", describe_way(way.cell.settings)},
                 {"seq_lens", lengths},
                 {"peaks", {way.shorter.peak_bytes, way.longer.peak_bytes}},
                 {"host_peaks", {way.shorter.host_peak_bytes, way.longer.host_peak_bytes}},
                 {"bytes_per_token", way.device()},
                 {"host_bytes_per_token", way.host()},
                 {"intercept_bytes", way.intercept()},
                 {"hidden_size", config.hidden_size},
                 {"layers", config.num_hidden_layers},
                 {"layers_without_window", model.layers_without_window},
                 {"key_value_width", config.num_key_value_heads * config.head_dim},
                 {"analytic_layer_inputs", model.analytic.layer_inputs},
                 {"analytic_keys_values", model.analytic.keys_values},
                 {"predicted_winner", predicted_winner(model)},
                 {"measured_winner", measured_winner(model)}});
  return record;
}

}  // namespace streambp::bench
