// How precise gradients are in float32 and bfloat16: every method's error against the float64 truth, relative
// to standard back-propagation's own in the same precision.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/method.h"
#include "verify/error_measure.h"
#include "verify/ulps.h"

namespace streambp::verify {

/// No method may be further from the truth than standard is, by more than a quarter.
inline constexpr double kPrecisionFactor = 1.25;

struct PrecisionSubject {
  std::string model = "qwen3-tiny";  // a folder or a preset
  std::string objective = "sft";     // with the options by default
  at::ScalarType dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;  // the dtype or float32
  /// Of lm_head, or of the embedding that is it as well, and of its logits: the dtype or float32.
  at::ScalarType head_dtype = at::kFloat;
  c10::Device device = at::kCPU;
  int64_t sequences = 2;
  int64_t seq_len = 64;
  int64_t batches = 24;  // of other tokens each: errors are root mean squares over them
  uint64_t seed = 0;
  /// Above 0, with sft: tokens are scored on the model's best word, where it leads all others together by
  /// this many nats, within a quarter. The final norm is scaled until half of the tokens are beyond it.
  double lead = 0.0;
  bool entries = false;  // Precision::entries is asked for as well

  int64_t tokens() const { return sequences * seq_len; }
};

/// The errors of one configuration of a pass.
struct Precision {
  double loss = 0.0;
  double log_probabilities = 0.0;
  std::map<std::string, double> gradients;  // of each parameter, |gradient - truth| / |truth|
  /// Of each parameter, the entries of its gradients in all batches, in units of the subject's dtype.
  std::map<std::string, EntryErrors> entries;

  /// The worst parameter.
  std::pair<std::string, double> worst() const;
};

/// Of each of `configurations` in turn. The truth has the weights that the model has in that dtype.
std::vector<Precision> measure_precision(const PrecisionSubject& subject,
                                         const std::vector<Settings>& configurations);

/// Up to this a gradient's error is the rounding of its numbers, which says nothing of how they were summed:
/// half a unit in the last place of its dtype.
double rounding_of(at::ScalarType dtype);

/// Of each parameter, how many times standard's own its error is; where standard's is below `rounding`, it
/// counts as if it were that. NaN where either is.
std::map<std::string, double> times_by_parameter(const Precision& of, const Precision& standard,
                                                 double rounding);

/// The parameter whose error is the most times standard's own, and how many times.
std::pair<std::string, double> times_standard(const Precision& of, const Precision& standard,
                                              double rounding);

/// The same configuration over several seeds of weights and tokens: errors are medians, entries those of all.
/// A single one is itself.
Precision median_of(const std::vector<Precision>& seeds);

/// The medians of several seeds' times_by_parameter.
std::map<std::string, double> median_of(const std::vector<std::map<std::string, double>>& seeds);

/// The largest number of a map and its name, NaN before all numbers; of an empty one 0 of "".
std::pair<std::string, double> worst_of(const std::map<std::string, double>& errors);

}  // namespace streambp::verify
