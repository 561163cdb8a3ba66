// What a token more costs in memory: the slope of the peak against the length, by model and way of running.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/predict.h"

namespace streambp::bench {

/// The line through the peaks of two lengths, a token of the whole batch at a time.
struct BytesPerToken {
  Cell cell;  // at the longer length; its chunk is what was asked for
  Prediction shorter;
  Prediction longer;

  double device() const { return slope(shorter.peak_bytes, longer.peak_bytes); }
  double host() const { return slope(shorter.host_peak_bytes, longer.host_peak_bytes); }
  /// Where the line meets no tokens: weights, gradients, and what does not grow with the length.
  double intercept() const;

 private:
  double slope(int64_t from, int64_t to) const {
    return static_cast<double>(to - from) / static_cast<double>(longer.tokens - shorter.tokens);
  }
};

/// Throws InputError unless 0 < shorter < longer, and what the passes throw.
BytesPerToken bytes_per_token(Predictor& predictor, Cell cell, int64_t shorter, int64_t longer);

/// What either order of streaming keeps of a token by design, whatever else a pass needs.
struct AnalyticBytes {
  int64_t layer_inputs = 0;  // streambp: D of each layer
  /// chunk-major: keys and values of each layer, 2 K E, and as many gradients of the layers that look back
  /// without a window (the others' lie over the window alone), of half-precision ones in float32.
  int64_t keys_values = 0;
};

/// In sequences of `seq_len` tokens.
AnalyticBytes analytic_bytes(const Config& config, at::ScalarType dtype, int64_t seq_len);

/// The layers that look back over all of a sequence of `seq_len` tokens: without a window, or with a longer
/// one.
int64_t layers_without_window(const Config& config, int64_t seq_len);

/// A model with its ways, in the order of the command line.
struct ModelBytes {
  std::string model;
  std::string workload;  // objective and batch, where there are several
  Config config;
  int64_t layers_without_window = 0;  // at the longer length
  AnalyticBytes analytic;
  std::vector<BytesPerToken> ways;
};

/// The cheaper one of streambp and chunk-major in their plain settings: as predicted from `analytic`, and by
/// the slopes ("-" unless both are among the ways).
std::string predicted_winner(const ModelBytes& model);
std::string measured_winner(const ModelBytes& model);

/// For a terminal: a row for each model, a column for each way, slopes and then intercepts.
std::string bytes_table(const std::vector<ModelBytes>& models);

/// The same as Markdown, with what the crossover comes from.
std::string bytes_markdown(const std::vector<ModelBytes>& models, int64_t shorter, int64_t longer);

/// A record of kind "predicted" for the longer length, without its environment, with way, seq_lens, peaks,
/// host_peaks, bytes_per_token, host_bytes_per_token, intercept_bytes, and of the model hidden_size, layers,
/// layers_without_window, key_value_width (K E), analytic_layer_inputs, analytic_keys_values,
/// predicted_winner and measured_winner.
nlohmann::json bytes_record(const Bench& bench, const ModelBytes& model, const BytesPerToken& way);

}  // namespace streambp::bench
