// What a factor that all gradients have in common comes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/diagnose/parts/fit.h"
#include "verify/diagnose/trials/hypotheses.h"

namespace streambp::verify {

class FactorWords {
 public:
  /// Both must outlive it.
  FactorWords(const WrongSubject& subject, const Tensors& gradients)
      : subject_(subject), gradients_(gradients), scalings_(scalings(subject)) {}

  /// Adds to the name and the sentence of what has such a fit.
  void add(const Fit& fit, std::string& name, std::string& sentence) const;

  size_t size() const { return scalings_.size(); }

 private:
  /// Gradients that are shorter than they should be, and whose norm is a round number; or so much longer that
  /// it is a loss scale.
  std::optional<Scaling> clipping(const Fit& fit) const;
  /// The scalings that a factor may be: those as close to it as any, three at most.
  std::vector<const Scaling*> scalings_like(const Fit& fit) const;

  const WrongSubject& subject_;
  const Tensors& gradients_;
  std::vector<Scaling> scalings_;
};

}  // namespace streambp::verify
