// The gated delta rule, with a decay for each head or each channel, and the state space without its exchange,
// token by token in plain ATen, and inputs.
#pragma once

#include <cmath>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/recurrent/delta_rule.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {

/// Everything that the op reads, or gradients of all that.
struct DeltaRuleCase {
  DeltaRuleSizes sizes;
  std::vector<int64_t> offsets;
  at::Tensor mixed, log_decay, beta, state;

  /// Random inputs, in float64, with decays from e^weakest to e^strongest per token.
  DeltaRuleCase(const DeltaRuleSizes& heads, std::vector<int64_t> cuts, double weakest = -1e-6,
                double strongest = -30, uint64_t seed = 1)
      : sizes(heads), offsets(std::move(cuts)) {
    const int64_t n = offsets.back();
    mixed = random({n, sizes.columns()}, seed);
    const double low = std::log(-weakest), high = std::log(-strongest);
    const at::Tensor spread = random({n, sizes.decays()}, seed + 1).mul_(0.5).sigmoid_();
    log_decay = spread.mul(high - low).add_(low).exp_().neg_();
    beta = random({n, sizes.value_heads}, seed + 2).sigmoid_();
    state = random({sizes.value_heads, sizes.key_dim, sizes.value_dim}, seed + 3);
  }

  std::vector<at::Tensor> inputs() const { return {mixed, log_decay, beta, state}; }

  /// A copy whose tensors are those of another dtype or device, float32 where the op wants what is wide.
  DeltaRuleCase to(at::ScalarType dtype, c10::Device device = at::kCPU) const {
    DeltaRuleCase copy = *this;
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto moved = [&](const at::Tensor& x, at::ScalarType type) {
      return device.is_meta() ? at::empty(x.sizes(), at::TensorOptions().dtype(type).device(device))
                              : x.to(device, type);
    };
    copy.mixed = moved(mixed, dtype);
    copy.log_decay = moved(log_decay, wide);
    copy.beta = moved(beta, dtype);
    copy.state = moved(state, wide);
    return copy;
  }
};

inline const char* const kDeltaRuleNames[] = {"mixed", "log decay", "beta", "state before"};

/// The definition, under autograd: all arithmetic in the inputs' dtype.
inline DeltaRuleOutput delta_rule_by_tokens(const DeltaRuleCase& in) {
  const DeltaRuleSizes& sizes = in.sizes;
  const int64_t keys = sizes.key_heads * sizes.key_dim, times = sizes.value_heads / sizes.key_heads;
  const auto direction = [&](int64_t column) {
    at::Tensor x = in.mixed.narrow(1, column, keys).reshape({-1, sizes.key_heads, sizes.key_dim});
    if (sizes.exchanges) x = x * at::rsqrt((x * x).sum(-1, true) + 1e-6);
    return x.repeat_interleave(times, 1);
  };
  const int64_t values = sizes.value_heads * sizes.value_dim;
  const double scale = sizes.exchanges ? 1.0 / std::sqrt(static_cast<double>(sizes.key_dim)) : 1.0;
  const at::Tensor q = direction(sizes.exchanges ? 0 : values + keys) * scale;
  const at::Tensor k = direction(sizes.exchanges ? keys : values);
  const at::Tensor v = in.mixed.narrow(1, sizes.exchanges ? 2 * keys : 0, values)
                           .reshape({-1, sizes.value_heads, sizes.value_dim});
  std::vector<at::Tensor> rows;
  at::Tensor state = in.state;
  for (size_t i = 0; i + 1 < in.offsets.size(); ++i) {
    if (i > 0) state = at::zeros_like(in.state);
    for (int64_t t = in.offsets[i]; t < in.offsets[i + 1]; ++t) {
      state = state * in.log_decay[t].exp().view({sizes.value_heads, -1, 1});
      const at::Tensor held = (state * k[t].unsqueeze(2)).sum(1);
      const at::Tensor change = (sizes.exchanges ? v[t] - held : v[t]) * in.beta[t].unsqueeze(1);
      state = state + k[t].unsqueeze(2) * change.unsqueeze(1);
      rows.push_back((state * q[t].unsqueeze(2)).sum(1));
    }
  }
  return {at::stack(rows), state};
}

/// Outputs, and the gradients of all inputs for random cotangents of both.
struct DeltaRulePass {
  at::Tensor hidden, state;
  std::vector<at::Tensor> gradients;
};

