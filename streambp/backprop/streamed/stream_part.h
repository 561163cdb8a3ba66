// A stream that is some rows of a batch whose other rows are elsewhere: what a pass asks of whoever knows
// where.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/backprop/streamed/carry_stream.h"

namespace streambp {

/// One layer's attention of all rows of a part's stream at once, to themselves and to rows elsewhere. What is
/// said of the layer stands before it (DecoderLayer::attention_heads) and after it (after_attention).
class PartAttention {
 public:
  virtual ~PartAttention() = default;

  /// What the rows' queries [N, H, E] attend to, sinks included, from their own keys and values [N, K, E].
  /// `goes_back`: backward() follows.
  virtual AttentionBlock forward(const at::Tensor& queries, const KeysValues& own, bool goes_back) = 0;

  /// The gradients of the same operands for that of the result, d_output [N, H, E], with what rows elsewhere
  /// leave for the keys and values; as wide as they are summed. Adds those of the sinks.
  virtual AttentionBlockGradients backward(const at::Tensor& d_output, const AttentionBlock& result,
                                           const at::Tensor& queries, const KeysValues& own) = 0;
};

/// Some rows of a batch as a stream, one run of neighbouring rows of one sequence after another: each run is
/// a sequence of the stream's batch, whatever comes before it elsewhere.
class StreamPart {
 public:
  virtual ~StreamPart() = default;

  /// Rows of the stream, ascending and without its first, that continue a sequence whose earlier rows are not
  /// right before them: a chunk begins there, since only its first row may continue anything.
  virtual const std::vector<int64_t>& cuts() const = 0;

  /// How many rows of its sequence come before row `begin`, here or elsewhere.
  virtual int64_t rows_before(int64_t begin) const = 0;

  /// The carries of one layer's chunks, with those of the rows elsewhere. Throws InputError for a layer whose
  /// carries can't be had from elsewhere.
  virtual std::unique_ptr<CarryStream> carry_stream(const Model& model, const Stream& stream, int64_t layer,
                                                    const Chunks& chunks, CarryStream::Holds holds) = 0;

  /// Null: the layer's chunks attend one after another, through a carry_stream().
  virtual std::unique_ptr<PartAttention> attention(const Model& /*model*/, int64_t /*layer*/,
                                                   const Chunks& /*chunks*/) {
    return nullptr;
  }
};

/// backpropagate() on a part of a batch: `batch` holds its rows, and `objective` was made from it. Losses and
/// gradients are those of the part's scored tokens, with what the tokens elsewhere leave for its rows. A part
/// without a scored token runs as well. Throws InputError as backpropagate does, and for settings other than
/// streambp's with its chunks in reverse order.
Outcome backpropagate_part(Model& model, const Batch& batch, const Objective& objective,
                           const Settings& settings, StreamPart& part, Model* teacher = nullptr);

/// evaluate() on a part of a batch: the values of its scored tokens.
Outcome evaluate_part(Model& model, const Batch& batch, StreamPart& part, double temperature = 1.0);

}  // namespace streambp
