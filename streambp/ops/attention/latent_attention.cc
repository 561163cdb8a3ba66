#include "streambp/ops/attention/latent_attention.h"

#include <algorithm>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_sinks.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Heads [first, first + count) and the rows of the projection that are theirs, over its storage.
class HeadGroup {
 public:
  HeadGroup(const LatentHeads& all, int64_t first, int64_t count)
      : all_(all), first_(first), count_(count), map_(*all.kv_b_proj), weight_(rows_of(*map_.weight)) {
    map_.weight = &weight_;
    if (!map_.adapter) return;
    b_ = rows_of(*map_.adapter->b);
    map_.adapter->b = &b_;
    if (map_.adapter->bias == nullptr) return;
    bias_ = rows_of(*map_.adapter->bias);
    map_.adapter->bias = &bias_;
  }
  HeadGroup(const HeadGroup&) = delete;
  HeadGroup& operator=(const HeadGroup&) = delete;

  const Linear& map() const { return map_; }

  /// This group's heads of x [n, H, columns], with zeros to the kernels' width.
  at::Tensor of(const at::Tensor& x) const {
    const at::Tensor part = x.narrow(1, first_, count_);
    const int64_t missing = all_.width() - x.size(2);
    return missing > 0 ? at::constant_pad_nd(part, {0, missing}) : part;
  }

  /// The same columns of x, [n, heads, columns].
  at::Tensor part_of(const at::Tensor& x) const { return x.narrow(1, first_, count_); }

  /// Keys and values [n, heads, width] of latents [n, 1, L] and rotated keys [n, 1, rope].
  Prefix expand(const at::Tensor& latents, const at::Tensor& rotated) const {
    const int64_t n = latents.size(0), width = all_.width();
    const at::Tensor projected =
        linear_forward(map_, latents.squeeze(1)).view({n, count_, all_.nope + all_.value});
    Prefix made{at::empty({n, count_, width}, latents.options()), {}, {}, {}};
    made.keys.narrow(2, 0, all_.nope).copy_(projected.narrow(2, 0, all_.nope));
    made.keys.narrow(2, all_.nope, all_.rope).copy_(rotated);
    if (width > all_.key()) made.keys.narrow(2, all_.key(), width - all_.key()).zero_();
    made.values = at::empty_like(made.keys);
    made.values.narrow(2, 0, all_.value).copy_(projected.narrow(2, all_.nope, all_.value));
    if (width > all_.value) made.values.narrow(2, all_.value, width - all_.value).zero_();
    return made;
  }

  /// Takes the gradients of keys and values [n, heads, width] back through expand: adds those of latents
  /// [n, 1, L] and rotated keys [n, 1, rope] to `d_latents` and `d_rotated` where these are defined, and the
  /// projection's.
  void backward(const at::Tensor& d_keys, const at::Tensor& d_values, const at::Tensor& latents,
                at::Tensor d_latents, at::Tensor d_rotated) const {
    const int64_t n = latents.size(0);
    at::Tensor d_projected = at::empty({n, count_, all_.nope + all_.value}, latents.options());
    d_projected.narrow(2, 0, all_.nope).copy_(d_keys.narrow(2, 0, all_.nope));
    d_projected.narrow(2, all_.nope, all_.value).copy_(d_values.narrow(2, 0, all_.value));
    d_projected = d_projected.view({n, -1});
    linear_accumulate(map_, latents.squeeze(1), d_projected);
    if (!d_latents.defined()) return;
    at::Tensor d_rows;
    linear_backward_input(map_, d_projected, d_rows);
    d_latents.add_(d_rows.unsqueeze(1));
    d_rotated.add_(
        at::sum(d_keys.narrow(2, all_.nope, all_.rope), {1}, /*keepdim=*/true, d_rotated.scalar_type()));
  }

 private:
  Parameter rows_of(const Parameter& whole) const {
    const int64_t rows = all_.nope + all_.value;
    Parameter part = whole;
    part.value = whole.value.narrow(0, first_ * rows, count_ * rows);
    if (whole.gradient.defined()) part.gradient = whole.gradient.narrow(0, first_ * rows, count_ * rows);
    return part;
  }

