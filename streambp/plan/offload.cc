#include "streambp/plan/offload.h"

#include <algorithm>
#include <map>

namespace streambp::plan {
namespace {

/// The pass with the activations of 0, 1, ..., `layers` layers on the host, and last with inputs there too:
/// from one to the next the device needs less and the host more.
class Ladder {
 public:
  Ladder(Predictor& predictor, const TrainingStep& step, const Settings& settings, const Budget& budget,
         OffloadGoal goal)
      : predictor_(predictor), step_(step), settings_(settings), budget_(budget), goal_(goal) {
    const Model& policy = *predictor.models().policy;
    layers_ =
        static_cast<int64_t>(policy.layers().size()) - std::max<int64_t>(policy.lowest_trainable_layer(), 0);
  }

  int64_t last() const { return layers_ + 1; }

  Settings settings(int64_t rung) const {
    Settings settings = settings_;
    if (rung <= layers_) settings.offload_layers = rung;
    return settings;
  }

  const Prediction& predict(int64_t rung) {
    const auto known = known_.find(rung);
    if (known != known_.end()) return known->second;
    return known_.emplace(rung, predictor_.predict(step_, settings(rung))).first->second;
  }

  /// By how much the device's share of its budget is too large: falls from rung to rung.
  double excess(int64_t rung) {
    const Prediction& prediction = predict(rung);
    const double share = static_cast<double>(prediction.peak_bytes) / static_cast<double>(budget_.device);
    if (goal_ == OffloadGoal::kFewest || budget_.host <= 0) return share - 1.0;
    return share - static_cast<double>(prediction.host_peak_bytes) / static_cast<double>(budget_.host);
  }

  /// The first rung without excess, or the last one. Layers are alike: the search follows the line through
  /// the two rungs that enclose it.
  int64_t first_enough() {
    if (excess(0) <= 0.0) return 0;
    if (excess(layers_) > 0.0) return last();
    int64_t low = 0, high = layers_;
    while (high - low > 1) {
      const double above = excess(low), below = -excess(high);
      const auto on_line =
          low + static_cast<int64_t>(static_cast<double>(high - low) * above / (above + below));
      const int64_t rung = std::clamp(on_line, low + 1, high - 1);
      (excess(rung) > 0.0 ? low : high) = rung;
    }
    return high;
  }

 private:
  Predictor& predictor_;
  const TrainingStep& step_;
  const Settings& settings_;
  const Budget& budget_;
  OffloadGoal goal_;
  int64_t layers_ = 0;  // with a backward pass
  std::map<int64_t, Prediction> known_;
};

}  // namespace

bool leaves_offload_open(const Settings& settings) {
  return settings.offload == Offload::kHost && !settings.offload_layers && settings.keep.any();
}

OffloadFit fit_offload(Predictor& predictor, const TrainingStep& step, const Settings& settings,
                       const Budget& budget, OffloadGoal goal) {
  if (!leaves_offload_open(settings)) return {settings, predictor.predict(step, settings)};
  Ladder ladder(predictor, step, settings, budget, goal);
  int64_t rung = ladder.first_enough();
  // The rung before it has the larger share on the device, this one on the host.
  if (goal == OffloadGoal::kBalanced && rung > 0 &&
      budget.share(ladder.predict(rung - 1)) < budget.share(ladder.predict(rung)))
    --rung;
  return {ladder.settings(rung), ladder.predict(rung)};
}

}  // namespace streambp::plan
