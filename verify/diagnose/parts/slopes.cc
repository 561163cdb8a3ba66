#include "verify/diagnose/parts/slopes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/model/scored.h"

namespace streambp::verify {
namespace {

TokenValues to_token_values(const ScoredValues& values) {
  TokenValues all = to_values(values.columns);
  all.embeddings = values.embeddings;
  return all;
}

ScoredValues detached(const TokenValues& values) {
  ScoredValues all{to_columns(values), values.embeddings};
  for (at::Tensor& column : all.columns) {
    if (column.defined()) column = column.detach().clone();
  }
  if (all.embeddings.defined()) all.embeddings = all.embeddings.detach().clone();
  return all;
}

/// An objective that remembers the values that it is shown.
class Recording final : public Objective {
 public:
  explicit Recording(const Objective& objective) : objective_(objective) {
    router_loss = objective.router_loss;
  }

  std::string name() const override { return objective_.name(); }
  bool separable() const override { return false; }
  at::Tensor targets() const override { return objective_.targets(); }
  HeadRequest request() const override {
    HeadRequest request = objective_.request();
    if (request.log_probabilities && request.pooling == Pooling::kNone)
      request.entropies = request.mean_log_probabilities = true;
    return request;
  }
  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    seen = detached(values);
    return objective_.loss(values, begin, end);
  }

  mutable ScoredValues seen;

 private:
  const Objective& objective_;
};

/// The sum of values times slopes.
class SumOfSlopes final : public Objective {
 public:
  SumOfSlopes(const ScoredValues& slopes, const HeadRequest& request) : slopes_(slopes), request_(request) {
    router_loss.coefficient = 0.0;
    request_.entropies = slopes_.columns[1].defined();
    request_.mean_log_probabilities = slopes_.columns[2].defined();
    request_.values = slopes_.columns[3].defined();
    if (!slopes_.columns[4].defined()) request_.divergence = Divergence::kNone;
    request_.log_sum_squares = false;
  }

  std::string name() const override { return "linearised"; }
  bool separable() const override { return request_.pooling == Pooling::kNone; }
  HeadRequest request() const override { return request_; }
  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    if (request_.pooling != Pooling::kNone) return (values.embeddings * slopes_.embeddings).sum();
    at::Tensor sum;
    const Columns columns = to_columns(values);
    for (size_t i = 0; i < columns.size(); ++i) {
      if (!slopes_.columns[i].defined() || !columns[i].defined()) continue;
      const at::Tensor product = (columns[i] * slopes_.columns[i].slice(0, begin, end)).sum();
      sum = sum.defined() ? sum + product : product;
    }
    return sum;
  }

 private:
  ScoredValues slopes_;
  HeadRequest request_;
};

}  // namespace

ScoredValues slopes_at(const Objective& objective, const ScoredValues& values) {
  const at::AutoGradMode with_grad(true);
  ScoredValues leaves = values;
  std::vector<at::Tensor> inputs;
  const auto make_leaf = [&](at::Tensor& leaf) {
    if (leaf.defined()) inputs.push_back(leaf = leaf.detach().requires_grad_());
  };
  for (at::Tensor& column : leaves.columns) make_leaf(column);
  make_leaf(leaves.embeddings);
  ScoredValues slopes;
  const int64_t size = leaves.columns[0].defined()   ? leaves.columns[0].size(0)
                       : leaves.columns[3].defined() ? leaves.columns[3].size(0)
                                                     : 0;
  const at::Tensor loss = objective.loss(to_token_values(leaves), 0, size);
  if (inputs.empty() || !loss.requires_grad()) return slopes;
  const auto found = torch::autograd::grad({loss}, inputs, {}, false, false, /*allow_unused=*/true);
  size_t next = 0;
  for (size_t i = 0; i < leaves.columns.size(); ++i) {
    if (leaves.columns[i].defined()) slopes.columns[i] = found[next++];
  }
  if (leaves.embeddings.defined()) slopes.embeddings = found[next];
  return slopes;
}

ScoredValues sum_of(const ScoredValues& a, const ScoredValues& b, double factor) {
  const auto sum = [&](const at::Tensor& x, const at::Tensor& y) {
    if (!y.defined()) return x;
    return x.defined() ? x + y * factor : y * factor;
  };
  ScoredValues all;
  for (size_t i = 0; i < all.columns.size(); ++i) all.columns[i] = sum(a.columns[i], b.columns[i]);
  all.embeddings = sum(a.embeddings, b.embeddings);
  return all;
}

bool is_zero(const ScoredValues& slopes) {
  const auto none = [](const at::Tensor& slope) { return !slope.defined() || is_zero(slope); };
  return std::all_of(slopes.columns.begin(), slopes.columns.end(), none) && none(slopes.embeddings);
}

Tensors gradients_of_slopes(Model& model, const Batch& batch, const ScoredValues& slopes,
                            const HeadRequest& request, Model* teacher) {
  if (is_zero(slopes)) {
    model.zero_gradients();
    return gradients_of(model);
  }
  return evaluate(model, batch, SumOfSlopes(slopes, request), {}, teacher).gradients;
}

Linearised::Linearised(Model& model, const Batch& batch, const Objective& objective, Model* teacher)
    : model_(model), batch_(batch), teacher_(teacher), request_(objective.request()) {
  const Recording recording(objective);
  gradients_ = evaluate(model, batch, recording, {}, teacher).gradients;
  values_ = recording.seen;
  slopes_ = slopes_at(objective, values_);
  if (const at::Tensor targets = objective.targets(); targets.defined()) batch_.targets = targets;
  const at::Tensor offsets = at::tensor(at::ArrayRef<int64_t>(batch_.offsets), at::kLong);
  sequences_ = at::searchsorted(offsets, scored_indices(batch_), /*out_int32=*/false, /*right=*/true) - 1;
}

at::Tensor Linearised::of_sequence(int64_t sequence) const {
  return sequences_.eq(sequence);
}

Tensors Linearised::gradients_of(const ScoredValues& slopes, const std::vector<int64_t>& sequences) const {
  const Batch part = select_sequences(batch_, sequences);
  ScoredValues own;
  std::vector<at::Tensor> indices;
  for (const int64_t sequence : sequences) indices.push_back(of_sequence(sequence).nonzero().squeeze(1));
  const at::Tensor scored = at::cat(indices);
  for (size_t i = 0; i < own.columns.size(); ++i) {
    if (slopes.columns[i].defined()) own.columns[i] = slopes.columns[i].index_select(0, scored);
  }
  if (slopes.embeddings.defined()) {
    own.embeddings =
        slopes.embeddings.index_select(0, at::tensor(at::ArrayRef<int64_t>(sequences), at::kLong));
  }
  return gradients_of_slopes(model_, part, own, request_, teacher_);
}

Tensors Linearised::gradients_of(const ScoredValues& slopes) const {
  std::vector<int64_t> all(batch_.offsets.size() - 1);
  std::iota(all.begin(), all.end(), 0);
  return gradients_of(slopes, all);
}

}  // namespace streambp::verify
