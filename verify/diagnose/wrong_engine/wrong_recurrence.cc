#include "verify/diagnose/wrong_engine/wrong_recurrence.h"

#include <cmath>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/layers/delta_rule_parts.h"
#include "streambp/ops/recurrent/delta_gates.h"

namespace streambp::verify {
namespace {

namespace parts = delta_rule_parts;

/// Tokens that are run one by one.
constexpr int64_t kMostTokensOneByOne = 1024;

at::Tensor convolved(const DeltaRule& rule, const at::Tensor& qkv, const std::vector<int64_t>& offsets,
                     std::map<Parameter*, at::Tensor>& leaves) {
  std::vector<at::Tensor> hidden;
  int64_t first = 0;
  for (const parts::ConvPart& part : parts::conv_parts(rule)) {
    const at::Tensor own = qkv.narrow(1, first, part.channels).contiguous();
    hidden.push_back(causal_conv(own, *part.weight, offsets, {}).hidden);
    first += part.channels;
  }
  const at::Tensor sums = at::cat(hidden, 1);
  if (rule.conv_bias == nullptr) return sums;
  at::Tensor& bias = leaves[rule.conv_bias];
  if (!bias.defined()) bias = rule.conv_bias->value.detach().clone().requires_grad_();
  return sums + bias;
}

/// The delta rule, token by token, of queries and keys as they are.
at::Tensor without_norms(const at::Tensor& mixed, const parts::Gates& gates, const DeltaRuleSizes& sizes,
                         const std::vector<int64_t>& offsets) {
  const int64_t rows = mixed.size(0), group = sizes.value_heads / sizes.key_heads;
  const auto heads = [&](int64_t first, int64_t count, int64_t size) {
    const at::Tensor own = mixed.narrow(1, first, count * size).reshape({rows, count, size});
    return count == sizes.value_heads ? own : own.repeat_interleave(group, 1);
  };
  const at::Tensor q = heads(sizes.first_query(), sizes.key_heads, sizes.key_dim) /
                       std::sqrt(static_cast<double>(sizes.key_dim)),
                   k = heads(sizes.first_key(), sizes.key_heads, sizes.key_dim),
                   v = heads(sizes.first_value(), sizes.value_heads, sizes.value_dim),
                   decay = gates.log_decay.exp().reshape({rows, sizes.value_heads, -1, 1});
  std::vector<at::Tensor> given;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    at::Tensor state = at::zeros({sizes.value_heads, sizes.key_dim, sizes.value_dim}, mixed.options());
    for (int64_t t = offsets[i]; t < offsets[i + 1]; ++t) {
      state = state * decay[t];
      const at::Tensor key = k[t].unsqueeze(2);
      const at::Tensor known = (state * key).sum(1);
      state = state + key * ((v[t] - known) * gates.beta[t].unsqueeze(1)).unsqueeze(1);
      given.push_back((state * q[t].unsqueeze(2)).sum(1));
    }
  }
  return at::stack(given);
}

/// What the rule gives for x [n, D], [n, Hv Dv].
at::Tensor wrong_rule(const DeltaRule& rule, const at::Tensor& x, const std::vector<int64_t>& offsets,
                      const WrongRecurrence& wrong, std::map<Parameter*, at::Tensor>& leaves) {
  const bool exchanges = !rule.settings.state_space;
  if (rule.settings.convolution_alone || (!exchanges && (wrong.heads_not_normed || wrong.beta != 1.0)))
    throw InputError("--diagnose: a recurrent layer without such a part");
  if (x.size(0) > kMostTokensOneByOne) throw InputError("--diagnose: a recurrence of {} tokens", x.size(0));
  const parts::Projected projected = parts::project(rule, x);
  at::Tensor mixed = convolved(rule, projected.qkv, offsets, leaves);
  if (!wrong.no_activation) mixed = at::silu(mixed);
  parts::Gates gates = parts::gates(rule, projected);
  gates.beta = gates.beta * wrong.beta;
  if (wrong.no_decay) gates.log_decay = gates.log_decay * 0.0;
  const DeltaRuleSizes sizes = parts::sizes_of(rule.settings);
  at::Tensor hidden = wrong.heads_not_normed
                          ? without_norms(mixed, gates, sizes, offsets)
                          : gated_delta_rule(mixed, gates.log_decay, gates.beta, sizes, offsets, {}).hidden;
  if (rule.skip != nullptr)
    hidden = add_skip(hidden, mixed.narrow(1, sizes.first_value(), sizes.values()), *rule.skip);
  return parts::gated(rule, hidden, projected.z);
}

}  // namespace

at::Tensor wrong_recurrent_layer(const DecoderLayer& layer, const at::Tensor& x, const Rows& rows,
                                 const LayerRun& run, const WrongRecurrence& wrong,
                                 std::map<Parameter*, at::Tensor>& leaves) {
  const DecoderLayer::Weights& w = layer.weights();
  if (w.block.is_there() || w.delta_rule.settings.beside_attention)
    throw InputError("--diagnose: mistakes of a recurrence beside attention or a shared block");
  const at::Tensor input = own_ops().rms_norm(x, w.before_attention);
  const at::Tensor given = wrong_rule(w.delta_rule, input, rows.offsets, wrong, leaves);
  return layer.feed_forward(linear_add(x, given, *w.o_proj), x, rows, run);
}

at::Tensor recurrent_layer_by_halves(const DecoderLayer& layer, const at::Tensor& x, const Rows& rows,
                                     const LayerRun& run, const std::vector<int64_t>& of_state,
                                     const std::vector<int64_t>& of_convolution) {
  const DecoderLayer::Weights& w = layer.weights();
  if (w.block.is_there()) throw InputError("--diagnose: mistakes of a state behind a shared block");
  const at::Tensor input = own_ops().rms_norm(x, w.before_attention);
  const at::Tensor attended = delta_rule_forward(w.delta_rule, input, of_state, {}, of_convolution).hidden;
  return layer.feed_forward(linear_add(x, attended, *w.o_proj), x, rows, run);
}

}  // namespace streambp::verify
