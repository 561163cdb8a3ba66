// The mistakes that somebody's gradients may come from, as far as a batch and a model can show them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// A mistake of training code.
struct Hypothesis {
  std::string name;      // labels-not-shifted, window+1, detached-8-columns
  std::string sentence;  // what the code that made the gradients does
  std::string about;     // what it is a mistake in: two about the same thing don't go together
  std::function<void(WrongSettings&)> make;

  /// Whether it is a mistake in the loss alone: targets and forward pass are right.
  bool is_of_the_loss() const;

  WrongSettings settings() const {
    WrongSettings settings;
    make(settings);
    return settings;
  }
};

/// Those that would change something for this model, batch and objective: of several that come to the same
/// the first. `chunks` are sizes of chunks to try in addition to powers of two and even parts.
std::vector<Hypothesis> hypotheses(const WrongSubject& subject, const std::vector<int64_t>& chunks);

/// A factor that all gradients have in common, and where it comes from.
struct Scaling {
  std::string name;  // 1/4, (N-B)/N
  std::string sentence;
  double factor = 1.0;
};

std::vector<Scaling> scalings(const WrongSubject& subject);

/// The count that the loss would have to be divided by, instead of its own, for a factor of all gradients;
/// nothing where that is no whole number, within what the factor's relative error lets be seen.
std::optional<Scaling> other_count(const WrongSubject& subject, double factor, double error);

}  // namespace streambp::verify
