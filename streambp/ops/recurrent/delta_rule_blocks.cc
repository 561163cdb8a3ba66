#include "streambp/ops/recurrent/delta_rule_blocks.h"

#include <algorithm>

#include "streambp/memory/meter.h"
#include "streambp/ops/recurrent/delta_rule_group.h"
#include "streambp/ops/sum_dtype.h"

// The formulas stand in delta_rule_group.h.
namespace streambp {
namespace {

/// A state of zeros, or the one before the first sequence.
void begin_state(const DeltaRuleInputs& in, size_t sequence, at::Tensor& state) {
  if (sequence == 0 && in.state_before.defined()) {
    state.copy_(in.state_before);
  } else {
    state.zero_();
  }
}

}  // namespace

int64_t delta_rule_blocks(const std::vector<int64_t>& offsets) {
  int64_t blocks = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    blocks += (offsets[i + 1] - offsets[i] + kDeltaRuleBlock - 1) / kDeltaRuleBlock;
  return blocks;
}

DeltaRuleResult delta_rule_forward_plain(const DeltaRuleInputs& in, DeltaRuleWants wants) {
  const DeltaRuleSizes& sizes = in.sizes;
  const auto options = in.mixed.options().dtype(sum_dtype(in.mixed));
  const auto states_of = [&](int64_t blocks) {
    return at::empty({blocks, sizes.value_heads, sizes.key_dim, sizes.value_dim}, options);
  };
  const bool wants_hidden = wants != DeltaRuleWants::kState;
  const bool keeps = wants == DeltaRuleWants::kForBackward;
  DeltaRuleResult result;
  result.state = states_of(1).squeeze(0);
  if (wants_hidden)
    result.hidden = at::empty({in.mixed.size(0), sizes.value_heads, sizes.value_dim}, in.mixed.options());
  if (keeps) result.states = states_of(delta_rule_blocks(in.offsets));
  begin_state(in, 0, result.state);
  const MemoryScope scope("kernel workspace");
  for (const DeltaRuleGroup& group : delta_rule_groups(in)) {
    const DeltaRuleTensors blocks(in, group, wants_hidden);
    if (group.begins) begin_state(in, group.sequence, result.state);
    at::Tensor states;  // at the beginning of each block
    if (wants_hidden)
      states = keeps ? result.states.narrow(0, group.first_block, group.blocks) : states_of(group.blocks);
    for (int64_t i = 0; i < group.blocks; ++i) {
      if (wants_hidden) states.select(0, i).copy_(result.state);
      const at::Tensor v = blocks.of_block(blocks.u, i);  // becomes v'
      if (sizes.exchanges) v.baddbmm_(blocks.of_block(blocks.w, i), result.state, /*beta=*/1, /*alpha=*/-1);
      result.state.mul_(blocks.of_block(blocks.block_decay, i))
          .baddbmm_(blocks.of_block(blocks.decayed_keys, i).transpose(1, 2), v);
    }
    if (!wants_hidden) continue;
    at::Tensor hidden = at::bmm(blocks.decayed_queries, states.flatten(0, 1));
    hidden.baddbmm_(blocks.attention, blocks.u);
    blocks.put_heads(hidden, sizes.value_heads, result.hidden.flatten(1));
  }
  if (in.offsets[in.offsets.size() - 2] == in.offsets.back())  // the last sequence has no rows
    begin_state(in, in.offsets.size() - 2, result.state);
  return result;
}

namespace {

/// The backward pass of one group.
class GroupBackward {
 public:
  GroupBackward(const DeltaRuleInputs& in, const DeltaRuleGroup& group, const at::Tensor& states,
                const at::Tensor& d_hidden)
      : in_(in),
        group_(group),
        blocks_(in, group, /*wants_queries=*/true),
        states_(states.narrow(0, group.first_block, group.blocks).flatten(0, 1)),
        d_hidden_(blocks_.heads(d_hidden.flatten(1), in.sizes.value_heads)),
        new_values_(in.sizes.exchanges ? at::baddbmm(blocks_.u, blocks_.w, states_, /*beta=*/1, /*alpha=*/-1)
                                       : blocks_.u) {}

