#include "streambp/backprop/embeddings.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/method.h"
#include "streambp/backprop/passes.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/final_rows.h"
#include "streambp/ops/dry_run.h"

namespace streambp {
namespace {

/// Tokens [begin, end) of a sequence, each of which has `share` of its embedding.
struct TokenRun {
  int64_t sequence, begin, end;
  double share;
};

/// Calls body(run) for runs of at most `chunk` tokens that make up the embeddings.
template <typename Body>
void for_each_run(const HeadPass& pass, int64_t chunk, Body body) {
  const std::vector<int64_t>& offsets = pass.scored.offsets;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t end = offsets[i + 1];
    const int64_t first = pass.request.pooling == Pooling::kLast ? end - 1 : offsets[i];
    for (int64_t begin = first; begin < end; begin += chunk) {
      body(TokenRun{static_cast<int64_t>(i), begin, std::min(begin + chunk, end),
                    1.0 / static_cast<double>(end - first)});
    }
  }
}

at::Tensor rows_of(const at::Tensor& hidden, const TokenRun& run) {
  return hidden.narrow(0, run.begin, run.end - run.begin);
}

/// A part's share in the loss of all: what its embeddings have of the first-order change of the loss.
class CachedGradient final : public Objective {
 public:
  CachedGradient(std::string name, const HeadRequest& request, at::Tensor gradient, double constant)
      : name_(std::move(name)), request_(request), gradient_(std::move(gradient)), constant_(constant) {}

  std::string name() const override { return name_; }
  bool separable() const override { return false; }
  HeadRequest request() const override { return request_; }
  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    return (values.embeddings * gradient_).sum() + constant_;
  }

 private:
  std::string name_;
  HeadRequest request_;
  at::Tensor gradient_;  // [s, D]
  double constant_;
};

}  // namespace

at::Tensor embeddings(const HeadPass& pass, const at::Tensor& hidden) {
  const at::Tensor normed = final_rows(pass.model, hidden);
  std::vector<at::Tensor> rows;
  for_each_run(pass, hidden.size(0), [&](const TokenRun& run) {
    rows.push_back(rows_of(normed, run).to(at::kDouble).sum(0) * run.share);
  });
  return at::stack(rows);
}

at::Tensor streamed_embeddings(const HeadPass& pass, int64_t chunk, const at::Tensor& hidden) {
  const MemoryScope scope("head chunk");
  const auto sequences = static_cast<int64_t>(pass.scored.offsets.size()) - 1;
  at::Tensor all =
      at::zeros({sequences, pass.model.config().hidden_size}, hidden.options().dtype(at::kDouble));
  for_each_run(pass, chunk, [&](const TokenRun& run) {
    const at::Tensor normed = final_rows_forward(pass.model, rows_of(hidden, run));
    all.select(0, run.sequence).add_(normed.to(at::kDouble).sum(0), run.share);
  });
  return all;
}

void embeddings_backward(const HeadPass& pass, int64_t chunk, const at::Tensor& d_embeddings,
                         at::Tensor& hidden) {
  const MemoryScope scope("head chunk");
  int64_t done = 0;
  for_each_run(pass, chunk, [&](const TokenRun& run) {
    hidden.narrow(0, done, run.begin - done).zero_();  // tokens that are in no embedding
    done = run.end;
    at::Tensor rows = rows_of(hidden, run);
    FinalRowsSaved saved;
    const at::Tensor normed = final_rows_forward(pass.model, rows, saved);
    const at::Tensor d_normed = (d_embeddings.select(0, run.sequence) * run.share)
                                    .to(hidden.scalar_type())
                                    .expand(normed.sizes())
                                    .contiguous();
    rows.copy_(final_rows_backward(pass.model, d_normed, saved));
  });
  hidden.narrow(0, done, hidden.size(0) - done).zero_();
}

double embeddings_gradient(const Objective& objective, at::Tensor& embeddings) {
  const at::AutoGradMode with_grad(true);
  TokenValues values;
  values.embeddings = embeddings.detach().requires_grad_();
  const at::Tensor loss = objective.loss(values, 0, 0);
  embeddings = torch::autograd::grad({loss}, {values.embeddings}).front();
  return item_or_zero(loss);
}

void require_no_balance(const Model& model, const Objective& objective) {
  if (objective.router_loss.of(model.config().mixture) == 0.0) return;
  throw InputError(
      "{}: balances the load of experts over the whole batch, expected no micro-batches, or "
      "router_aux_loss_coef=0",
      objective.name());
}

std::vector<std::unique_ptr<Objective>> part_objectives(Model& model, const std::string& name,
                                                        const Batch& batch, const std::vector<Batch>& parts,
                                                        const std::map<std::string, std::string>& given) {
  std::vector<std::unique_ptr<Objective>> objectives;
  const auto whole = make_objective(name, batch, given);
  const HeadRequest request = whole->request();
  if (parts.size() > 1) require_no_balance(model, *whole);
  if (request.pooling == Pooling::kNone || parts.size() == 1) {
    const Counts counts = count(batch);
    for (const Batch& part : parts) objectives.push_back(make_objective(name, part, given, counts));
    return objectives;
  }
  const at::NoGradGuard no_grad;
  const Span span("embeddings of all parts");
  std::vector<at::Tensor> of_parts;
  for (const Batch& part : parts) {
    const Stream stream = model.prepare(part);
    const int64_t chunk = auto_chunk(stream.size(), model.device());
    const HeadTargets scored = head_targets(part, model.device());
    of_parts.push_back(streamed_embeddings({model, scored, request, {}}, chunk,
                                           streamed_hidden_states(model, stream, chunk)));
  }
  at::Tensor gradient = at::cat(of_parts);
  const double share = embeddings_gradient(*whole, gradient) / static_cast<double>(parts.size());
  int64_t begin = 0;
  for (const at::Tensor& of_part : of_parts) {
    at::Tensor d = gradient.narrow(0, begin, of_part.size(0));
    begin += of_part.size(0);
    const double first_order = has_values(d) ? (of_part * d).sum().item<double>() : 0.0;
    objectives.push_back(std::make_unique<CachedGradient>(name, request, std::move(d), share - first_order));
    objectives.back()->router_loss = whole->router_loss;
  }
  return objectives;
}

}  // namespace streambp
