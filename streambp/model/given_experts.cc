#include "streambp/model/given_experts.h"

#include <vector>

#include "streambp/error.h"

namespace streambp {
namespace {

/// Throws for the first token of which `experts` [N, k] int64 are not k different ones of `count`.
void check_experts(const Batch& batch, const std::string& name, int64_t layer, const at::Tensor& experts,
                   int64_t count) {
  const int64_t k = experts.size(1);
  const at::Tensor sorted = std::get<0>(experts.sort(/*dim=*/1, /*descending=*/false));
  at::Tensor wrong = experts.lt(0).logical_or(experts.ge(count)).any(1);
  if (k > 1) wrong = wrong.logical_or(sorted.narrow(1, 1, k - 1).eq(sorted.narrow(1, 0, k - 1)).any(1));
  wrong = wrong.logical_and(experts.eq(-1).all(1).logical_not());
  if (!wrong.any().item<bool>()) return;
  const auto token = wrong.nonzero()[0][0].item<int64_t>();
  const at::Tensor of_token = experts[token].contiguous();
  const at::ArrayRef<int64_t> numbers(of_token.const_data_ptr<int64_t>(), static_cast<size_t>(k));
  const auto index = batch.padded_indices[token].item<int64_t>();
  throw InputError(
      "{}: row {}, column {} of input_ids has experts [{}] in layer {}, expected {} different ones of 0 to "
      "{}, or "
      "-1 in all {} places where the router is to choose",
      name, index / batch.padded_columns, index % batch.padded_columns, fmt::join(numbers, ", "), layer, k,
      count - 1, k);
}

}  // namespace

std::shared_ptr<RouterChoices> given_choices(const Config& config, const Batch& batch, c10::Device device) {
  if (!batch.router_indices.defined()) return nullptr;
  const std::string name = batch.indices_source + "router_indices";
  const MixtureSettings& mixture = config.mixture;
  std::vector<int64_t> sparse;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_sparse(layer)) sparse.push_back(layer);
  }
  if (sparse.empty()) throw InputError("{}: the model has no experts; leave the tensor out", name);
  const auto with_experts = static_cast<int64_t>(sparse.size());
  const int64_t layers = batch.router_indices.size(1), k = mixture.num_experts_per_tok;
  if ((layers != with_experts && layers != config.num_hidden_layers) || batch.router_indices.size(2) != k)
    throw InputError(
        "{}: {} experts of each token in {} layers, expected {} in each of the {} layers with experts, or of "
        "all {} "
        "layers",
        name, batch.router_indices.size(2), layers, k, with_experts, config.num_hidden_layers);
  auto choices =
      std::make_shared<RouterChoices>(config.num_hidden_layers, batch.size(), k, mixture.num_experts, device);
  for (size_t i = 0; i < sparse.size(); ++i) {
    const int64_t layer = sparse[i];
    const at::Tensor experts =
        batch.router_indices.select(1, layers == with_experts ? static_cast<int64_t>(i) : layer)
            .to(at::kLong);
    check_experts(batch, name, layer, experts, mixture.num_experts);
    choices->give(layer, experts);
  }
  return choices;
}

}  // namespace streambp
