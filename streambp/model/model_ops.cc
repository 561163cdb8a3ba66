#include "streambp/model/model_ops.h"

#include <map>

#include "streambp/error.h"
#include "streambp/ops/norm_rope.h"

namespace streambp {
namespace {

std::map<std::string, const ModelOps*>& added() {
  static std::map<std::string, const ModelOps*> ops;
  return ops;
}

}  // namespace

at::Tensor ModelOps::rms_norm(const at::Tensor& x, const RmsNorm& norm) const {
  return streambp::rms_norm(x, norm);
}

at::Tensor ModelOps::normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table) const {
  return streambp::normed_rope(x, norm, table, /*overwrite=*/true);
}

at::Tensor ModelOps::gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp,
                               bool graph_only) const {
  return streambp::gated_mlp(residual, x, mlp, graph_only);
}

std::vector<at::Tensor> ModelOps::held_with_logits(const at::Tensor&) const {
  return {};
}

at::Tensor ModelOps::target_log_probabilities(const at::Tensor&, const HeadTargets&, double) const {
  return {};
}

const ModelOps& own_ops() {
  static const ModelOps ops;
  return ops;
}

void add_model_ops(const std::string& name, const ModelOps& ops) {
  added().emplace(name, &ops);
}

const ModelOps& model_ops(const std::string& name) {
  const auto found = added().find(name);
  if (found == added().end()) throw InputError("baseline '{}': this program has none of that name", name);
  return *found->second;
}

}  // namespace streambp
