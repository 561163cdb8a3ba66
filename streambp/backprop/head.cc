#include "streambp/backprop/head.h"

#include <algorithm>
#include <set>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/head_chunk.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {
namespace {

/// d loss / d values of scored tokens [begin, begin + rows), and their terms of the loss.
TokenValues gradients_of(const Objective& objective, const TokenValues& values, int64_t begin, int64_t end,
                         double& loss) {
  const at::AutoGradMode with_grad(true);
  Columns leaves = to_columns(values);
  std::vector<at::Tensor> inputs;
  for (at::Tensor& leaf : leaves) {
    if (leaf.defined()) inputs.push_back(leaf = leaf.detach().requires_grad_());
  }
  const at::Tensor terms = objective.loss(to_values(leaves), begin, end);
  if (!terms.is_meta()) loss += terms.item<double>();
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
  // The log-probabilities' gradient is the one that the logits are turned into: it is always there.
  if (!columns[0].defined() && leaves[0].defined()) columns[0] = at::zeros_like(leaves[0]);
  return to_values(columns);
}

TokenValues rows_of(const TokenValues& values, int64_t begin, int64_t end) {
  Columns columns = to_columns(values);
  for (at::Tensor& column : columns) {
    if (column.defined()) column = column.narrow(0, begin, end - begin);
  }
  return to_values(columns);
}

/// Values of all scored tokens, filled in chunk by chunk.
class ValueStore {
 public:
  explicit ValueStore(const HeadPass& pass) {
    const auto column = [&](bool asked) {
      return asked ? at::empty({pass.scored.size()}, pass.scored.targets.options().dtype(at::kDouble))
                   : at::Tensor();
    };
    const HeadRequest& request = pass.request;
    values_ = {column(request.log_probabilities), column(request.entropies),
               column(request.mean_log_probabilities), column(request.values),
               column(request.divergence != Divergence::kNone)};
  }

  void put(int64_t begin, int64_t end, const TokenValues& chunk) {
    const Columns from = to_columns(chunk);
    const Columns to = to_columns(rows_of(values_, begin, end));
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].defined()) to[i].copy_(from[i]);
    }
  }

  const TokenValues& all() const { return values_; }

 private:
  TokenValues values_;
};

/// Calls body(begin, end) for the chunks of the scored tokens. On the meta device, where a chunk only costs
/// memory, once for all that are alike: as long, and neighbours in the stream or not.
template <typename Body>
void for_each_chunk(const HeadPass& pass, int64_t chunk, Body body) {
  const at::Tensor& places = pass.scored.places;
  const int64_t* const place = places.const_data_ptr<int64_t>();
  std::set<std::pair<int64_t, bool>> seen;
  for (int64_t begin = 0; begin < places.size(0); begin += chunk) {
    const int64_t end = std::min(begin + chunk, places.size(0));
    const bool neighbours = place[end - 1] - place[begin] == end - 1 - begin;
    if (pass.model.device().is_meta() && !seen.insert({end - begin, neighbours}).second) continue;
    const Span span("head chunk {}", begin / chunk);
    body(begin, end);
  }
}

}  // namespace

Columns to_columns(const TokenValues& values) {
  return {values.log_probabilities, values.entropies, values.mean_log_probabilities, values.values,
          values.divergences};
}

TokenValues to_values(const Columns& columns) {
  return {columns[0], columns[1], columns[2], columns[3], columns[4]};
}

Scored find_scored(const Batch& batch, c10::Device device) {
  const at::Tensor places = scored_places(batch);
  at::Tensor targets = batch.targets.to(at::kCPU).index_select(0, places);
  at::Tensor has_target = targets.ne(kNoTarget);
  if (has_target.all().item<bool>()) {
    has_target.reset();
  } else {
    targets = targets.clamp_min(0);
    has_target = has_target.to(device);
  }
  return {places, targets.to(device), has_target};
}