  /// From the gradient of the group's last state to that of the one before it, in place.
  void pass_state(at::Tensor& d_state) {
    d_new_values_ = at::bmm(blocks_.attention.transpose(1, 2), d_hidden_);
    d_states_ = at::bmm(blocks_.decayed_queries.transpose(1, 2), d_hidden_);
    const at::Tensor after = at::empty_like(d_state);
    for (int64_t i = group_.blocks - 1; i >= 0; --i) {
      const at::Tensor dv = blocks_.of_block(d_new_values_, i), ds = blocks_.of_block(d_states_, i);
      dv.baddbmm_(blocks_.of_block(blocks_.decayed_keys, i), d_state);
      // ds holds what the queries send to the state, then the gradient of the state after the block.
      after.copy_(d_state);
      d_state.mul_(blocks_.of_block(blocks_.block_decay, i)).add_(ds);
      if (in_.sizes.exchanges)
        d_state.baddbmm_(blocks_.of_block(blocks_.w, i).transpose(1, 2), dv, /*beta=*/1, /*alpha=*/-1);
      ds.copy_(after);
    }
  }

  /// Writes the group's rows of the gradients.
  void put(const DeltaRuleGradients& to) const {
    const DeltaRuleTensors& b = blocks_;
    const DeltaRuleSizes& sizes = in_.sizes;
    const at::Tensor dq_decayed = at::bmm(d_hidden_, states_.transpose(1, 2));
    const at::Tensor dk_decayed = at::bmm(new_values_, d_states_.transpose(1, 2));
    const at::Tensor d_attention = at::bmm(d_hidden_, new_values_.transpose(1, 2));
    if (b.channels) return put_channels(to, dq_decayed, dk_decayed, d_attention);
    const at::Tensor d_query_products = d_attention * b.decays;
    at::Tensor of_pairs = d_attention * b.attention, of_state_before = dot(b.decayed_queries, dq_decayed);
    at::Tensor d_value_update = d_new_values_, d_beta, dk;
    if (sizes.exchanges) {
      const auto [d_values, d_key_update, d_system] = system_gradients();
      d_value_update = d_values;
      of_pairs.add_(d_system * b.system);
      of_state_before.add_(dot(b.decayed_key_update, d_key_update));
      d_beta = (d_system * b.similarity).sum(2) + dot(b.k, d_key_update).mul_(b.decay.squeeze(2));
      const at::Tensor d_key_products = d_system * b.decays * b.beta;
      dk = (d_key_update * b.decay).mul_(b.beta).addcmul_(dk_decayed, b.rest_decay);
      dk.baddbmm_(d_key_products, b.k).baddbmm_(d_key_products.transpose(1, 2), b.k);
    } else {
      dk = dk_decayed * b.rest_decay;
    }
    put_decay(of_pairs, of_state_before, dot(b.decayed_keys, dk_decayed), to.log_decay);
    const at::Tensor of_values = dot(b.v, d_value_update);
    b.put_numbers(d_beta.defined() ? d_beta.add_(of_values) : of_values, to.beta);
    dk.baddbmm_(d_query_products.transpose(1, 2), b.q);
    const at::Tensor dq = (dq_decayed * b.decay).baddbmm_(d_query_products, b.k);
    b.put_direction_gradient(dq, b.query_directions, b.query_rstd, b.scale(), sizes.first_query(), to.mixed);
    b.put_direction_gradient(dk, b.key_directions, b.key_rstd, 1.0, sizes.first_key(), to.mixed);
    b.put_heads(d_value_update * b.beta, sizes.value_heads,
                to.mixed.narrow(1, sizes.first_value(), sizes.values()));
  }

 private:
  /// What reaches the triangular system: beta v, beta k e^G, and A.
  struct SystemGradients {
    at::Tensor value_update, key_update, system;
  };
  SystemGradients system_gradients() const {
    const DeltaRuleTensors& b = blocks_;
    const at::Tensor dw = at::bmm(d_new_values_, states_.transpose(1, 2)).neg_();
    const at::Tensor d_value_update = at::bmm(b.inverse.transpose(1, 2), d_new_values_);
    const at::Tensor d_key_update = at::bmm(b.inverse.transpose(1, 2), dw);
    return {d_value_update, d_key_update,
            at::bmm(d_value_update, b.u.transpose(1, 2))
                .baddbmm_(d_key_update, b.w.transpose(1, 2))
                .neg_()
                .tril_(-1)};
  }

