#include "streambp/backprop/head/head.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/embeddings.h"
#include "streambp/backprop/head/head_chunk.h"
#include "streambp/backprop/head/head_divergence.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/final_rows.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/head/target_softmax.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// d loss / d values of scored tokens [begin, begin + rows), and their terms of the loss.
TokenValues gradients_of(const Objective& objective, const TokenValues& values, int64_t begin, int64_t end,
                         LossSum& loss) {
  const at::AutoGradMode with_grad(true);
  Columns leaves = to_columns(values);
  std::vector<at::Tensor> inputs;
  for (at::Tensor& leaf : leaves) {
    if (leaf.defined()) inputs.push_back(leaf = leaf.detach().requires_grad_());
  }
  const at::Tensor terms = objective.loss(to_values(leaves), begin, end);
  loss.add(terms);
  // A loss may leave a column alone, or be a constant: its gradient is zero then.
  const auto gradients = terms.requires_grad()
                             ? torch::autograd::grad({terms}, inputs, {}, /*retain_graph=*/false,
                                                     /*create_graph=*/false, /*allow_unused=*/true)
                             : std::vector<at::Tensor>(inputs.size());
  Columns columns;
  size_t next = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (leaves[i].defined()) columns[i] = gradients[next++];
  }
  // The log-probabilities' gradient is the one that is written over the logits: it is always there.
  if (!columns[0].defined() && leaves[0].defined()) columns[0] = at::zeros_like(leaves[0]);
  return to_values(columns);
}

/// The divergences of rows of log-probabilities [n, V], [n].
at::Tensor divergences(const HeadRequest& request, const at::Tensor& log_t, const at::Tensor& log_p) {
  const auto relative_entropy = [](const at::Tensor& from, const at::Tensor& to) {
    return (from.exp() * (from - to)).sum(-1);
  };
  const double beta = request.jensen_shannon_beta;
  switch (request.divergence) {
    case Divergence::kForward:
      return relative_entropy(log_t, log_p);
    case Divergence::kReverse:
      return relative_entropy(log_p, log_t);
    case Divergence::kJensenShannon: {
      const at::Tensor log_m = at::logaddexp(log_p + std::log1p(-beta), log_t + std::log(beta));
      return relative_entropy(log_t, log_m) * beta + relative_entropy(log_p, log_m) * (1.0 - beta);
    }
    case Divergence::kNone:
      break;
  }
  throw std::logic_error("no divergence");
}

/// Room for the values of all scored tokens.
TokenValues empty_values(const HeadPass& pass) {
  const auto column = [&](bool asked) {
    return asked ? at::empty({pass.scored.size()}, pass.scored.targets.options().dtype(at::kDouble))
                 : at::Tensor();
  };
  const HeadRequest& request = pass.request;
  return {.log_probabilities = column(request.log_probabilities),
          .entropies = column(request.entropies),
          .mean_log_probabilities = column(request.mean_log_probabilities),
          .values = column(request.values),
          .divergences = column(request.divergence != Divergence::kNone),
          .log_sum_squares = column(request.log_sum_squares)};
}

/// Puts the values of scored tokens [begin, end) among those of all.
void put(const TokenValues& all, int64_t begin, int64_t end, const TokenValues& chunk) {
  const Columns from = to_columns(chunk);
  const Columns to = to_columns(rows_of(all, begin, end));
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].defined()) to[i].copy_(from[i]);
  }
}

/// Calls body(begin, end) for the chunks of scored tokens [first, last). Chunks are alike, for a dry run, if
/// they are as long and both contiguous in the stream or both not.
template <typename Body>
void for_each_chunk(const HeadPass& pass, int64_t first, int64_t last, int64_t chunk, Body body) {
  const auto range = [&](int64_t i) {
    return std::pair(first + i * chunk, std::min(first + (i + 1) * chunk, last));
  };
  const auto kind = [&](int64_t i) {
    const auto [begin, end] = range(i);
    return std::pair(end - begin, pass.scored.are_contiguous(begin, end));
  };
  const int64_t count = (last - first + chunk - 1) / chunk;
  for (const int64_t i : steps_to_run(pass.model.device(), count, kind, [](int64_t) { return 0; })) {
    const auto [begin, end] = range(i);
    const Span span("head chunk {}", begin / chunk);
    body(begin, end);
  }
}

}  // namespace

at::Tensor log_sum_squares(const at::Tensor& log_p) {
  return (log_p * 2.0).exp_().sum(-1).log_();
}

Columns to_columns(const TokenValues& values) {
  return {values.log_probabilities, values.entropies,      values.mean_log_probabilities, values.values,
          values.divergences,       values.log_sum_squares};
}

TokenValues to_values(const Columns& columns) {
  return {.log_probabilities = columns[0],
          .entropies = columns[1],
          .mean_log_probabilities = columns[2],
          .values = columns[3],
          .divergences = columns[4],
          .log_sum_squares = columns[5],
          .embeddings = {}};
}

