// The parts of layer.cc of what a layer reads of a token's residual streams, or of its only one, and gives to
// them.
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/layer.h"

namespace streambp {

at::Tensor DecoderLayer::mixer_input(const at::Tensor& x, const ModelOps& ops) const {
  if (weights_.attention_streams.is_there()) return read_streams(weights_.attention_streams, x);
  const StreamGates& gates = weights_.into_attention;
  return normed(gates.are_there() ? sum_streams(x, gates) : x, weights_.before_attention, ops);
}

at::Tensor DecoderLayer::with_ngrams(const at::Tensor& x, const Rows& rows, const Before& before,
                                     at::Tensor& tail) const {
  if (!weights_.ngrams.is_there()) return x;
  NgramOutput output = add_ngrams(weights_.ngrams, x, rows.ngrams, rows.offsets, before.recurrent.ngram_tail);
  tail = std::move(output.tail);
  return std::move(output.streams);
}

at::Tensor DecoderLayer::add_attention(const at::Tensor& x, const at::Tensor& attended,
                                       at::Tensor& half) const {
  const MemoryScope scope("attention");
  if (attended.defined()) {
    half = config_.reads_outputs() ? linear(attended, {weights_.o_proj}, {half}).front()
                                   : linear_add(x, attended, *weights_.o_proj, half);
  }
  if (weights_.attention_streams.is_there()) return give_to_streams(weights_.attention_streams, x, half);
  if (config_.has_streams()) return add_to_streams(x, half, weights_.out_of_attention);
  return config_.norms_outputs() ? rms_norm_add(x, half, weights_.after_attention) : half;
}

}  // namespace streambp
