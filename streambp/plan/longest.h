// The longest sequence that fits a budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "streambp/plan/predict.h"

namespace streambp::plan {

/// Where the search begins and ends, in tokens of a sequence.
inline constexpr int64_t kShortest = 16;
inline constexpr int64_t kLongest = int64_t{1} << 24;

/// How many bytes there are.
struct Budget {
  int64_t device = 0;
  int64_t host = 0;  // for what is offloaded; 0: not limited, and no search tries offloading

  /// The larger of the shares of the two that a pass takes: it fits with 1 or less.
  double share(const Prediction& prediction) const {
    const auto part = [](int64_t bytes, int64_t of) {
      return static_cast<double>(bytes) / static_cast<double>(of);
    };
    return std::max(part(prediction.peak_bytes, device),
                    host > 0 ? part(prediction.host_peak_bytes, host) : 0.0);
  }
  bool holds(const Prediction& prediction) const { return share(prediction) <= 1.0; }
};

/// Of `bytes` of a device's memory, what tensors can't have: on a GPU its driver's context, libraries and
/// kernels, and what the caching allocator's blocks leave between them. Measured on an H200: 0.80 to 0.81 GB,
/// and up to 1.2 % of peaks that fill the card (results/cuda). 0 for the CPU, whose limit is that of tensors.
int64_t usual_margin(int64_t bytes, c10::DeviceType device);

/// `bytes` less `margin`, or less the usual one. Throws InputError where nothing is left.
int64_t less_margin(int64_t bytes, std::optional<int64_t> margin, c10::DeviceType device);

/// What one configuration reaches.
struct LongestFit {
  int64_t seq_len = 0;  // tokens of the longest sequence that fits, 0 where none does
  std::optional<Prediction> at_longest;
  Settings settings;       // as given, with the layers to offload chosen (fit_offload)
  Prediction at_shortest;  // of kShortest tokens: what is needed whatever the length
  int64_t resolution = 0;  // a sequence longer by this does not fit; 0: kLongest fits
  int evaluations = 0;     // passes on the meta device

  bool fits() const { return at_longest.has_value(); }
};

/// The longest sequence for which `step`, whatever its length, needs no more than `budget`, to a token, or
/// the `resolution`th part of the length where that is more. The peak is nearly linear in the length: the
/// search follows the line through the two lengths that enclose the budget and halves the interval where that
/// does not close it. The layers to offload, where they are left open, are chosen for each length. Throws as
/// Predictor::predict does.
LongestFit longest(Predictor& predictor, TrainingStep step, const Settings& settings, const Budget& budget,
                   int64_t resolution = 1000);

/// The same with models made for this call.
LongestFit longest(const Workload& workload, const Settings& settings, const Budget& budget);

}  // namespace streambp::plan
