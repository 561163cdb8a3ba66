// The layers' ops with norms that are missing, or taken over other entries than they should be.
#pragma once

#include <map>

#include "streambp/model/model.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

class NormOps : public ModelOps {
 public:
  /// `leaves` receives a leaf for each weight that is not the library's own ops to use, whose gradient is to
  /// be added to the parameter's. All must outlive the graph.
  NormOps(const Model& model, const WrongSettings& settings, std::map<Parameter*, at::Tensor>& leaves);

  at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) const override;
  at::Tensor normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table) const override;

 private:
  bool is_missing(const RmsNorm& norm) const;
  bool is_otherwise(const RmsNorm& norm) const;

  std::map<const Parameter*, std::string> kinds_;  // of the model's own
  int64_t head_dim_;
  bool all_heads_;  // whether the model norms them together
  const WrongSettings settings_;
  std::map<Parameter*, at::Tensor>& leaves_;
  /// Of each norm that is taken otherwise the same without a weight.
  struct Plain {
    Parameter ones;
    RmsNorm norm;
  };
  mutable std::map<const RmsNorm*, Plain> plain_;
};

}  // namespace streambp::verify