/// The cotangents of a case's outputs, in float64.
inline std::pair<at::Tensor, at::Tensor> delta_rule_cotangents(const DeltaRuleCase& in) {
  return {random({in.offsets.back(), in.sizes.value_heads, in.sizes.value_dim}, 98),
          random(in.state.sizes(), 99)};
}

inline DeltaRulePass pass_by_tokens(const DeltaRuleCase& in) {
  DeltaRuleCase leaves = in;
  for (at::Tensor* x : {&leaves.mixed, &leaves.log_decay, &leaves.beta, &leaves.state})
    *x = x->clone().requires_grad_();
  const DeltaRuleOutput y = delta_rule_by_tokens(leaves);
  const auto [d_hidden, d_state] = delta_rule_cotangents(in);
  const auto dtype = in.mixed.scalar_type();
  return {y.hidden.detach(), y.state.detach(),
          torch::autograd::grad({y.hidden, y.state}, leaves.inputs(), {d_hidden.to(dtype), d_state.to(dtype)},
                                false, false, /*allow_unused=*/true)};
}

/// The op, its rows in runs that begin at `cuts` (0 first): states go from run to run, their gradients back.
inline DeltaRulePass pass_by_op(const DeltaRuleCase& in, std::vector<int64_t> cuts = {0}) {
  const auto [d_hidden, d_state] = delta_rule_cotangents(in);
  cuts.push_back(in.offsets.back());
  struct Run {
    std::vector<at::Tensor> leaves;
    DeltaRuleOutput output;
    at::Tensor d_before;
  };
  std::vector<Run> runs;
  at::Tensor state = in.state;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int64_t begin = cuts[i], rows = cuts[i + 1] - begin;
    Run run;
    for (const at::Tensor& x : {in.mixed, in.log_decay, in.beta})
      run.leaves.push_back(x.narrow(0, begin, rows).clone().requires_grad_());
    const auto [offsets, continues] = offsets_of_run(in.offsets, begin, rows);
    StateBefore before;
    if (continues) before = {state, run.d_before = at::zeros_like(in.state)};
    run.output = gated_delta_rule(run.leaves[0], run.leaves[1], run.leaves[2], in.sizes, offsets, before);
    state = run.output.state.detach();
    runs.push_back(run);
  }
  DeltaRulePass pass;
  std::vector<std::vector<at::Tensor>> rows(4);
  at::Tensor d_after = d_state.to(state.scalar_type());
  for (size_t i = runs.size(); i-- > 0;) {
    Run& run = runs[i];
    const at::Tensor dy =
        d_hidden.narrow(0, cuts[i], cuts[i + 1] - cuts[i]).to(run.output.hidden.scalar_type());
    const auto gradients = d_after.defined() ? torch::autograd::grad({run.output.hidden, run.output.state},
                                                                     run.leaves, {dy, d_after})
                                             : torch::autograd::grad({run.output.hidden}, run.leaves, {dy});
    for (size_t g = 0; g < 3; ++g) rows[g].insert(rows[g].begin(), gradients[g]);
    rows[3].insert(rows[3].begin(), run.output.hidden.detach());
    d_after = run.d_before;
  }
  for (size_t g = 0; g < 3; ++g) pass.gradients.push_back(at::cat(rows[g]));
  pass.gradients.push_back(runs.front().d_before);
  pass.hidden = at::cat(rows[3]);
  pass.state = state;
  return pass;
}

/// Relative error, or the difference itself where zeros are expected; NaN of anything that is not finite.
inline double delta_rule_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor truth = expected.to(at::kDouble);
  const double size = truth.norm().item<double>();
  const double difference = (got.to(at::kDouble) - truth).norm().item<double>();
  return size > 0.0 ? difference / size : difference;
}

/// The error of each part of a pass, by name.
inline std::vector<std::pair<const char*, double>> delta_rule_errors(const DeltaRulePass& got,
                                                                     const DeltaRulePass& expected) {
  std::vector<std::pair<const char*, double>> errors{
      {"outputs", delta_rule_error(got.hidden, expected.hidden)},
      {"last state", delta_rule_error(got.state, expected.state)}};
  for (size_t i = 0; i < 4; ++i) {
    if (expected.gradients[i].defined())
      errors.emplace_back(kDeltaRuleNames[i], delta_rule_error(got.gradients[i], expected.gradients[i]));
  }
  return errors;
}

}  // namespace streambp
