// Mistakes that are made and held against somebody's gradients: whole passes, or where the head's gradient is
// wrong what gives that.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/diagnose/locate.h"
#include "verify/diagnose/numbers.h"
#include "verify/diagnose/trials/head_trials.h"
#include "verify/diagnose/trials/likely_pairs.h"

namespace streambp::verify {

/// One hypothesis that was run, or several.
struct Tried {
  std::vector<const Hypothesis*> of;  // none: the truth
  Fit fit;
  at::Tensor sketch;
};

/// Whether a mistake leaves the loss and the forward pass as they are: by what it is about.
bool is_of_backward_pass(const std::string& about);

/// Whether a mistake in the backward pass can't leave right what is right by `location`: by what it is about.
bool is_elsewhere(const std::string& about, const Location& location);

class TrialRuns {
 public:
  /// All must outlive it. The truth is the first that is tried.
  TrialRuns(const WrongSubject& subject, const FitGauge& gauge, const Tensors& truth, const MakeMistake& run);

  /// From now on by the head of `gradients` first, where it is trained and more than `right` off, up to a
  /// factor.
  void by_head(const Tensors& gradients, double right);
  bool has_gauge() const { return head_.has_value(); }
  /// Whether it is the head's alone, which no mistake below it changes.
  bool has_head() const { return head_ && head_->top_layers() == 0; }

  /// How far the engine is from the truth with nothing wrong. Throws InputError where there is none.
  double engine_error() const;

  /// False where the objective refuses such a batch. Where the head is wrong, what leaves more than `limit`
  /// of its gradient is run no further than that.
  bool try_out(const std::vector<const Hypothesis*>& of, double limit);

  /// Whether the head's gradient, where it is looked at, is that of another subject of the same model with
  /// nothing wrong.
  bool may_be(const WrongSubject& other, double limit) const;

  std::vector<Tried>& whole() { return whole_; }
  const Tried& best() const;

  /// Explanations by one number, with the residual that they leave of all gradients.
  std::vector<Explanation> numbers(const PartsLimits& limits, const Tensors& gradients) const;

  /// Two mistakes of `all` at a time that are worth making.
  std::vector<MistakePair> pairs(const std::vector<Hypothesis>& all, double limit) const;

 private:
  const WrongSubject& subject_;
  const FitGauge& gauge_;
  const Tensors& truth_;
  const MakeMistake& run_;
  std::optional<HeadGauge> head_;
  std::vector<Tried> whole_, of_head_;
};

}  // namespace streambp::verify