TokenValues rows_of(const TokenValues& values, int64_t begin, int64_t end) {
  Columns columns = to_columns(values);
  for (at::Tensor& column : columns) {
    if (column.defined()) column = column.narrow(0, begin, end - begin);
  }
  return to_values(columns);
}

int64_t HeadPass::shared_vocabulary() const {
  return std::min(model.config().vocab_size, teacher.model->config().vocab_size);
}

bool HeadPass::has_one_softmax() const {
  return request.divergence_temperature == request.temperature &&
         shared_vocabulary() == model.config().vocab_size;
}

void LossSum::add(const at::Tensor& terms) {
  const at::Tensor wide = terms.detach().to(at::kDouble);
  sum_ = sum_.defined() ? sum_ + wide : wide;
}

double LossSum::read() const {
  return sum_.defined() ? item_or_zero(sum_) : 0.0;
}

namespace {

/// Logits in float32 or wider, capped where `of` caps them.
at::Tensor capped(at::Tensor logits, const Model& of) {
  logits = logits.to(sum_dtype(logits));
  const double cap = of.config().final_logit_softcapping;
  return cap > 0.0 ? at::tanh(logits / cap) * cap : logits;
}

at::Tensor log_softmax_at(const at::Tensor& logits, double temperature) {
  return at::log_softmax(temperature == 1.0 ? logits : logits / temperature, /*dim=*/-1);
}

/// The target of each of `rows` tokens, word 0 of one that is not scored: [rows] on the device of `indices`.
at::Tensor targets_of_all(const at::Tensor& indices, const at::Tensor& targets, int64_t rows) {
  return at::zeros({rows}, indices.options()).index_copy(0, indices, targets.to(indices.device()));
}

/// Logits [N, V] as they are, under autograd: the entry of a row's target [N] in their gradient becomes what
/// the other entries leave, since the gradient of whatever a softmax gives sums to 0 over a row. 1 - p is
/// then a sum of the others' p, with all its digits where the target leads; ATen's difference has none of
/// them left beyond some 16 nats in float32.
at::Tensor exact_at_targets(const at::Tensor& logits, const at::Tensor& targets) {
  return differentiable({logits}, logits.detach(), "exact_at_targets",
                        [targets](std::vector<at::Tensor>&& d) {
                          const at::Tensor at = targets.unsqueeze(1);
                          d[0].scatter_(1, at, 0.0);
                          d[0].scatter_(1, at, d[0].sum(1, /*keepdim=*/true).neg_());
                          return std::move(d);
                        });
}

/// `picked` [M], the targets' log-probabilities out of a log-softmax, with the `exact` values [M] float64 of
/// their log-odds (ops/cpu/log_odds.h): a log-softmax rounds those of targets that lead to 0.
at::Tensor with_values(const at::Tensor& picked, at::Tensor exact) {
  return differentiable({picked}, std::move(exact), "with_values",
                        [dtype = picked.scalar_type()](std::vector<at::Tensor>&& d) {
                          d[0] = d[0].to(dtype);
                          return std::move(d);
                        });
}

/// In float64, 0 where a token has no target.
at::Tensor where_scored(const HeadPass& pass, const at::Tensor& log_probabilities) {
  const at::Tensor values = log_probabilities.to(at::kDouble);
  return pass.scored.has_target.defined() ? values * pass.scored.has_target : values;
}

/// Every value of the scored tokens' distributions that the request has, [M] each, out of `logits` [N, V],
/// those of all tokens, under autograd.
void take_distributions(const HeadPass& pass, at::Tensor logits, const ModelOps& ops, TokenValues& values) {
  const HeadRequest& request = pass.request;
  const at::Tensor indices = pass.scored.indices.to(logits.device());
  const auto at_scored = [&](const at::Tensor& per_token) {
    return per_token.index({indices}).to(at::kDouble);
  };
  logits = capped(std::move(logits), pass.model);
  at::Tensor exact;
  if (ops.keeps_confident_targets() && has_target_softmax(logits.device())) {
    const at::Tensor targets = targets_of_all(indices, pass.scored.targets, logits.size(0));
    at::Tensor sums;
    exact = target_log_probabilities(logits.detach(), targets, request.temperature, sums).index({indices});
    logits = exact_at_targets(logits, targets);
  }
  const at::Tensor log_p = log_softmax_at(logits, request.temperature);
  const bool diverges = request.divergence != Divergence::kNone;
  const bool needs_second_softmax = diverges && !pass.has_one_softmax();
  if (!needs_second_softmax) logits.reset();
  at::Tensor picked = log_p.index({indices, pass.scored.targets});
  if (exact.defined()) picked = with_values(picked, std::move(exact));
  values.log_probabilities = where_scored(pass, picked);
  if (request.entropies) values.entropies = at_scored((log_p.exp() * log_p).sum(-1).neg());
  if (request.mean_log_probabilities) values.mean_log_probabilities = at_scored(log_p.mean(-1));
  if (request.log_sum_squares) values.log_sum_squares = at_scored(log_sum_squares(log_p.detach()));
  if (!diverges) return;
  const Model& teacher = *pass.teacher.model;
  const auto shared = [&](const at::Tensor& of) { return of.narrow(-1, 0, pass.shared_vocabulary()); };
  const at::Tensor normed_of_teacher = final_rows_forward(teacher, pass.teacher.hidden);
  const at::Tensor log_t = log_softmax_at(shared(capped(head_logits(teacher, normed_of_teacher), teacher)),
                                          request.divergence_temperature);
  const at::Tensor log_d =
      needs_second_softmax ? log_softmax_at(shared(logits), request.divergence_temperature) : log_p;
  values.divergences = at_scored(divergences(request, log_t, log_d));
}

}  // namespace

