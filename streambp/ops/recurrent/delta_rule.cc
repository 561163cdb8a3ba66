#include "streambp/ops/recurrent/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "streambp/error.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/recurrent/delta_rule_blocks.h"
#include "streambp/ops/recurrent/delta_rule_fused.h"
#include "streambp/ops/rows/row_sequences.h"
#include "streambp/ops/sum_dtype.h"
#include "streambp/ops/transformers_rounding.h"

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

/// Calls what is given with each block of rows of x, [rows, columns].
template <typename Call>
void for_each_block(const DeltaRuleInputs& in, const at::Tensor& x, const Call& call) {
  for (size_t s = 0; s + 1 < in.offsets.size(); ++s) {
    for (int64_t begin = in.offsets[s]; begin < in.offsets[s + 1]; begin += kDeltaRuleBlock)
      call(x.slice(0, begin, std::min(begin + kDeltaRuleBlock, in.offsets[s + 1])));
  }
}

/// transformers multiplies decays as differences of their running sum over a block: what is left of their
/// digits after that.
at::Tensor through_sums(const DeltaRuleInputs& in) {
  const at::Tensor decays = in.log_decay.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for_each_block(in, decays, [](const at::Tensor& block) {
    const at::Tensor sums = block.cumsum(0);
    block.slice(0, 1).copy_(sums.diff(1, 0));
  });
  return decays.to(in.log_decay.scalar_type());
}

/// The gradient of that sum is one of pairs of tokens, rows less columns: what a token has with itself is in
/// both, and its rounding error stays, for all tokens up to it. With decays so strong that nothing else is
/// left that is most of the difference. Errors of that size with random signs, as log_decay.
at::Tensor lost_in_decays(const DeltaRuleInputs& in, const at::Tensor& d_hidden, uint64_t seed) {
  const DeltaRuleSizes& sizes = in.sizes;
  const int64_t n = in.mixed.size(0), shared = sizes.value_heads / sizes.key_heads;
  const auto heads = [&](int64_t first, int64_t count, int64_t width) {
    return in.mixed.narrow(1, first, count * width).to(at::kFloat).view({n, count, width});
  };
  at::Tensor q = heads(sizes.first_query(), sizes.key_heads, sizes.key_dim);
  at::Tensor k = heads(sizes.first_key(), sizes.key_heads, sizes.key_dim);
  const at::Tensor v = heads(sizes.first_value(), sizes.value_heads, sizes.value_dim);
  if (sizes.exchanges) {
    const double scale = std::sqrt(static_cast<double>(sizes.key_dim));
    q = q / (q.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-3) * scale);
    k = k / k.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-3);
  }
  at::Tensor of_keys = (q * k).repeat_interleave(shared, /*dim=*/1);  // [n, H, Dk]
  if (!sizes.channel_gates) of_keys = of_keys.sum(-1, /*keepdim=*/true);
  const at::Tensor of_values = (v * d_hidden.to(at::kFloat)).sum(-1) * in.beta.to(at::kFloat);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor own = (of_keys * of_values.unsqueeze(-1)).flatten(1);
  at::Tensor lost =
      own * at::empty(own.sizes(), at::kFloat).normal_(0.0, 0x1p-24, generator).to(own.device());
  for_each_block(in, lost, [](const at::Tensor& block) { block.copy_(block.flip(0).cumsum(0).flip(0)); });
  return lost;
}

}  // namespace

DeltaRuleOutput gated_delta_rule(const at::Tensor& mixed, const at::Tensor& log_decay, const at::Tensor& beta,
                                 const DeltaRuleSizes& sizes, const std::vector<int64_t>& offsets,
                                 const StateBefore& before) {
  DeltaRuleInputs in = checked(mixed, log_decay, beta, sizes, offsets, before);
  const std::optional<uint64_t> loses =
      mixed.scalar_type() == at::kDouble ? std::nullopt : TransformersRounding::wanted();
  if (loses) in.log_decay = through_sums(in);
  const std::vector<at::Tensor> inputs{mixed, log_decay, beta};
  const bool keeps = needs_backward(inputs);  // asked before autograd is off
  DeltaRuleResult result = forward(in, keeps ? DeltaRuleWants::kForBackward : DeltaRuleWants::kHidden);
  in.state_before.reset();  // the first of the states
  const auto outputs =
      differentiable(inputs, {std::move(result.hidden), std::move(result.state)}, "gated_delta_rule",
                     [in = std::move(in), states = std::move(result.states), d_before = before.gradient,
                      loses](std::vector<at::Tensor>&& dy) {
                       const auto backward =
                           has_fused_delta_rule(in) ? delta_rule_backward_fused : delta_rule_backward_plain;
                       DeltaRuleGradients d = backward(in, states, dy[0], dy[1], d_before);
                       if (loses && dy[0].defined()) d.log_decay.add_(lost_in_decays(in, dy[0], *loses));
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
