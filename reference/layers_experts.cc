#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "reference/layers.h"
#include "reference/mixture.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {

Var Layers::router(const std::string& module, const Var& x) const {
  const bool is_biased = config_.mixture.biased_interleaved;
  const Var z = project(module + (is_biased                       ? "router"
                                  : config_.mixture.granite_names ? "router.layer"
                                                                  : "gate"),
                        is_biased, x);
  if (config_.mixture.router_factor != 1.0) return sigmoid(scale(z, config_.mixture.router_factor));
  if (config_.mixture.sqrt_softplus_scores) return exp(scale(log(softplus(z)), 0.5));
  return config_.mixture.sigmoid_scores ? sigmoid(z) : exp(log_softmax(z));
}

Var Layers::softmax_of_router(const std::string& module, const Var& x) const {
  return exp(log_softmax(project(module + "gate", false, x)));
}

Var Layers::experts(const std::string& module, const Var& x, const Var& p,
                    const ExpertsOfTokens& given) const {
  const std::string all = module + "experts.";
  const bool is_hashed = has(module + "gate.tid2eid");  // whose experts are given
  const Matrix correction = is_hashed ? Matrix::Zero(1, p.cols())
                            : config_.mixture.corrected
                                ? held_constant(parameter(module + config_.mixture.correction).value())
                                : Matrix();
  const StackedNames stacked{all + "gate_up_proj", all + "down_proj", all};
  const auto of_rows = [&](int e, const Var& rows) {
    if (config_.mixture.stacked) return stacked_expert(stacked, e, rows);
    return config_.mixture.biased_interleaved ? interleaved_expert(all, e, rows) : expert(all, e, rows);
  };
  const Var y = mixture_of_experts(config_.mixture, x, p, of_rows, correction, given);
  if (config_.mixture.shared_expert_intermediate_size == 0) return y;
  if (config_.clamps_all_mlps) return add(y, clamped_mlp(module + "shared_experts.", x));
  if (config_.mixture.shared_expert_ungated)
    return add(y, gated(module + "shared_experts.", config_.mlp_bias, x));
  const Var share = sigmoid(project(module + "shared_expert_gate", false, x));
  return add(y, scale_rows(gated(module + "shared_expert.", false, x), share));
}

Var Layers::norm_of_scaled(const std::string& module, const Var& x) const {
  const Var factors = offset(parameter(module + ".weight"), 1.0);
  const Var of_rows = gather_rows(factors, std::vector<int>(static_cast<std::size_t>(x.rows()), 0));
  return plainly_normed(mul(x, of_rows), static_cast<int>(x.cols()), config_.post_norm_eps);
}

Var Layers::narrow_experts(const std::string& module, const Var& x, const Var& p,
                           const ExpertsOfTokens& given) const {
  const std::string all = module + "experts.";
  const StackedNames stacked{all + "gate_up_proj", all + "down_proj", all};
  const auto of_rows = [&](int e, const Var& rows) {
    return norm_of_scaled(all + "post_expert_norm", stacked_expert(stacked, e, rows));
  };
  const Matrix correction = held_constant(parameter(module + config_.mixture.correction).value());
  const Var read = norm(module + "pre_expert_norm", project(module + "pre_expert_proj", false, x));
  const Var y = mixture_of_experts(config_.mixture, read, p, of_rows, correction, given);
  return project(module + "post_expert_proj", false, y);
}

Var Layers::latent_experts(const std::string& module, const Var& x, const Var& p,
                           const ExpertsOfTokens& given) const {
  const auto of_rows = [&](int e, const Var& rows) { return expert(module + "experts.", e, rows); };
  const Matrix correction = held_constant(parameter(module + config_.mixture.correction).value());
  const bool has_bias = config_.mlp_bias;
  const Var latent = project(module + "fc1_latent_proj", has_bias, x);
  const Var y = mixture_of_experts(config_.mixture, latent, p, of_rows, correction, given);
  return add(gated(module + "shared_experts.", has_bias, x),
             project(module + "fc2_latent_proj", has_bias, y));
}

Var Layers::gated_sum(const std::string& name, const Var& h, const Var& y) const {
  const Number least = 1e-3;  // transformers' own
  const Var w = scale(parameter(name), 1.0 / Number{config_.residual_temperature});
  const Var b = sigmoid(w);
  const Var square = mul(sigmoid(scale(w, -1.0)), offset(b, 1.0));
  const Var a = exp(scale(log(clip(square, least, std::numeric_limits<double>::infinity())), 0.5));
  const std::vector<int> of_every_row(static_cast<std::size_t>(h.rows()), 0);
  return add(mul(gather_rows(a, of_every_row), h), mul(gather_rows(b, of_every_row), y));
}

Var Layers::granite_experts(const std::string& prefix, const Var& x, const Var& p,
                            const ExpertsOfTokens& given) const {
  const std::string in = prefix + "block_sparse_moe.";
  const StackedNames names{in + "input_linear.weight", in + "output_linear.weight", in + "experts."};
  const auto of_rows = [&](int e, const Var& rows) { return stacked_expert(names, e, rows); };
  const Var y = mixture_of_experts(config_.mixture, x, p, of_rows, Matrix(), given);
  if (config_.mixture.shared_expert_intermediate_size == 0) return y;
  return add(y, mlp(prefix + config_.modules.mlp + ".", x));
}

Var Layers::router_added_to_mlp(const std::string& prefix, const Var& h) const {
  const Var normed = rms_norm(h, parameter(prefix + "router.scale"), config_.rms_norm_eps);
  const Number hidden = config_.hidden_size;
  return exp(log_softmax(project(prefix + "router.proj", false, scale(normed, 1.0 / std::sqrt(hidden)))));
}