at::Tensor full_head(const HeadPass& pass, const Objective& objective, const at::Tensor& hidden,
                     const ModelOps& ops, HeadOutcome& outcome) {
  const Span span("head");
  const MemoryScope scope("logits");
  const HeadRequest& request = pass.request;
  Model& model = pass.model;
  if (request.pooling != Pooling::kNone) {
    TokenValues pooled;
    pooled.embeddings = embeddings(pass, hidden);
    const at::Tensor loss = objective.loss(pooled, 0, 0);
    outcome.loss = item_or_zero(loss);
    return loss;
  }
  const at::Tensor normed = final_rows(model, hidden, ops);
  TokenValues values;
  if (request.log_probabilities) {
    at::Tensor logits = linear(normed.to(model.head_dtype()), {&model.head()}).front();
    outcome.held = ops.held_with_logits(logits);
    at::Tensor alone;
    if (request.needs_targets_alone() && model.config().final_logit_softcapping == 0.0)
      alone = ops.target_log_probabilities(logits, pass.scored, request.temperature);
    if (alone.defined()) {
      values.log_probabilities = where_scored(pass, alone);
    } else {
      take_distributions(pass, std::move(logits), ops, values);
    }
  }
  if (request.values) {
    const at::Tensor all = linear(normed, {&model.value_head()}).front().squeeze(1);
    values.values = all.index({pass.scored.indices.to(hidden.device())}).to(at::kDouble);
  }
  const at::Tensor loss = objective.loss(values, 0, pass.scored.size());
  outcome.loss = item_or_zero(loss);
  Columns columns = to_columns(values);
  for (at::Tensor& column : columns) {
    if (column.defined()) column = column.detach();
  }
  outcome.values = to_values(columns);
  return loss;
}

TokenValues head_values(const HeadPass& pass, int64_t chunk, const at::Tensor& hidden) {
  const Span span("head without gradients");
  const MemoryScope scope("head chunk");
  const at::NoGradGuard no_grad;
  const TokenValues values = empty_values(pass);
  for_each_chunk(pass, 0, pass.scored.size(), chunk, [&](int64_t begin, int64_t end) {
    put(values, begin, end, HeadChunk(pass, hidden, 0, begin, end, /*goes_back=*/false).values());
  });
  return values;
}

StreamedHead::StreamedHead(const HeadPass& pass, const Objective& objective, int64_t chunk, int64_t rows)
    : pass_(pass), objective_(objective), chunk_(chunk) {
  const MemoryScope scope("head chunk");
  values_ = empty_values(pass);
  // Each chunk adds to it: in float32 it would be rounded as often.
  Parameter& norm = *pass.model.norm().weight;
  if (norm.gradient.defined()) norm_sum_.emplace(norm, at::kDouble);
  const int64_t scored = pass.scored.size();
  if (scored > chunk || (rows > 0 && scored > rows)) sums_.emplace(pass.model);
}

void StreamedHead::run(int64_t begin, at::Tensor& hidden) {
  const Span span("head");
  const MemoryScope scope("head chunk");
  const at::NoGradGuard no_grad;
  const auto [first, last] = pass_.scored.within(begin, begin + hidden.size(0));
  TokenValues all_gradients;
  if (!objective_.separable()) {
    TORCH_INTERNAL_ASSERT(last - first == pass_.scored.size());
    all_gradients = gradients_of(objective_, head_values(pass_, chunk_, hidden), first, last, loss_);
  }
  for_each_chunk(pass_, first, last, chunk_, [&](int64_t from, int64_t to) {
    HeadChunk rows(pass_, hidden, begin, from, to, /*goes_back=*/true);
    const TokenValues values = rows.values();
    put(values_, from, to, values);
    rows.backward(objective_.separable() ? gradients_of(objective_, values, from, to, loss_)
                                         : rows_of(all_gradients, from, to),
                  hidden);
  });
  if (last - first != hidden.size(0)) {
    const at::Tensor indices = pass_.scored.indices.narrow(0, first, last - first) - begin;
    const at::Tensor unscored =
        at::ones({hidden.size(0)}, at::TensorOptions(at::kBool)).index_fill_(0, indices, false);
    hidden.masked_fill_(unscored.to(hidden.device()).unsqueeze(1), 0);
  }
}

HeadOutcome StreamedHead::outcome() const {
  HeadOutcome outcome;
  outcome.loss = loss_.read();
  outcome.values = values_;
  return outcome;
}

}  // namespace streambp
