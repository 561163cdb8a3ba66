#include "streambp/ops/recurrent/delta_rule.h"

#include <fmt/ranges.h>
#include <utility>

#include "streambp/error.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/recurrent/delta_rule_blocks.h"
#include "streambp/ops/recurrent/delta_rule_fused.h"
#include "streambp/ops/rows/row_sequences.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

void expect_shape(const at::Tensor& x, at::IntArrayRef shape, const char* what) {
  if (x.sizes() != shape)
    throw InputError("gated delta rule: {} has shape [{}], expected [{}]", what, fmt::join(x.sizes(), ", "),
                     fmt::join(shape, ", "));
}

void check(const DeltaRuleInputs& in) {
  const DeltaRuleSizes& sizes = in.sizes;
  if (sizes.key_heads < 1 || sizes.value_heads < 1 || sizes.value_heads % sizes.key_heads != 0)
    throw InputError("gated delta rule: {} value heads are not a multiple of {} key heads", sizes.value_heads,
                     sizes.key_heads);
  const int64_t rows = in.mixed.dim() == 2 ? in.mixed.size(0) : 0;
  expect_shape(in.mixed, {rows, sizes.columns()}, "a row of queries, keys and values");
  expect_shape(in.log_decay, {rows, sizes.decays()}, "the decay's logarithm");
  expect_shape(in.beta, {rows, sizes.value_heads}, "beta");
  check_offsets(in.offsets, rows, "gated delta rule");
}

/// Of the state before, or of its gradient.
void check_state(const at::Tensor& state, const DeltaRuleInputs& in, const char* what) {
  if (!state.defined()) return;
  expect_shape(state, {in.sizes.value_heads, in.sizes.key_dim, in.sizes.value_dim}, what);
  if (state.scalar_type() != sum_dtype(in.mixed) || !state.is_contiguous())
    throw InputError("gated delta rule: {} is {}, expected {} without gaps", what,
                     at::toString(state.scalar_type()), at::toString(sum_dtype(in.mixed)));
}

DeltaRuleResult forward(const DeltaRuleInputs& in, DeltaRuleWants wants) {
  const at::NoGradGuard no_grad;
  return has_fused_delta_rule(in) ? delta_rule_forward_fused(in, wants) : delta_rule_forward_plain(in, wants);
}

DeltaRuleInputs checked(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                        const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                        const StateBefore& before) {
  const auto detached = [](const at::Tensor& x) { return x.defined() ? x.detach() : x; };
  DeltaRuleInputs in{detached(mixed), detached(log_decay),   detached(beta), sizes,
                     offsets,         detached(before.state)};
  check(in);
  check_state(before.state, in, "the state before");
  check_state(before.gradient, in, "the gradient of the state before");
  return in;
}

}  // namespace

DeltaRuleOutput gated_delta_rule(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                                 const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                                 const StateBefore& before) {
  DeltaRuleInputs in = checked(mixed, log_decay, beta, sizes, offsets, before);
  const std::vector<at::Tensor> inputs{mixed, log_decay, beta};
  const bool keeps = needs_backward(inputs);  // asked before autograd is off
  DeltaRuleResult result = forward(in, keeps ? DeltaRuleWants::kForBackward : DeltaRuleWants::kHidden);
  in.state_before.reset();  // the first of the states
  const auto outputs =
      differentiable(inputs, {std::move(result.hidden), std::move(result.state)}, "gated_delta_rule",
                     [in = std::move(in), states = std::move(result.states),
                      d_before = before.gradient](std::vector<at::Tensor>&& dy) {
                       const auto backward =
                           has_fused_delta_rule(in) ? delta_rule_backward_fused : delta_rule_backward_plain;
                       const DeltaRuleGradients d = backward(in, states, dy[0], dy[1], d_before);
                       return std::vector<at::Tensor>{d.mixed, d.log_decay, d.beta};
                     });
  return {outputs[0], outputs[1]};
}

at::Tensor delta_rule_state(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                            const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                            const StateBefore& before) {
  return forward(checked(mixed, log_decay, beta, sizes, offsets, before), DeltaRuleWants::kState).state;
}

}  // namespace streambp
