// How the paper's methods are run here, and the models of its tables.
#pragma once

#include <string>
#include <vector>

#include "bench/sweep/cells/cell.h"

namespace streambp::bench {

/// A method's settings and what the report calls them.
struct PaperConfiguration {
  std::string name;
  Settings settings;
};

/// As the paper ran `method` in a trainer (table 3), then as this project does. The trainers of other
/// objectives than "sft" are TRL's.
std::vector<PaperConfiguration> trainer_configurations(Method method, const std::string& objective);
/// The same for a single pass in a script (table 9).
std::vector<PaperConfiguration> script_configurations(Method method);
/// Those of script_configurations, and streambp's further settings that keep less on the device.
std::vector<PaperConfiguration> curve_configurations(Method method);

/// A model of the paper with everything that is alive with it.
class PaperModel {
 public:
  /// `options` are completed with what all tables share: bfloat16 weights and gradients, the meta device.
  explicit PaperModel(SweepOptions options);

  const Bench& bench() const { return bench_; }
  plan::Predictor& predictor() { return predictor_; }

 private:
  Bench bench_;
  plan::Predictor predictor_;
};

/// LoRA of the authors' scripts: rank 32, alpha 128, all linear layers.
LoraConfig paper_lora();

}  // namespace streambp::bench
