// `streambp-verify compare --diagnose`: which mistake, or which two, would give somebody's gradients. Every
// mistake of hypotheses.h that this model, batch and objective can show is made by the wrong engine, and what
// comes out is held against the gradients, up to a factor that they may all have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/diagnose/fit.h"
#include "verify/diagnose/hypotheses.h"

namespace streambp::verify {

struct DiagnoseOptions {
  std::vector<int64_t> chunks;  // sizes to try in addition to powers of two and even parts
  bool pairs = true;            // look for two mistakes where one explains nothing
  /// What makes mistakes: run_wrong, or one that remembers what it has run.
  std::function<Tensors(const WrongSubject&, const WrongSettings&)> run = [](const WrongSubject& subject,
                                                                             const WrongSettings& settings) {
    return run_wrong(subject, settings).gradients;
  };
};

/// A hypothesis, or two joined by " + ", and how well it fits.
struct Explanation {
  std::string name;
  std::string sentence;
  Fit fit;
};

struct Diagnosis {
  enum class Kind {
    kRight,      // the truth fits as well as the gradients' precision lets it
    kExplained,  // `explanations` begins with what fits
    kUnknown,    // nothing fits
  };
  Kind kind = Kind::kUnknown;
  std::vector<Explanation> explanations;  // the best first, the truth ("truth") among them
  size_t fitting = 0;                     // how many of them, from the first on, are indistinguishable
  size_t tried = 0;                       // hypotheses, pairs not counted
  size_t pairs_tried = 0;
  double limit = 0.0;  // residual up to which something fits
};

/// What the gradients' precision does to a residual, where the pass has been run in it: `gradients` are those
/// of the model run right, in that precision.
double precision_residual(const Tensors& gradients, const Tensors& truth);

/// `gradients` against the truth of `subject`. `noise` is their precision's residual: 0 for float64,
/// precision_residual else; never taken for less than what rounding to their dtype alone does. Throws
/// InputError as run_wrong does, for a model that the wrong engine can't do right, and for gradients of
/// another shape.
Diagnosis diagnose(const WrongSubject& subject, const Tensors& gradients, const Tensors& truth, double noise,
                   const DiagnoseOptions& options);

/// What is printed: the finding in a sentence or two, then the best explanations in a table.
std::string diagnosis_text(const Diagnosis& diagnosis);
/// One line of JSON.
std::string diagnosis_json(const Diagnosis& diagnosis);

}  // namespace streambp::verify
