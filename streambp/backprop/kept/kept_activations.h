// The activations of one layer that a streamed forward pass keeps for its backward pass; inside the library
// only.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "streambp/backprop/streamed/stream_buffer.h"
#include "streambp/model/layer.h"

namespace streambp {

/// Buffers over the whole stream, made when the first chunk is stored.
class KeptActivations {
 public:
  /// `copies`: null, or the copies to and from the host's memory, where the
  /// buffers are then.
  explicit KeptActivations(std::shared_ptr<HostCopies> copies = nullptr) : copies_(std::move(copies)) {}

  /// What tensors() of another one gave.
  explicit KeptActivations(const std::vector<at::Tensor>& tensors);

  /// Every buffer's rows, which are on the device, in an order of their own; [0] of what is not kept.
  std::vector<at::Tensor> tensors() const;

  /// Those tensors of `activations` that are defined, of a stream of `tokens` tokens; the same ones for every
  /// chunk.
  void store(const Rows& rows, const Activations& activations, int64_t tokens);

  /// Tell that rows() or projected() of these rows will be asked for soon: copies from the host begin.
  void expect(const Rows& rows) const;
  void expect_projected(const Rows& rows) const;

  /// What is kept for a chunk.
  Activations rows(const Rows& rows) const;

  /// Keys and values as projected alone; undefined where they are not kept.
  KeysValues projected(const Rows& rows) const;

  /// The same and queries: what DecoderLayer::attention_heads takes.
  Activations of_heads(const Rows& rows) const;

  /// Attention's output and log-sum-exps of all rows [0, tokens); undefined where they are not kept.
  AttentionBlock attention(int64_t tokens) const;

  bool has_projected() const { return buffers_[kKeys].defined(); }
  /// Whether the layer's output can be had without attention.
  bool replaces_attention() const { return buffers_[kOutput].defined() || buffers_[kHalf].defined(); }

  /// Frees everything.
  void reset();

 private:
  enum Index { kOutput, kLogSumExp, kRemainder, kQueries, kKeys, kValues, kHalf, kGate, kUp, kCount };

  /// The tensors of `activations`, by Index.
  static std::array<at::Tensor*, kCount> tensors_of(Activations& activations);
  at::Tensor take(Index index, int64_t begin, int64_t end) const;

  std::shared_ptr<HostCopies> copies_;
  std::array<StreamBuffer, kCount> buffers_;
};

}  // namespace streambp
