#include "verify/diagnose/wrong_engine/norm_ops.h"

#include <algorithm>

#include "verify/diagnose/wrong_engine/other_weights.h"

namespace streambp::verify {

NormOps::NormOps(const Model& model, const WrongSettings& settings, std::map<Parameter*, at::Tensor>& leaves)
    : head_dim_(model.config().head_dim),
      all_heads_(model.config().qk_norm_full_width),
      settings_(settings),
      leaves_(leaves) {
  for (const auto& parameter : model.parameters()) kinds_.emplace(parameter.get(), kind_of(parameter->name));
}

bool NormOps::is_missing(const RmsNorm& norm) const {
  const auto found = kinds_.find(norm.weight);
  return found != kinds_.end() && std::find(settings_.missing_norms.begin(), settings_.missing_norms.end(),
                                            found->second) != settings_.missing_norms.end();
}

bool NormOps::is_otherwise(const RmsNorm& norm) const {
  const auto found = kinds_.find(norm.weight);
  return settings_.other_head_norms && found != kinds_.end() &&
         (found->second.ends_with("q_norm.weight") || found->second.ends_with("k_norm.weight"));
}

at::Tensor NormOps::rms_norm(const at::Tensor& x, const RmsNorm& norm) const {
  if (is_missing(norm)) return x;
  if (!is_otherwise(norm)) return ModelOps::rms_norm(x, norm);
  // Each head where it should be all of them [n, H E], or all [n, H, E] together.
  const at::Tensor grouped = all_heads_ ? x.reshape({x.size(0), -1, head_dim_}) : x.reshape({x.size(0), -1});
  const int64_t width = grouped.size(-1);
  Plain& plain = plain_[&norm];  // the graph keeps it
  plain.ones.value = at::ones({width}, x.options());
  plain.norm = {&plain.ones, norm.eps, false, norm.centers};
  at::Tensor& leaf = leaves_[norm.weight];
  if (!leaf.defined()) leaf = norm.weight->value.detach().clone().requires_grad_();
  return ModelOps::rms_norm(grouped.contiguous(), plain.norm).view(x.sizes()) *
         (norm.adds_one ? leaf + 1.0 : leaf);
}

at::Tensor NormOps::normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table) const {
  if (settings_.rotation_straight) {
    const at::Tensor straight = norm == nullptr ? x : rms_norm(x, *norm);
    return straight + (ModelOps::normed_rope(straight.clone(), nullptr, table) - straight).detach();
  }
  if (norm == nullptr || (!is_missing(*norm) && !is_otherwise(*norm)))
    return ModelOps::normed_rope(x, norm, table);
  return ModelOps::normed_rope(is_missing(*norm) ? x : rms_norm(x, *norm), nullptr, table);
}

}  // namespace streambp::verify
