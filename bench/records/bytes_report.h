// Tables and records of the bytes of a token (streambp/plan/bytes_per_token.h), by model and configuration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/sweep/cells/cell.h"
#include "streambp/plan/bytes_per_token.h"

namespace streambp::bench {

/// A configuration of a model.
struct CellBytes {
  Cell cell;  // at the longer length; its chunk is what was asked for
  plan::BytesPerToken bytes;
};

/// A model with its configurations, in the order of the command line.
struct ModelBytes {
  std::string model;
  std::string workload;  // objective and batch, where there are several
  Config config;
  int64_t layers_without_window = 0;  // at the longer length
  plan::AnalyticBytes analytic;
  std::vector<CellBytes> configurations;
};

/// The cheaper one of streambp and chunk-major in their plain settings: as predicted from `analytic`, and by
/// the slopes ("-" unless both are among the configurations).
std::string predicted_winner(const ModelBytes& model);
std::string measured_winner(const ModelBytes& model);

/// For a terminal: a row for each model, a column for each configuration, slopes and then intercepts.
std::string bytes_table(const std::vector<ModelBytes>& models);

/// The same as Markdown, with what the crossover comes from.
std::string bytes_markdown(const std::vector<ModelBytes>& models, int64_t shorter, int64_t longer);

/// A record of kind "predicted" for the longer length, without its environment, with "way" (the
/// configuration), seq_lens, peaks, host_peaks, bytes_per_token, host_bytes_per_token, intercept_bytes, and
/// of the model hidden_size, layers, layers_without_window, key_value_width (K E), analytic_layer_inputs,
/// analytic_keys_values, predicted_winner and measured_winner.
nlohmann::json bytes_record(const Bench& bench, const ModelBytes& model, const CellBytes& one);

}  // namespace streambp::bench
