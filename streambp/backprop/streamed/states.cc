#include "streambp/backprop/streamed/states.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

namespace {

/// The index-th of `held`; undefined: there are none.
at::Tensor one_of(const at::Tensor& held, int64_t index) {
  return held.defined() ? held.select(0, index) : at::Tensor();
}

at::Tensor like_one_of(const at::Tensor& held) {
  return held.defined() ? at::empty(held.sizes().slice(1), held.options()) : at::Tensor();
}

}  // namespace

StateStream::StateStream(const Model& model, const Chunks& chunks, Holds holds, int64_t layer)
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
  const NgramSettings& ngrams = model.config().ngrams;
  if (layer >= 0 && ngrams.are_in(layer))
    ngram_tails_ = at::empty({held, ngrams.tail_rows(), model.config().residual_width()}, options);
}

void StateStream::allocate_gradients() {
  if (continued_.empty()) return;
  const MemoryScope scope("recurrent states");
  for (DeltaCarry& gradient : gradients_)
    gradient = {like_one_of(states_), like_one_of(tails_), like_one_of(ngram_tails_)};
}

DeltaCarry StateStream::left_by(int64_t index) const {
  const int64_t at = holds_ == Holds::kForward ? 0 : index;
  return {one_of(states_, at), one_of(tails_, at), one_of(ngram_tails_, at)};
}

void StateStream::store(const Rows& rows, const Carry& own) {
  const auto index = static_cast<size_t>(index_of(rows));
  if (index >= continued_.size() || !continued_[index]) return;
  const DeltaCarry kept = left_by(index_of(rows));
  if (kept.state.defined()) kept.state.copy_(own.recurrent.state);
  kept.tail.copy_(own.recurrent.tail);
  if (kept.ngram_tail.defined()) kept.ngram_tail.copy_(own.recurrent.ngram_tail);
}

Before StateStream::before(const Rows& rows) {
  const int64_t previous = index_of(rows) - 1;
  if (previous < 0 || !continued_[static_cast<size_t>(previous)]) return {};
  const DeltaCarry left = left_by(previous);
  const DeltaCarry& gradient = gradients_[static_cast<size_t>(previous % 2)];
  for (const at::Tensor& tensor : {gradient.state, gradient.tail, gradient.ngram_tail}) {
    if (tensor.defined()) tensor.zero_();
  }
  return {
      .attention = {},
      .recurrent = {
          {left.state, gradient.state}, {left.tail, gradient.tail}, {left.ngram_tail, gradient.ngram_tail}}};
}

Carry StateStream::received(const Rows& rows) const {
  const auto index = static_cast<size_t>(index_of(rows));
  if (index >= continued_.size() || !continued_[index]) return {};
  return {.attention = {}, .recurrent = gradients_[index % 2]};
}

}  // namespace streambp
