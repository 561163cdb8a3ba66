// `streambp-verify compare`: anyone's gradients, from any framework, against the float64 truth.
//
// The rule. First the factor c that all gradients have in common is fitted (verify/compare/fit.h). It differs
// from 1 if it is further from it than four spreads of one parameter's factor, than four times the factor
// that correct arithmetic of the same dtype has by itself, and than 1e-10 (float64), 5e-7 (float32), 4e-3
// (bfloat16, float16). Then gradients are judged, divided by c where it differs:
// - float64: every parameter's relative error is at most 1e-10.
// - Lower precisions: relative to a noise floor that is measured, not assumed. The floor of a parameter is
// the
//   error of this project's own gradients in that dtype on the same weights and batch (NoiseSample, at least
//   one; a few before anything is called wrong), at least the error of rounding the truth. An error is at
//   most 3 + 6 / sqrt(numbers of the parameter) x its floor, and the median over all parameters is at most
//   1.25 + 2 / sqrt(parameters) (3 at most): one tensor of correct gradients reaches 2.8 by chance and by
//   other rounding points (Hugging Face, eager and sdpa, every family, 40 to 2,048 tokens:
//   results/compare-verdicts), one of three numbers 6, all of them together do not.
//   An error within the noise is a bias nonetheless if it points along the truth: noise has all directions.
//   It is one if the gradient is further from the truth's length than 5 %, than half its error, and than six
//   times what any of at least three noise runs moved it.
// - With a tolerance: every relative error is at most that.
// Where the truth is exactly 0, or lost in the noise, there is nothing to relate to: an error may then reach
// the size of rounding errors in a typical gradient.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "streambp/data/padded_tensors.h"
#include "streambp/model/batch.h"
#include "streambp/model/config/pad_token.h"
#include "verify/compare/fit.h"
#include "verify/error_measure.h"

namespace streambp::verify {

enum class Verdict {
  kExact,       // every gradient within its limit
  kScaled,      // every gradient off by the same factor, and within its limit without it: another normaliser
  kUndecided,   // beyond the limits only where the precision leaves open which experts a token goes to, or in
                // a wider dtype than the arithmetic behind it
  kWrong,       // anything else, NaN included
  kIncomplete,  // names, shapes or dtypes are not those of the model's parameters
};

std::string verdict_name(Verdict verdict);

/// What one run of correct arithmetic in a low precision did to one parameter's gradient.
struct Deviation {
  double error = 0.0;   // relative, of its own truth; absolute where that is 0
  double factor = 1.0;  // factor_of
};
using NoiseSample = std::map<std::string, Deviation>;

NoiseSample noise_sample(const Tensors& gradients, const Tensors& truth);

/// What gradients are judged by.
struct Judging {
  std::optional<double> tolerance;      // one limit for all, in place of the rule
  std::optional<at::ScalarType> dtype;  // of the arithmetic; default: the narrowest of the gradients
  std::vector<NoiseSample> noise;
  const Config* config = nullptr;   // of the model, whose files may call parameters otherwise
  std::set<std::string> unsettled;  // parameters that a token near a tie may or may not have reached
};

/// One parameter's gradient g against the truth t.
struct ParameterFinding {
  ParameterError of;
  double factor =
      0.0;  // <g, t> / <t, t>: the factor that brings the truth closest; NaN where the truth is zero
  double cosine = 0.0;  // <g, t> / |g| |t|; NaN where either is zero
  double residual =
      0.0;  // |g - c t| / |c t| with the factor c of all parameters together; |g / c| where the truth is zero
  double noise = 0.0;  // the floor: of float64 what was measured, 0 where nothing was
  double judged =
      0.0;  // what is held against the limit: of.error, or residual where the factor differs from 1
  double limit = 0.0;
  double natural_bias = 0.0;  // how far noise moved the factor from 1, at most
  bool biased = false;        // within the noise, but along the truth

  double ratio() const { return judged == 0.0 ? 0.0 : judged / noise; }
  bool within() const { return judged <= limit && !biased; }
};

struct Comparison {
  Verdict verdict = Verdict::kWrong;
  at::ScalarType dtype = at::kDouble;
  double tolerance = 0.0;  // the limit of the first finding, in float64 the least
  double factor = 0.0;     // of all parameters together
  FactorFit fit;
  bool differs = false;                    // whether the factor differs from 1
  double middle_ratio = 0.0;               // median of the findings' ratios, of low precisions
  double middle_limit = 0.0;               // what it may reach
  bool bias_suspected = false;             // more noise runs may tell whether some findings are biased
  std::vector<ParameterFinding> findings;  // the worst error first
  std::vector<std::string> missing;
  std::vector<std::string> surplus;
  std::vector<std::string> notes;  // what was accepted or assumed
  std::vector<std::string> hints;  // what may be the matter
};

/// What could not be seen: the limits of the findings, as shares of their gradients.
struct Power {
  double middle = 0.0;  // half of the parameters have a lower one
  double worst = 0.0;
  std::string worst_parameter;
};
Power power_of(const Comparison& comparison);

/// The widest dtype that is as coarse as the coarsest of `gradients`: float64, float32, bfloat16 or float16.
at::ScalarType narrowest_dtype(const Tensors& gradients);

/// Judges `gradients`, under any names that named_as understands.
Comparison compare_gradients(const Tensors& gradients, const Tensors& truth, const Judging& judging = {});

struct CompareOptions {
  std::string model;  // folder or preset
  std::string dtype;  // of a preset's random weights, which are then widened; empty: the preset's own
  std::string tokens;
  FirstLabels first_labels = FirstLabels::kRefuse;
  Documents documents = Documents::kSdpa;
  std::string gradients;
  std::string objective = "sft";
  std::map<std::string, std::string> settings;  // options of the objective
  GivenPadToken pad_token;                      // of the model, in place of its config's
  std::string adapter;    // PEFT folder; its gradients are compared then, and the weights are frozen
  std::string teacher;    // folder or preset, for an objective with a divergence
  std::string reference;  // folder or preset whose log-probabilities are the reference's
  std::optional<double> divisor;
  std::optional<double> tolerance;
  std::optional<at::ScalarType> compute_dtype;  // in which the gradients were computed; default: their own
  int64_t chunk = 0;
  uint64_t seed = 0;
  bool json = false;
  bool diagnose = false;                 // look for the mistake that explains the gradients
  std::vector<int64_t> diagnose_chunks;  // sizes of chunks that it may lie in, in addition to powers of two
};

}  // namespace streambp::verify