  const LatentHeads& all_;
  int64_t first_, count_;
  Linear map_;
  Parameter weight_, b_, bias_;
};

/// One call's operands.
struct LatentCall {
  at::Tensor q, latents, rotated;
  std::vector<int64_t> offsets;
  Prefix prefix;  // latents and rotated keys
  AttentionSettings settings;
  LatentHeads heads;
  PickedRows picked;

  bool picks() const { return picked.picks.defined(); }
  /// Latents and rotated keys of the prefix and of the rows themselves, one after the other.
  at::Tensor all_latents() const { return after_prefix(prefix.keys, latents); }
  at::Tensor all_rotated() const { return after_prefix(prefix.values, rotated); }
  at::Tensor after_prefix(const at::Tensor& earlier, const at::Tensor& own) const {
    return prefix.size() > 0 ? at::cat({earlier, own}) : own;
  }

  /// Calls body(group) for group after group. In a dry run the first, which is as large as any, stands for
  /// all.
  template <typename Body>
  void for_each_group(Body body) const {
    const int64_t most = latent_group(heads, prefix.size() + q.size(0), q.element_size());
    for (int64_t first = 0; first < heads.heads;) {
      const int64_t count = std::min(most, heads.heads - first);
      body(HeadGroup(heads, first, count));
      first = has_values(q) ? first + count : heads.heads;
    }
  }

  Prefix expanded_prefix(const HeadGroup& group) const {
    return prefix.size() > 0 ? group.expand(prefix.keys, prefix.values) : Prefix{};
  }
};

/// Of a group of heads.
AttentionBlock forward(const LatentCall& call, const HeadGroup& group) {
  if (call.picks()) {
    const Prefix all = group.expand(call.all_latents(), call.all_rotated());
    return picked_attention(group.of(call.q), all.keys, all.values, call.offsets, call.picked,
                            call.settings.scoring.scale);
  }
  const Prefix own = group.expand(call.latents, call.rotated);
  return attention_forward(group.of(call.q), own.keys, own.values, call.offsets, call.expanded_prefix(group),
                           call.settings);
}

AttentionBlock forward(const LatentCall& call) {
  const at::NoGradGuard no_grad;
  const int64_t n = call.q.size(0), heads = call.heads.heads;
  AttentionBlock all{at::empty({n, heads, call.heads.value}, call.q.options()),
                     at::empty({n, heads}, call.q.options().dtype(sum_dtype(call.q)))};
  call.for_each_group([&](const HeadGroup& group) {
    const MemoryScope scope("latent keys and values");
    const AttentionBlock part = forward(call, group);
    group.part_of(all.output).copy_(part.output.narrow(2, 0, call.heads.value));
    group.part_of(all.log_sum_exp).copy_(part.log_sum_exp);
    if (!part.remainder.defined()) return;
    if (!all.remainder.defined()) all.remainder = at::empty_like(all.output);
    group.part_of(all.remainder).copy_(part.remainder.narrow(2, 0, call.heads.value));
  });
  if (call.settings.sinks != nullptr) add_sinks(all, call.settings.sinks->value);
  return all;
}

at::Tensor wide_zeros(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(sum_dtype(like)));
}

