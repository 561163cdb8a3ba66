// Trials by the head's own gradient: where it is wrong, a mistake has to give it, and that takes a forward
// pass alone.
#pragma once

#include <optional>
#include <vector>

#include "verify/diagnose/parts/fit.h"
#include "verify/diagnose/trials/hypotheses.h"

namespace streambp::verify {

/// The gradients of the head and of the last norm, without the rows of a tied embedding that tokens look up;
/// where neither is trained, those of the highest layer.
class HeadGauge {
 public:
  /// Nothing where none of these is trained.
  static std::optional<HeadGauge> of(const WrongSubject& subject, const Tensors& gradients,
                                     const Tensors& truth);

  Tensors part_of(const Tensors& gradients) const;
  Fit measure(const Tensors& gradients, at::Tensor* sketch = nullptr) const {
    return gauge_->measure(part_of(gradients), sketch);
  }
  const FitGauge& gauge() const { return *gauge_; }
  int64_t top_layers() const { return top_layers_; }
  /// Has a pass make these gradients alone.
  void ask(WrongSettings& settings) const {
    settings.head_alone = true;
    settings.top_layers = top_layers_;
  }

 private:
  int64_t top_layers_ = 0;
  std::vector<std::string> names_;
  std::string tied_;       // the embedding's name, where it is the head
  at::Tensor other_rows_;  // of it, int64
  std::optional<FitGauge> gauge_;
};

/// `all`, those first that make what the gradients show: parameters without a gradient that should have one;
/// those of chunks, of which there are many, last.
std::vector<const Hypothesis*> in_order(const std::vector<Hypothesis>& all, const Tensors& gradients,
                                        const Tensors& truth);

/// Puts first what the head's gradient shows by itself: entries of the vocabulary without one.
void add_missing_logits(std::vector<Hypothesis>& all, const WrongSubject& subject, const Tensors& gradients,
                        const Tensors& truth);

/// Takes out those that leave out what has gradients above `noise`, or zero what has none.
void drop_contradicted(std::vector<Hypothesis>& all, const Tensors& gradients, const Tensors& truth,
                       double noise);

}  // namespace streambp::verify
