// Which experts a token goes to is a matter of rounding where two of them are nearly as probable.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include <ATen/record_function.h>

#include "streambp/backprop/method.h"
#include "streambp/ops/transformers_rounding.h"
#include "verify/compare/noise.h"

namespace streambp::verify {
namespace {

/// Log-probabilities of the experts, [N, X] float64, of each sparse layer in turn.
using Routers = std::vector<at::Tensor>;

/// What the routers say in one forward pass. The pass takes layer after layer, each by rows in order; a
/// mixture's topk of all its experts is the choice of some (others are of its groups of experts).
class RouterRecorder {
 public:
  RouterRecorder(int64_t tokens, int64_t experts) : tokens_(tokens), experts_(experts) {
    current() = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&record).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~RouterRecorder() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  RouterRecorder(const RouterRecorder&) = delete;
  RouterRecorder& operator=(const RouterRecorder&) = delete;

  Routers take() { return std::move(layers_); }

 private:
  static RouterRecorder*& current() {
    static thread_local RouterRecorder* recorder = nullptr;
    return recorder;
  }

  static std::unique_ptr<at::ObserverContext> record(const at::RecordFunction& function) {
    if (current() != nullptr && std::string_view(function.name()) == "aten::topk")
      current()->add(function.inputs().front().toTensor());
    return nullptr;
  }

  void add(const at::Tensor& probabilities) {
    if (probabilities.dim() != 2 || probabilities.size(1) != experts_) return;
    parts_.push_back(probabilities.to(at::kDouble).log());
    rows_ += probabilities.size(0);
    if (rows_ < tokens_) return;
    layers_.push_back(at::cat(parts_));
    parts_.clear();
    rows_ = 0;
  }

  int64_t tokens_, experts_;
  int64_t rows_ = 0;
  std::vector<at::Tensor> parts_;
  Routers layers_;
  at::CallbackHandle handle_ = 0;
};

Routers routers_of(Model& model, const Batch& batch) {
  const TransformersRounding as_transformers;
  RouterRecorder recorder(batch.size(), model.config().mixture.num_experts);
  evaluate(model, batch);
  return recorder.take();
}

/// The experts that each token chooses, [N, k] in ascending order.
at::Tensor choices_of(const at::Tensor& router, int64_t k) {
  return std::get<0>(std::get<1>(router.topk(k, -1)).sort(-1));
}

/// Experts in two tensors are all unsettled where one is.
void add_expert(std::set<std::string>& names, const Config& config, int64_t layer, int64_t expert) {
  if (config.mixture.biased_interleaved) {
    for (const char* tensor : {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"})
      names.insert(fmt::format("model.layers.{}.mlp.experts.{}", layer, tensor));
    return;
  }
  for (const char* map : {"gate_proj", "up_proj", "down_proj"})
    names.insert(fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, map));
}

/// The tokens near a tie in one layer, [N] bool; adds the experts on both sides.
at::Tensor near_in_layer(const at::Tensor& exact, const at::Tensor& low, int64_t layer, const Config& config,
                         NearTies& ties) {
  const int64_t k = config.mixture.num_experts_per_tok;
  const auto add = [&](int64_t expert) { add_expert(ties.unsettled, config, layer, expert); };
  const at::Tensor noise = (low - exact).abs().flatten();
  const double typical = noise.nanmedian().item<double>();
  const auto [sorted, order] = exact.sort(/*dim=*/-1, /*descending=*/true);
  const at::Tensor margin = sorted.select(1, k - 1) - sorted.select(1, k);
  const at::Tensor exact_choices = choices_of(exact, k);
  const at::Tensor low_choices = choices_of(low, k);
  const at::Tensor differs = exact_choices.ne(low_choices).any(1);
  const at::Tensor near = margin.le(4.0 * typical).logical_or_(differs);
  for (int64_t token = 0; token < near.size(0); ++token) {
    if (!near[token].item<bool>()) continue;
    add(order[token][k - 1].item<int64_t>());
    add(order[token][k].item<int64_t>());
    for (int64_t i = 0; i < k; ++i) {
      if (!low_choices[token].eq(exact_choices[token][i]).any().item<bool>())
        add(exact_choices[token][i].item<int64_t>());
      if (!exact_choices[token].eq(low_choices[token][i]).any().item<bool>())
        add(low_choices[token][i].item<int64_t>());
    }
  }
  return near;
}

}  // namespace

NearTies find_near_ties(Truth& exact, at::ScalarType dtype) {
  NearTies ties;
  const Config& config = exact.model.config();
  if (config.mixture.num_experts <= config.mixture.num_experts_per_tok) return ties;
  if (exact.batch.router_indices.defined()) return ties;  // nothing is chosen
  ties.tokens = exact.batch.size();
  const Routers in_double = routers_of(exact.model, exact.batch);
  Truth low = exact.open_again(dtype);
  const Routers in_dtype = routers_of(low.model, low.batch);
  at::Tensor near = at::zeros({ties.tokens}, at::kBool);
  size_t router = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers && router < in_double.size(); ++layer) {
    if (!config.is_sparse(layer)) continue;
    const at::Tensor of_layer = near_in_layer(in_double[router], in_dtype[router], layer, config, ties);
    ++router;
    if (!of_layer.any().item<bool>()) continue;
    ties.layers.push_back(layer);
    near.logical_or_(of_layer);
  }
  ties.near = near.sum().item<int64_t>();
  return ties;
}

}  // namespace streambp::verify