/// The same where rows are picked: prefix and own rows are one run of keys.
std::vector<at::Tensor> backward_picked(const LatentCall& call, const at::Tensor& dy,
                                        const AttentionBlock& saved) {
  const at::NoGradGuard no_grad;
  const at::Tensor latents = call.all_latents(), rotated = call.all_rotated();
  at::Tensor d_q = at::empty(call.q.sizes(), call.q.options());
  const at::Tensor d_latents = wide_zeros(latents), d_rotated = wide_zeros(rotated);
  call.for_each_group([&](const HeadGroup& group) {
    const MemoryScope scope("latent keys and values");
    const Prefix all = group.expand(latents, rotated);
    const AttentionBlockGradients part =
        picked_attention_backward(group.of(dy), group.part_of(saved.log_sum_exp), group.of(call.q), all.keys,
                                  all.values, call.offsets, call.picked, call.settings.scoring.scale);
    group.part_of(d_q).copy_(part.d_queries.narrow(2, 0, call.heads.key()));
    group.backward(part.d_keys, part.d_values, latents, d_latents, d_rotated);
  });
  const int64_t earlier = call.prefix.size(), n = call.q.size(0);
  if (earlier > 0 && call.prefix.key_gradients.defined()) {
    call.prefix.key_gradients.add_(d_latents.narrow(0, 0, earlier));
    call.prefix.value_gradients.add_(d_rotated.narrow(0, 0, earlier));
  }
  return {d_q, d_latents.narrow(0, earlier, n).to(call.latents.scalar_type()),
          d_rotated.narrow(0, earlier, n).to(call.rotated.scalar_type())};
}

std::vector<at::Tensor> backward(const LatentCall& call, const at::Tensor& dy, const AttentionBlock& saved) {
  const at::NoGradGuard no_grad;
  if (call.settings.sinks != nullptr) accumulate_sinks(*call.settings.sinks, dy, saved);
  if (call.picks()) return backward_picked(call, dy, saved);
  at::Tensor d_q = at::empty(call.q.sizes(), call.q.options());
  const at::Tensor d_latents = wide_zeros(call.latents), d_rotated = wide_zeros(call.rotated);
  const Prefix& prefix = call.prefix;
  // The projection has a part in the prefix's keys even where nobody wants the gradient of its latents.
  const bool goes_to_prefix =
      prefix.size() > 0 && (prefix.key_gradients.defined() || call.heads.kv_b_proj->trainable());
  call.for_each_group([&](const HeadGroup& group) {
    const MemoryScope scope("latent keys and values");
    const Prefix own = group.expand(call.latents, call.rotated);
    Prefix earlier = call.expanded_prefix(group);
    if (goes_to_prefix) {
      earlier.key_gradients = wide_zeros(earlier.keys);
      earlier.value_gradients = wide_zeros(earlier.values);
    }
    AttentionBlock result{group.of(saved.output).contiguous(), group.part_of(saved.log_sum_exp).contiguous()};
    if (saved.remainder.defined()) result.remainder = group.of(saved.remainder).contiguous();
    const AttentionBlockGradients part = attention_backward(group.of(dy), result, group.of(call.q), own.keys,
                                                            own.values, call.offsets, earlier, call.settings);
    group.part_of(d_q).copy_(part.d_queries.narrow(2, 0, call.heads.key()));
    group.backward(part.d_keys, part.d_values, call.latents, d_latents, d_rotated);
    if (goes_to_prefix)
      group.backward(earlier.key_gradients, earlier.value_gradients, prefix.keys, prefix.key_gradients,
                     prefix.value_gradients);
  });
  return {d_q, d_latents.to(call.latents.scalar_type()), d_rotated.to(call.rotated.scalar_type())};
}

}  // namespace

int64_t latent_group(const LatentHeads& heads, int64_t tokens, int64_t element_size) {
  const int64_t bytes = 2 * heads.width() * tokens * element_size;  // of one head
  return std::clamp<int64_t>(heads.group_bytes / std::max<int64_t>(bytes, 1), 1, heads.heads);
}

at::Tensor latent_attention(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& rotated,
                            const std::vector<int64_t>& offsets, const Prefix& prefix,
                            const AttentionSettings& settings, const LatentHeads& heads,
                            const PickedRows& picked) {
  const LatentCall call{q.detach(), latents.detach(), rotated.detach(), offsets, prefix, settings, heads,
                        picked};
  const AttentionBlock all = forward(call);
  return differentiable({q, latents, rotated}, all.output, "latent_attention",
                        [call, all](std::vector<at::Tensor>&& dy) { return backward(call, dy[0], all); });
}

}  // namespace streambp