  /// put() where each channel has its decay.
  void put_channels(const DeltaRuleGradients& to, const at::Tensor& dq_decayed, const at::Tensor& dk_decayed,
                    const at::Tensor& d_attention) const {
    const DeltaRuleTensors& b = blocks_;
    const DeltaRuleSizes& sizes = in_.sizes;
    const auto [d_value_update, d_key_update, d_system] = system_gradients();
    const at::Tensor decayed = d_key_update * b.decay;  // of beta k
    b.put_numbers((d_system * b.similarity).sum(2) + dot(b.k, decayed) + dot(b.v, d_value_update), to.beta);
    const ChannelDecays::Gradients pairs = b.channels->backward(
        b.q, b.k,
        {.query_products = d_attention,
         .key_products = d_system * b.beta,
         .since_begin = b.decayed_queries * dq_decayed + b.decayed_key_update * d_key_update,
         .until_end = b.decayed_keys * dk_decayed,
         .whole = (states_ * d_states_).sum(2).mul_(b.block_decay.squeeze(2))});
    const at::Tensor own = d_attention.diagonal(0, 1, 2).unsqueeze(2);
    const at::Tensor dq = (dq_decayed * b.decay).add_(pairs.q).addcmul_(b.k, own);
    const at::Tensor dk =
        (decayed * b.beta).addcmul_(dk_decayed, b.rest_decay).add_(pairs.k).addcmul_(b.q, own);
    b.put_heads(pairs.log_decay, sizes.value_heads, to.log_decay);
    b.put_direction_gradient(dq, b.query_directions, b.query_rstd, b.scale(), sizes.first_query(), to.mixed);
    b.put_direction_gradient(dk, b.key_directions, b.key_rstd, 1.0, sizes.first_key(), to.mixed);
    b.put_heads(d_value_update * b.beta, sizes.value_heads,
                to.mixed.narrow(1, sizes.first_value(), sizes.values()));
  }

  static at::Tensor dot(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum(2); }

  /// The gradient of log_decay. Token r's decays what earlier tokens give to it and to later ones: pairs (t,
  /// s), s < r <= t; what the state before gives to tokens from r on; what tokens before r give to the state
  /// after; and the one state's share of the other. Only such terms are summed: as a difference of the sums
  /// for G_t and G_s most of them would cancel.
  void put_decay(const at::Tensor& of_pairs, const at::Tensor& of_state_before,
                 const at::Tensor& of_state_after, const at::Tensor& to) const {
    const int64_t rows = group_.rows;
    const at::Tensor ones = at::ones({rows, rows}, of_pairs.options());
    const at::Tensor later = at::bmm(ones.triu().expand({blocks_.batch(), rows, rows}), of_pairs);
    at::Tensor d = later.tril(-1).sum(2);
    d.addmm_(of_state_before, ones.tril()).addmm_(of_state_after, ones.triu(1));
    d.add_((states_ * d_states_)
               .sum(at::IntArrayRef{1, 2}, /*keepdim=*/true)
               .mul_(blocks_.block_decay)
               .squeeze(2));
    blocks_.put_numbers(d, to);
  }

  const DeltaRuleInputs& in_;
  const DeltaRuleGroup& group_;
  DeltaRuleTensors blocks_;
  at::Tensor states_;        // [N, key_dim, value_dim], at the beginning of each block
  at::Tensor d_hidden_;      // [N, rows, value_dim]
  at::Tensor new_values_;    // the same: v'
  at::Tensor d_new_values_;  // the same
  at::Tensor d_states_;      // as states_, of those after each block
};

}  // namespace

DeltaRuleGradients delta_rule_backward_plain(const DeltaRuleInputs& in, const at::Tensor& states,
                                             const at::Tensor& d_hidden, const at::Tensor& d_state,
                                             const at::Tensor& d_state_before) {
  const DeltaRuleSizes& sizes = in.sizes;
  const auto wide = in.mixed.options().dtype(sum_dtype(in.mixed));
  const auto empty_like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const DeltaRuleGradients d{empty_like(in.mixed), empty_like(in.log_decay), empty_like(in.beta)};
  const MemoryScope scope("kernel workspace");
  const at::Tensor dy = d_hidden.defined() ? d_hidden
                                           : at::zeros({in.mixed.size(0), sizes.value_heads, sizes.value_dim},
                                                       in.mixed.options());
  at::Tensor running = at::empty({sizes.value_heads, sizes.key_dim, sizes.value_dim}, wide);
  const auto end_sequence = [&](size_t sequence) {
    if (sequence + 2 == in.offsets.size() && d_state.defined()) {
      running.copy_(d_state);
    } else {
      running.zero_();
    }
  };
  const auto begin_sequence = [&](size_t sequence) {
    if (sequence == 0 && d_state_before.defined()) at::Tensor(d_state_before).add_(running);
  };
  std::vector<DeltaRuleGroup> groups = delta_rule_groups(in);
  std::reverse(groups.begin(), groups.end());
  for (const DeltaRuleGroup& group : groups) {
    if (group.ends) end_sequence(group.sequence);
    GroupBackward pass(in, group, states, dy);
    pass.pass_state(running);
    pass.put(d);
    if (group.begins) begin_sequence(group.sequence);
  }
  if (in.offsets[1] == 0) {  // the first sequence has no rows
    end_sequence(0);
    begin_sequence(0);
  }
  return d;
}

}  // namespace streambp
