#include "verify/diagnose/wrong_engine/wrong_leaves.h"

#include <algorithm>
#include <fmt/format.h>

#include <torch/csrc/autograd/autograd.h>

namespace streambp::verify {
namespace {

constexpr const char* kEmbeddingLeaf = "model.embed_tokens.weight";
/// What a tied head's use of the embedding is called here.
const std::string kTiedHead = fmt::format("{} (head)", kEmbeddingLeaf);

/// Adds rows [n, D] in bfloat16, one after another.
void add_one_by_one(at::Tensor& sum, const at::Tensor& index, const at::Tensor& rows) {
  sum.index_add_(0, index, rows.to(at::kBFloat16));
}

/// Which expert's part of a tensor of all experts this is.
int64_t expert_of(const Parameter& part) {
  return part.value.storage_offset() / part.value.numel();
}

}  // namespace

WrongLeaves::WrongLeaves(const Model& model, const WrongSettings& settings)
    : model_(model), settings_(settings) {}

at::Tensor WrongLeaves::leaf_of(const std::string& name, const std::string& of) {
  const auto [found, is_new] = leaves_.try_emplace(name);
  if (is_new) {
    const Parameter& parameter = model_.parameter(of);
    found->second = parameter.value.detach().to(at::kCPU, at::kDouble);
    if (parameter.trainable()) found->second = found->second.detach().requires_grad_();
  }
  return found->second;
}

at::Tensor WrongLeaves::matrix(const Parameter& parameter, int64_t first_row, bool as_head) {
  const std::string& name = as_head && parameter.name == kEmbeddingLeaf ? kTiedHead : parameter.name;
  const at::Tensor leaf = leaf_of(name, parameter.name);
  if (leaf.requires_grad()) used_.push_back({name, leaf, false});
  if (leaf.dim() == 3) return leaf.select(0, expert_of(parameter)).t();
  return leaf.size(0) == parameter.value.size(0) ? leaf : leaf.narrow(0, first_row, parameter.value.size(0));
}

at::Tensor WrongLeaves::vector(const Parameter& parameter, const at::Tensor& x) {
  at::Tensor leaf = leaf_of(parameter.name, parameter.name);
  if (leaf.dim() == 2) {
    if (leaf.requires_grad()) used_.push_back({parameter.name, leaf, false});
    return leaf.select(0, expert_of(parameter));
  }
  if (!leaf.requires_grad()) return leaf;
  const bool by_token = settings_.sums == NarrowSums::kVectors;
  if (by_token) leaf = leaf.detach().expand(x.sizes()).clone().requires_grad_();
  used_.push_back({parameter.name, leaf, by_token});
  return leaf;
}

at::Tensor WrongLeaves::backward(const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& cotangents, const at::Tensor& input) {
  std::vector<at::Tensor> roots, d_roots, leaves;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    d_roots.push_back(cotangents[i]);
  }
  const std::vector<Use> used = std::exchange(used_, {});
  for (const Use& use : used) leaves.push_back(use.leaf);
  const bool wants_input = input.defined() && input.requires_grad();
  if (wants_input) leaves.push_back(input);
  if (roots.empty() || leaves.empty()) return {};
  std::vector<at::Tensor> gradients =
      torch::autograd::grad(roots, leaves, d_roots, /*retain_graph=*/false, /*create_graph=*/false,
                            /*allow_unused=*/true);
  std::vector<const void*> seen;  // one leaf may be used several times: its gradient is the sum already
  for (size_t i = 0; i < used.size(); ++i) {
    const void* const leaf = used[i].leaf.unsafeGetTensorImpl();
    if (!gradients[i].defined() || std::find(seen.begin(), seen.end(), leaf) != seen.end()) continue;
    seen.push_back(leaf);
    if (!used[i].by_token) {
      add(used[i].name, gradients[i]);
      continue;
    }
    const at::Tensor rows = gradients[i].reshape({-1, gradients[i].size(-1)});
    at::Tensor& sum =
        narrow_.try_emplace(used[i].name, at::zeros({1, rows.size(1)}, at::kBFloat16)).first->second;
    add_one_by_one(sum, at::zeros({rows.size(0)}, at::kLong), rows);
  }
  return wants_input ? gradients.back() : at::Tensor();
}

void WrongLeaves::add(const std::string& name, const at::Tensor& gradient) {
  const auto [found, is_new] = row_.try_emplace(name, gradient);
  if (!is_new) found->second = found->second + gradient;
}

void WrongLeaves::add_embedding(const at::Tensor& tokens, const at::Tensor& d) {
  if (const auto padding = model_.config().pad_token_id; padding && !settings_.padding_row_trained) {
    const at::Tensor others = tokens.ne(*padding).nonzero().squeeze(1);
    if (others.size(0) < tokens.size(0))
      return add_embedding(tokens.index_select(0, others), d.index_select(0, others));
  }
  const at::Tensor& value = model_.parameter(kEmbeddingLeaf).value;
  if (settings_.sums == NarrowSums::kEmbedding || settings_.sums == NarrowSums::kVectors) {
    at::Tensor& sum =
        narrow_.try_emplace(kEmbeddingLeaf, at::zeros(value.sizes(), at::kBFloat16)).first->second;
    add_one_by_one(sum, tokens, d);
    return;
  }
  add(kEmbeddingLeaf, at::zeros(value.sizes(), at::kDouble).index_add_(0, tokens, d));
}

void WrongLeaves::end_row() {
  for (auto& [name, gradient] : row_) {
    const bool rows_are_narrow = settings_.sums == NarrowSums::kRows;
    const at::Tensor part = rows_are_narrow ? gradient.to(at::kBFloat16) : gradient;
    const auto [found, is_new] = sums_.try_emplace(name, part);
    if (!is_new) found->second = found->second + part;
  }
  row_.clear();
}

Tensors WrongLeaves::gradients() const {
  Tensors all;
  for (const auto& parameter : model_.parameters()) {
    if (!parameter->trainable()) continue;
    at::Tensor& sum = all[parameter->name] = at::zeros(parameter->value.sizes(), at::kDouble);
    const auto add_from = [&](const Tensors& from, const std::string& name, double times) {
      if (const auto found = from.find(name); found != from.end())
        sum.add_(found->second.to(at::kDouble).view(sum.sizes()), times);
    };
    const bool is_tied = parameter->name == kEmbeddingLeaf;
    const double times = is_tied ? settings_.tied.input : 1.0;
    add_from(sums_, parameter->name, times);
    add_from(narrow_, parameter->name, times);
    if (is_tied) add_from(sums_, kTiedHead, settings_.tied.head);
    if (settings_.sums == NarrowSums::kRounded) sum.copy_(sum.to(at::kBFloat16));
  }
  return all;
}

}  // namespace streambp::verify