Var Layers::mlp_and_experts(const std::string& prefix, const Var& h, const Var& x, const Var& p,
                            const ExpertsOfTokens& given) const {
  const std::string all = prefix + "experts.";
  const StackedNames names{all + "gate_up_proj", all + "down_proj", all};
  const Var scales = transpose(parameter(prefix + "router.per_expert_scale"));
  const auto of_rows = [&](int e, const Var& rows) {
    const std::vector<int> of_every_row(static_cast<std::size_t>(rows.rows()), e);
    return scale_rows(stacked_expert(names, e, rows), gather_rows(scales, of_every_row));
  };
  const Var of_experts = mixture_of_experts(config_.mixture, norm(prefix + "pre_feedforward_layernorm_2", h),
                                            p, of_rows, Matrix(), given);
  return add(norm(prefix + "post_feedforward_layernorm_1", mlp(prefix + "mlp.", x)),
             norm(prefix + "post_feedforward_layernorm_2", of_experts));
}

Var Layers::stacked_expert(const StackedNames& names, int e, const Var& x) const {
  const Index width = config_.mixture.moe_intermediate_size;
  const Var both = stacked_linear(names.gate_up, names.adapters + "gate_up_proj", e, x);
  const Var inner =
      expert_activation(names.adapters, slice_columns(both, 0, width), slice_columns(both, width, width));
  return stacked_linear(names.down, names.adapters + "down_proj", e, inner);
}

/// W_e x with expert e's rows of the matrices of all experts below one another, and its adapter.
Var Layers::stacked_linear(const std::string& matrices, const std::string& adapter, int e,
                           const Var& x) const {
  const Var& all = parameter(matrices);
  const auto count = static_cast<int>(all.rows()) / config_.mixture.num_experts;
  std::vector<int> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), e * count);
  const Var y = linear(x, gather_rows(all, rows));
  return config_.adapters.contains(adapter) ? add(y, expert_delta(adapter, e, x)) : y;
}

Var Layers::expert(const std::string& experts, int e, const Var& x) const {
  const std::string module = experts + std::to_string(e) + ".";
  if (config_.hidden_act == Activation::kRelu2) return gated(module, false, x);
  const Index width = config_.mixture.moe_intermediate_size;
  Var gate = project(module + config_.modules.gate, false, x);
  Var up = project(module + config_.modules.up, false, x);
  if (config_.adapters.contains(experts + "gate_up_proj")) {
    const Var both = expert_delta(experts + "gate_up_proj", e, x);
    gate = add(gate, slice_columns(both, 0, width));
    up = add(up, slice_columns(both, width, width));
  }
  const Var inner = expert_activation(experts, gate, up);
  const Var y = project(module + config_.modules.down, false, inner);
  if (!config_.adapters.contains(experts + "down_proj")) return y;
  return add(y, expert_delta(experts + "down_proj", e, inner));
}

Var Layers::interleaved_expert(const std::string& experts, int e, const Var& x) const {
  const Index width = config_.mixture.moe_intermediate_size;
  const Var both = interleaved_linear(experts + "gate_up_proj", e, x);
  std::vector<int> gate(static_cast<std::size_t>(width)), up(gate.size());
  for (std::size_t j = 0; j < gate.size(); ++j) gate[j] = static_cast<int>(2 * j), up[j] = gate[j] + 1;
  const Var inner = expert_activation(experts, gather_columns(both, gate), gather_columns(both, up));
  return interleaved_linear(experts + "down_proj", e, inner);
}

/// x W_e + b_e with expert e's rows of the matrices of all experts, and its adapter.
Var Layers::interleaved_linear(const std::string& module, int e, const Var& x) const {
  std::vector<int> rows(static_cast<std::size_t>(x.cols()));
  std::iota(rows.begin(), rows.end(), e * static_cast<int>(x.cols()));
  const Var bias = gather_rows(parameter(module + "_bias"), {e});
  const Var y = linear(x, transpose(gather_rows(parameter(module), rows)), bias);
  return config_.adapters.contains(module) ? add(y, expert_delta(module, e, x)) : y;
}

Var Layers::expert_activation(const std::string& module, const Var& gate, const Var& up) const {
  if (config_.swiglu_alpha == 0.0 && config_.swiglu_limit > 0.0) {
    const Number limit = config_.swiglu_limit;
    return mul(activation(clip(gate, -std::numeric_limits<double>::infinity(), limit)),
               clip(up, -limit, limit));
  }
  if (config_.swiglu_alpha == 0.0) return gated_product(module, gate, up);
  return clamped_swiglu(gate, up, config_.swiglu_alpha, config_.swiglu_limit);
}

/// What expert e's part of an adapter of all experts adds; see LoraAdapter.
Var Layers::expert_delta(const std::string& module, int e, const Var& x) const {
  const LoraAdapter& adapter = config_.adapters.at(module);
  std::vector<int> rows, columns;
  for (int j = 0; j < adapter.rank; ++j) {
    rows.push_back(e * adapter.rank + j);
    columns.push_back(j * config_.mixture.num_experts + e);
  }
  const Var a = gather_rows(parameter(module + ".lora_A.weight"), rows);
  const Var b = gather_columns(parameter(module + ".lora_B.weight"), columns);
  return scale(linear(linear(x, a), b), adapter.scale);
}

}  // namespace streambp::STREAMBP_REFERENCE
