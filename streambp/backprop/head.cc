#include "streambp/backprop/head.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rows.h"

namespace streambp {
namespace {

/// Log-probabilities are taken in float32 or wider, as Hugging Face upcasts its logits.
at::ScalarType logits_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// d loss / d log p of scored tokens [begin, begin + size), and their terms of the loss.
at::Tensor coefficients(const Objective& objective, const at::Tensor& log_probabilities, int64_t begin,
                        double& loss) {
  const at::AutoGradMode with_grad(true);
  const at::Tensor leaf = log_probabilities.detach().requires_grad_();
  const at::Tensor terms = objective.loss(leaf, begin, begin + leaf.size(0));
  if (!terms.is_meta()) loss += terms.item<double>();
  return torch::autograd::grad({terms}, {leaf}).front();
}

/// One chunk of scored tokens on their way through the head.
class HeadChunk {
 public:
  HeadChunk(Model& model, const Scored& scored, const at::Tensor& hidden, int64_t begin, int64_t end)
      : model_(model) {
    const int64_t first = scored.places[begin].item<int64_t>();
    const int64_t last = scored.places[end - 1].item<int64_t>();
    if (last - first == end - begin - 1) {
      run_ = hidden.narrow(0, first, end - begin);  // neighbours: a view will do
    } else {
      places_ = scored.places.narrow(0, begin, end - begin).to(hidden.device());
    }
    targets_ = scored.targets.narrow(0, begin, end - begin).unsqueeze(1);
    const at::Tensor rows = run_.defined() ? run_ : gather_rows(hidden, places_);
    normed_ = rms_norm_forward(rows, model.norm(), model.config().rms_norm_eps, saved_);
    const MemoryScope scope("logits");
    logits_ = linear_forward(model.head(), normed_).to(logits_dtype(model.dtype()));
    at::_log_softmax_out(logits_, logits_, /*dim=*/-1, /*half_to_float=*/false);
  }

  /// [rows] float64.
  at::Tensor log_probabilities() const { return logits_.gather(1, targets_).squeeze(1).to(at::kDouble); }

  /// Adds the gradients for d loss / d log p [rows] (float64) and puts that of the hidden states in their
  /// place. Uses the chunk up.
  void backward(const at::Tensor& d_log_probabilities, at::Tensor& hidden) {
    const at::Tensor d = d_log_probabilities.to(logits_.scalar_type()).unsqueeze(1);
    // d log p_target / d logits = onehot - softmax, written over the log-softmax.
    logits_.exp_().mul_(-d);
    logits_.scatter_add_(1, targets_, d);
    const at::Tensor d_logits = logits_.to(model_.dtype());
    logits_.reset();
    linear_accumulate(model_.head(), normed_, d_logits);
    at::Tensor d_normed;
    linear_backward_input(model_.head(), d_logits, d_normed);
    const at::Tensor d_rows = rms_norm_backward(d_normed, saved_, model_.norm());
    if (run_.defined()) {
      run_.copy_(d_rows);
    } else {
      hidden.index_copy_(0, places_, d_rows);
    }
  }

 private:
  Model& model_;
  at::Tensor run_;      // view of the hidden states, where the tokens are neighbours
  at::Tensor places_;   // else their places
  at::Tensor targets_;  // [rows, 1]
  at::Tensor normed_;   // [rows, D]
  RmsNormSaved saved_;
  at::Tensor logits_;  // [rows, V], then log-softmax, then gradient
};

}  // namespace

Scored find_scored(const Batch& batch, c10::Device device) {
  const at::Tensor targets = batch.targets.to(at::kCPU);
  const at::Tensor places = targets.ne(kNoTarget).nonzero().squeeze(1);
  return {places, targets.index_select(0, places).to(device)};
}

at::Tensor full_head(Model& model, const Scored& scored, const Objective& objective, const at::Tensor& hidden,
                     HeadOutcome& outcome) {
  const MemoryScope scope("logits");
  const at::Tensor normed = rms_norm(hidden, model.norm(), model.config().rms_norm_eps);
  at::Tensor logits = linear(normed, {model.head()}).front().to(logits_dtype(model.dtype()));
  const at::Tensor log_softmax = at::log_softmax(logits, /*dim=*/-1);
  logits.reset();
  const at::Tensor places = scored.places.to(hidden.device());
  const at::Tensor log_probabilities = log_softmax.index({places, scored.targets}).to(at::kDouble);
  const at::Tensor loss = objective.loss(log_probabilities, 0, scored.size());
  if (!loss.is_meta()) outcome.loss = loss.item<double>();
  outcome.log_probabilities = log_probabilities.detach();
  return loss;
}

HeadOutcome streamed_head(Model& model, const Scored& scored, const Objective& objective, int64_t chunk,
                          at::Tensor& hidden) {
  const MemoryScope scope("head chunk");
  const at::NoGradGuard no_grad;
  HeadOutcome outcome;
  outcome.log_probabilities = at::empty({scored.size()}, scored.targets.options().dtype(at::kDouble));
  const auto for_each_chunk = [&](auto body) {
    for (int64_t begin = 0; begin < scored.size(); begin += chunk) {
      body(begin, std::min(begin + chunk, scored.size()));
    }
  };
  at::Tensor all_coefficients;
  if (!objective.separable()) {
    for_each_chunk([&](int64_t begin, int64_t end) {
      outcome.log_probabilities.narrow(0, begin, end - begin)
          .copy_(HeadChunk(model, scored, hidden, begin, end).log_probabilities());
    });
    all_coefficients = coefficients(objective, outcome.log_probabilities, 0, outcome.loss);
  }
  for_each_chunk([&](int64_t begin, int64_t end) {
    HeadChunk rows(model, scored, hidden, begin, end);
    at::Tensor d;
    if (objective.separable()) {
      const at::Tensor log_probabilities = rows.log_probabilities();
      outcome.log_probabilities.narrow(0, begin, end - begin).copy_(log_probabilities);
      d = coefficients(objective, log_probabilities, begin, outcome.loss);
    } else {
      d = all_coefficients.narrow(0, begin, end - begin);
    }
    rows.backward(d, hidden);
  });
  if (scored.size() != hidden.size(0)) {
    const at::Tensor unscored = at::ones({hidden.size(0)}, at::kBool).index_fill_(0, scored.places, false);
    hidden.masked_fill_(unscored.to(hidden.device()).unsqueeze(1), 0);
  }
  return outcome;
}

}  // namespace streambp
