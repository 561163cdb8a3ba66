// `streambp-verify compare`: anyone's gradients, from any framework, against the float64 truth.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "streambp/model/batch.h"
#include "verify/error_measure.h"

namespace streambp {

enum class Verdict {
  kExact,   // every gradient within the tolerance
  kScaled,  // every gradient off by the same factor, and within the tolerance without it: another normaliser
  kWrong,   // anything else, NaN included
  kIncomplete,  // names, shapes or dtypes are not those of the model's parameters
};

std::string verdict_name(Verdict verdict);

/// One parameter's gradient g against the truth t.
struct ParameterFinding {
  ParameterError of;
  double factor =
      0.0;  // <g, t> / <t, t>: the factor that brings the truth closest; NaN where the truth is zero
  double cosine = 0.0;  // <g, t> / |g| |t|; NaN where either is zero
  double residual =
      0.0;  // |g - c t| / |c t| with the factor c of all parameters together; |g / c| where the truth is zero
};

struct Comparison {
  Verdict verdict = Verdict::kWrong;
  double tolerance = 0.0;
  double factor = 0.0;                     // of all parameters together
  std::vector<ParameterFinding> findings;  // the worst first
  std::vector<std::string> missing;
  std::vector<std::string> surplus;
  std::vector<std::string> hints;
};

/// Judges `gradients`. No tolerance: by the narrowest dtype among them, 1e-10 for float64, 1e-4 for float32,
/// 5e-2 for bfloat16 and float16. An lm_head.weight beside a tied embedding is tolerated if it holds the
/// embedding's gradient.
Comparison compare_gradients(Tensors gradients, const Tensors& truth, std::optional<double> tolerance);

/// What a loss may have been divided by, and how it is called.
using Normaliser = std::pair<std::string, double>;

/// Explanations of a common factor c: a divisor other than the truth's, or a number of steps or ranks that
/// was summed or averaged. Only those that fit c within `tolerance`, the closest first, three at most.
std::vector<std::string> explain_factor(double c, double divisor, const std::vector<Normaliser>& normalisers,
                                        double tolerance);

struct CompareOptions {
  std::string model;  // folder or preset
  std::string dtype;  // of a preset's random weights, which are then widened; empty: the preset's own
  std::string tokens;
  FirstLabels first_labels = FirstLabels::kRefuse;
  std::string gradients;
  std::string objective = "sft";
  std::map<std::string, std::string> settings;  // options of the objective
  std::string adapter;    // PEFT folder; its gradients are compared then, and the weights are frozen
  std::string teacher;    // folder or preset, for an objective with a divergence
  std::string reference;  // folder or preset whose log-probabilities are the reference's
  std::optional<double> divisor;
  std::optional<double> tolerance;
  int64_t chunk = 0;
  uint64_t seed = 0;
  bool json = false;
};

/// Prints the verdict and the worst parameters. Returns 0 if the gradients are exact, else 1. Throws
/// InputError for bad input.
int run_compare(const CompareOptions& options);

}  // namespace streambp
