#include "verify/diagnose/parts/head_span.h"

#include <algorithm>
#include <vector>

#include "verify/diagnose/wrong_engine/layer_pass.h"

namespace streambp::verify {
namespace {

/// Unknowns that are solved for, and entries of what they are weights of.
constexpr int64_t kMostUnknowns = 1536;
constexpr int64_t kMostSlopes = int64_t{1} << 26;
/// Of the head's gradient: what ill-conditioned sums may leave of one that they are.
constexpr double kClearlyLeft = 1e-4;
constexpr double kNoisyLeft = 10.0;

}  // namespace

bool is_of_no_loss(const WrongSubject& subject, const Tensors& gradients, const PartsLimits& limits) {
  const Model& model = subject.model;
  const Batch& batch = subject.batch;
  if (!model.has_head() || model.head().adapter || model.head().trained_rows != nullptr ||
      model.head().bias != nullptr || model.head().first_row != 0 || batch.size() < 2)
    return false;
  const auto found = gradients.find(model.head().weight->name);
  if (found == gradients.end()) return false;
  const auto objective = make_objective(subject.objective, batch, subject.options);
  const HeadRequest request = objective->request();
  if (request.divergence != Divergence::kNone || request.values || request.pooling != Pooling::kNone ||
      objective->targets().defined())
    return false;
  const int64_t tokens = batch.size() - 1, vocabulary = model.config().vocab_size;
  const bool other_temperature = request.temperature != 1.0;
  const int64_t kinds = other_temperature ? 5 : 4;
  if (kinds * tokens > kMostUnknowns || kinds * tokens * vocabulary > kMostSlopes) return false;
  const at::Tensor next = batch.tokens.slice(0, 1), own = batch.targets.slice(0, 0, tokens);
  if (!own.eq(kNoTarget).logical_or(own.eq(next)).all().item<bool>()) return false;
  const HeadInputs head = head_inputs(subject, request.temperature);
  const at::Tensor h = head.normed.slice(0, 0, tokens).to(at::kDouble),
                   logits = head.logits.slice(0, 0, tokens).to(at::kDouble);
  const at::Tensor log_p = at::log_softmax(logits, -1);
  std::vector<at::Tensor> slopes{
      at::zeros({tokens, vocabulary}, at::kDouble).scatter_(1, next.unsqueeze(1), 1.0), log_p.exp(),
      at::ones({tokens, vocabulary}, at::kDouble), log_p.exp() * log_p};
  if (other_temperature) slopes.push_back(at::softmax(logits * request.temperature, -1));
  at::Tensor u = at::cat(slopes);
  if (const double cap = model.config().final_logit_softcapping; cap > 0.0)
    u = u * (1.0 - (logits * (request.temperature / cap)).square()).repeat({kinds, 1});
  at::Tensor g = found->second.to(at::kCPU, at::kDouble),
             w = model.head().weight->value.to(at::kCPU, at::kDouble);
  if (model.config().tie_word_embeddings) {  // rows that are looked up have other gradients too
    at::Tensor others = at::ones({g.size(0)}, at::kDouble);
    others.index_fill_(0, batch.tokens, 0.0);
    u = u * others;
    g = g * others.unsqueeze(1);
    w = w * others.unsqueeze(1);
  }
  // Each unknown's part of one length.
  u = u / (u.norm(2, 1, true) * h.norm(2, 1, true).repeat({kinds, 1})).clamp_min(1e-300);
  w = w / w.norm().clamp_min(1e-300);
  const at::Tensor all_h = h.repeat({kinds, 1});
  const at::Tensor by_w = (at::matmul(u, w) * all_h).sum(1, true);
  const at::Tensor gram = at::cat({at::cat({at::matmul(u, u.t()) * at::matmul(all_h, all_h.t()), by_w}, 1),
                                   at::cat({by_w.t(), at::ones({1, 1}, at::kDouble)}, 1)});
  const auto [values, vectors] = at::linalg_eigh(gram);
  const at::Tensor inverse =
      at::where(values > 1e-13 * values.max(), values.reciprocal(), at::zeros_like(values));
  at::Tensor left = g;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor product = at::cat({(at::matmul(u, left) * all_h).sum(1), (left * w).sum().view({1})});
    const at::Tensor weights = at::mv(vectors, inverse * at::mv(vectors.t(), product));
    left = left - at::matmul((u * weights.slice(0, 0, -1).unsqueeze(1)).t(), all_h) - w * weights[-1];
  }
  return left.norm().item<double>() >
         std::max(kClearlyLeft, kNoisyLeft * limits.residual) * g.norm().item<double>();
}

}  // namespace streambp::verify