at::Tensor full_head(const HeadPass& pass, const Objective& objective, const at::Tensor& hidden,
                     bool hold_logits, HeadOutcome& outcome) {
  const Span span("head");
  const MemoryScope scope("logits");
  const HeadRequest& request = pass.request;
  Model& model = pass.model;
  const at::Tensor places = pass.scored.places.to(hidden.device());
  const at::Tensor normed = rms_norm(hidden, model.norm(), hold_logits);
  const auto log_softmax = [&](at::Tensor logits, const Model& of) {
    logits = logits.to(of.dtype() == at::kDouble ? at::kDouble : at::kFloat);
    const double cap = of.config().final_logit_softcapping;
    if (cap > 0.0) logits = at::tanh(logits / cap) * cap;
    return at::log_softmax(request.temperature == 1.0 ? logits : logits / request.temperature, /*dim=*/-1);
  };
  const auto at_scored = [&](const at::Tensor& per_token) {
    return per_token.index({places}).to(at::kDouble);
  };
  TokenValues values;
  if (request.log_probabilities) {
    at::Tensor logits = linear(normed, {&model.head()}).front();
    if (hold_logits) outcome.logits = logits.detach();
    const at::Tensor log_p = log_softmax(std::move(logits), model);
    values.log_probabilities = log_p.index({places, pass.scored.targets}).to(at::kDouble);
    if (pass.scored.has_target.defined())
      values.log_probabilities = values.log_probabilities * pass.scored.has_target;
    if (request.entropies) values.entropies = at_scored((log_p.exp() * log_p).sum(-1).neg());
    if (request.mean_log_probabilities) values.mean_log_probabilities = at_scored(log_p.mean(-1));
    if (request.divergence != Divergence::kNone) {
      const Model& teacher = *pass.teacher.model;
      RmsNormSaved unused;
      const at::Tensor log_t = log_softmax(
          linear_forward(teacher.head(), rms_norm_forward(pass.teacher.hidden, teacher.norm(), unused)),
          teacher);
      values.divergences =
          at_scored(request.divergence == Divergence::kForward ? (log_t.exp() * (log_t - log_p)).sum(-1)
                                                               : (log_p.exp() * (log_p - log_t)).sum(-1));
    }
  }
  if (request.values) values.values = at_scored(linear(normed, {&model.value_head()}).front().squeeze(1));
  const at::Tensor loss = objective.loss(values, 0, pass.scored.size());
  if (!loss.is_meta()) outcome.loss = loss.item<double>();
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
  ValueStore store(pass);
  for_each_chunk(pass, chunk, [&](int64_t begin, int64_t end) {
    store.put(begin, end, HeadChunk(pass, hidden, begin, end).values());
  });
  return store.all();
}

HeadOutcome streamed_head(const HeadPass& pass, const Objective& objective, int64_t chunk,
                          at::Tensor& hidden) {
  const Span span("head");
  const MemoryScope scope("head chunk");
  const at::NoGradGuard no_grad;
  HeadOutcome outcome;
  ValueStore store(pass);
  TokenValues all_gradients;
  if (!objective.separable()) {
    const TokenValues first_pass = head_values(pass, chunk, hidden);
    all_gradients = gradients_of(objective, first_pass, 0, pass.scored.size(), outcome.loss);
  }
  for_each_chunk(pass, chunk, [&](int64_t begin, int64_t end) {
    HeadChunk rows(pass, hidden, begin, end);
    const TokenValues values = rows.values();
    store.put(begin, end, values);
    rows.backward(objective.separable() ? gradients_of(objective, values, begin, end, outcome.loss)
                                        : rows_of(all_gradients, begin, end),
                  hidden);
  });
  outcome.values = store.all();
  if (pass.scored.size() != hidden.size(0)) {
    const at::Tensor unscored =
        at::ones({hidden.size(0)}, at::kBool).index_fill_(0, pass.scored.places, false);
    hidden.masked_fill_(unscored.to(hidden.device()).unsqueeze(1), 0);
  }
  return outcome;
}

}  // namespace streambp
