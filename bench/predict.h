// What a pass would take on a device that isn't there: the real engine on the meta device, where tensors have
// shapes and no storage, under the same meter as a measured run.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "bench/models.h"

namespace streambp::bench {

/// The peak of one back-propagation and what it is made of, in bytes.
struct Prediction {
  int64_t seq_len = 0;
  int64_t tokens = 0;      // of the whole batch
  int64_t chunk = 0;       // as run; 0: the method has none
  int64_t head_chunk = 0;  // as run; 0: the head was not streamed
  int64_t peak_bytes = 0;
  int64_t resident_bytes = 0;                // alive before the pass: weights, gradients, optimizer states
  std::map<std::string, int64_t> breakdown;  // of the peak, by scope
  int64_t host_peak_bytes = 0;               // in the host's memory beside the device
  double model_flops = 0.0;                  // that the pass asks for
  double hardware_flops = 0.0;               // that the pass executes
};

/// A record (design.md section 7) of kind "predicted", without its environment.
nlohmann::json prediction_record(const Bench& bench, const Cell& cell, const Prediction& prediction);

/// Predicts cell after cell with models that are made once.
class Predictor {
 public:
  /// `bench` has the device meta and must outlive the predictor.
  explicit Predictor(const Bench& bench);

  /// Throws what the pass throws.
  Prediction predict(const Cell& cell);

  /// What is alive without any pass: weights, gradients, optimizer states, by scope.
  Prediction floor() const;

  /// Shapes without storage.
  const Models& models() const { return models_; }

 private:
  const Bench& bench_;
  Models models_;
};

}  // namespace streambp::bench
