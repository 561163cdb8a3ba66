// y = x W^T + b, with or without a low-rank adapter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"
#include "streambp/ops/rows/rows.h"

namespace streambp {

/// LoRA (Hu et al., 2021, arXiv 2106.09685): adds scale * B (A x) to a map. A [r, in], B [out, r].
struct LowRankAdapter {
  Parameter* a = nullptr;
  Parameter* b = nullptr;
  double scale = 1.0;
  Parameter* bias = nullptr;  // [out], where B has one: scale * (B (A x) + bias)
  bool enabled = true;        // off: the map is the base model's

  bool trainable() const {
    return enabled && (a->trainable() || b->trainable() || (bias != nullptr && bias->trainable()));
  }
};

struct Linear;

/// Two maps, one behind the other, whose output is added to another's: low-rank adapters that the base model
/// has itself (Zamba 2), and may have adapters of their own.
struct LinearPair {
  const Linear* in = nullptr;   // [r, in]
  const Linear* out = nullptr;  // [out, r]

  bool is_there() const { return in != nullptr; }
};

/// A linear map: weight [out, in] and, where there are, bias [out] and adapter; what they give is multiplied
/// by `output_scale`.
struct Linear {
  std::string name;  // Hugging Face's module name
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  std::optional<LowRankAdapter> adapter = std::nullopt;
  const TrainedRows* trained_rows = nullptr;  // of the weight, where it is frozen but for them
  int64_t first_row = 0;  // of the weight, in the map of this name: above 0 for parts of a fused map
  double output_scale = 1.0;
  LinearPair pair = {};  // only of a map whose output_scale is 1

  bool trainable() const {
    return weight->trainable() || (bias != nullptr && bias->trainable()) ||
           (adapter && adapter->trainable()) || trained_rows != nullptr ||
           (pair.is_there() && (pair.in->trainable() || pair.out->trainable()));
  }
};

/// x [n, in] through the map, without autograd: [n, out].
at::Tensor linear_forward(const Linear& linear, const at::Tensor& x);

/// Adds the parameters' gradients for inputs x [n, in] (may be undefined where the map is frozen) and dy [n,
/// out].
void linear_accumulate(const Linear& linear, const at::Tensor& x, const at::Tensor& dy);

/// dx += output_scale dy W, or dx = that where dx is undefined. dy [n, out], dx [n, in].
void linear_backward_input(const Linear& linear, const at::Tensor& dy, at::Tensor& dx);

/// Several maps of one input: x is kept once and its gradient is summed in place. The maps must outlive the
/// graph. Where there are `known` outputs, one of each map, those that are defined are not computed again.
std::vector<at::Tensor> linear(const at::Tensor& x, const std::vector<const Linear*>& maps,
                               const std::vector<at::Tensor>& known = {});

/// residual + map(x). residual [n, out], x [n, in]. `known`: the sum itself, which is not computed then.
at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Linear& map,
                      const at::Tensor& known = {});

/// linear_add without autograd.
at::Tensor linear_add_forward(const at::Tensor& residual, const at::Tensor& x, const Linear& map);

}  // namespace streambp
