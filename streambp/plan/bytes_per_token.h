// The memory of one more token: the slope of the peak over the length.
#pragma once

#include <cstdint>

#include "streambp/plan/predict.h"

namespace streambp::plan {

/// The line through the peaks of two lengths, per token of the whole batch.
struct BytesPerToken {
  Settings settings;
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

/// Of `step`, whatever its length. Throws InputError unless 0 < shorter < longer, and as Predictor::predict
/// does.
BytesPerToken bytes_per_token(Predictor& predictor, TrainingStep step, const Settings& settings,
                              int64_t shorter, int64_t longer);

/// What each order of streaming keeps of a token by design, whatever else a pass needs. Of both the rows that
/// indexers have picked.
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

}  // namespace streambp::plan
