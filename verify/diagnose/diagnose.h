// `streambp-verify compare --diagnose`: which mistake gives somebody's gradients. First by parts: what
// multiple of each row and of each term of the loss is in them (parts.h), and from which operation on, going
// down from the head, they are wrong (locate.h). Then, where that does not say it, the mistakes of
// hypotheses.h that fit what the parts show are made, one at a time and two, and held against the gradients,
// up to a factor that all may have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/diagnose/locate.h"
#include "verify/diagnose/parts/fit.h"
#include "verify/diagnose/parts/parts.h"
#include "verify/diagnose/trials/hypotheses.h"
#include "verify/diagnose/wrong_engine/run_mistake.h"

namespace streambp::verify {

struct DiagnoseOptions {
  std::vector<int64_t> chunks;  // sizes to try in addition to powers of two and even parts
  bool pairs = true;            // look for two mistakes where one explains nothing
  GradientLimits limits;        // where a comparison has measured them; else by noise
  std::vector<Tensors> noise;   // correct gradients in the given ones' precision, of runs of their own
  /// What makes mistakes: run_mistake, or one that remembers what it has run.
  std::function<Tensors(const WrongSubject&, const WrongSettings&)> run = [](const WrongSubject& subject,
                                                                             const WrongSettings& settings) {
    return run_mistake(subject, settings);
  };
};

struct Diagnosis {
  enum class Kind {
    kRight,      // the truth fits as well as the gradients' precision lets it
    kWithin,     // so it does, but a comparison, which looks at each parameter, does not call them exact
    kExplained,  // `explanations` begins with what fits
    kLocated,    // nothing fits, but `location` says from which operation on they are wrong
    kUnknown,    // nothing fits
  };
  Kind kind = Kind::kUnknown;
  std::vector<Explanation> explanations;  // the best first, the truth ("truth") among them
  size_t fitting = 0;                     // how many of them, from the first on, are indistinguishable
  /// Whether the best explanation leaves more than rounding, or than parts of a pass in float32, would.
  bool leaves_rest = false;
  double unexplained = 0.0;  // the residual of the truth
  size_t tried = 0;          // hypotheses, pairs not counted
  size_t pairs_tried = 0;
  double passes = 0.0;               // that all of it took: tokens that were run, by those of the batch
  double limit = 0.0;                // residual up to which something fits
  std::optional<Location> location;  // of gradients that are wrong
  std::vector<std::string> notes;    // what could not be tried
  std::string within;                // of kWithin: what leaves such errors, and what the verdict is
};

/// What the gradients' precision does to a residual, where the pass has been run in it: `gradients` are those
/// of the model run right, in that precision.
double precision_residual(const Tensors& gradients, const Tensors& truth);

/// `gradients` against the truth of `subject`. `noise` is their precision's residual: 0 for float64,
/// precision_residual else; never taken for less than what rounding to their dtype alone does. Mistakes that
/// the wrong engine can't make of this model, batch or objective are left out, with a note. Throws InputError
/// for gradients of another shape.
Diagnosis diagnose(const WrongSubject& subject, const Tensors& gradients, const Tensors& truth, double noise,
                   const DiagnoseOptions& options);

/// What is printed: the finding in a sentence or two, then the best explanations in a table.
std::string diagnosis_text(const Diagnosis& diagnosis);
/// One line of JSON.
std::string diagnosis_json(const Diagnosis& diagnosis);

}  // namespace streambp::verify
