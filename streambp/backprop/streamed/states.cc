#include "streambp/backprop/streamed/states.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

StateStream::StateStream(const Model& model, const Chunks& chunks, Holds holds)
    : chunk_(chunks.size()), holds_(holds) {
  for (int64_t i = 0; i < chunks.last(); ++i) {
    const Rows next = chunks.rows(i + 1);
    continued_.push_back(next.sequence_begin < next.begin);
  }
  const MemoryScope scope("recurrent states");
  const DeltaRuleSettings& rule = model.config().delta_rule;
  const int64_t held = std::min<int64_t>(holds == Holds::kForward ? 1 : chunks.last(), chunks.last());
  const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
  if (!rule.convolution_alone)
    states_ = at::empty({held, rule.value_heads, rule.key_head_dim, rule.value_head_dim},
                        options.dtype(sum_dtype(model.dtype())));
  tails_ = at::empty({held, rule.conv_kernel - 1, rule.channels()}, options);
}

void StateStream::allocate_gradients() {
  if (continued_.empty()) return;
  const MemoryScope scope("recurrent states");
  for (DeltaCarry& gradient : gradients_)
    gradient = {states_.defined() ? at::empty(states_.sizes().slice(1), states_.options()) : at::Tensor(),
                at::empty(tails_.sizes().slice(1), tails_.options())};
}

DeltaCarry StateStream::left_by(int64_t index) const {
  const int64_t at = holds_ == Holds::kForward ? 0 : index;
  return {states_.defined() ? states_.select(0, at) : at::Tensor(), tails_.select(0, at)};
}

void StateStream::store(const Rows& rows, const Carry& own) {
  const auto index = static_cast<size_t>(index_of(rows));
  if (index >= continued_.size() || !continued_[index]) return;
  const DeltaCarry kept = left_by(index_of(rows));
  if (kept.state.defined()) kept.state.copy_(own.recurrent.state);
  kept.tail.copy_(own.recurrent.tail);
}

Before StateStream::before(const Rows& rows) {
  const int64_t previous = index_of(rows) - 1;
  if (previous < 0 || !continued_[static_cast<size_t>(previous)]) return {};
  const DeltaCarry left = left_by(previous);
  const DeltaCarry& gradient = gradients_[static_cast<size_t>(previous % 2)];
  for (const at::Tensor& tensor : {gradient.state, gradient.tail}) {
    if (tensor.defined()) tensor.zero_();
  }
  return {.attention = {}, .recurrent = {{left.state, gradient.state}, {left.tail, gradient.tail}}};
}

Carry StateStream::received(const Rows& rows) const {
  const auto index = static_cast<size_t>(index_of(rows));
  if (index >= continued_.size() || !continued_[index]) return {};
  return {.attention = {}, .recurrent = gradients_[index % 2]};
}

}  // namespace streambp
