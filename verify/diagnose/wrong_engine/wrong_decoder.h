// A decoder in plain float64 ATen, with a mask of all queries by all keys, that makes the mistakes it is
// asked for. Takes the settings of a model and its structure, and nothing of the library's ops.
#pragma once

#include <cstdint>
#include <map>

#include <ATen/ATen.h>

#include "streambp/model/model.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"
#include "verify/diagnose/wrong_engine/wrong_leaves.h"

namespace streambp::verify {

/// Rows [first, last) of the padded input, b of them with T columns.
struct WrongRows {
  at::Tensor stream;  // [n] int64: their tokens, indices of the stream
  at::Tensor grid;    // [n] int64: and their indices in [b, T]
  int64_t rows = 0, columns = 0;
  at::Tensor
      counted;        // [n] float64, 1 or 0: whether a loss that balances experts counts them; undefined: all
  at::Tensor tokens;  // [b, T], 0 where there is none
  at::Tensor positions, key_positions;            // [b, T] int64
  at::Tensor sequence, in_sequence, key_is_seen;  // [b, T]; sequence is -1 where there is no token
  /// Where a query's chunk begins by each kind of mistake, [b, T]; undefined: not cut.
  at::Tensor own_chunk_only, top_left, sees_whole_chunk, detached;
};

WrongRows wrong_rows(const WrongBatch& batch, const WrongSettings& settings, int64_t first, int64_t last);

class WrongDecoder {
 public:
  WrongDecoder(const Model& model, const WrongSettings& settings, int64_t rope_length);

  struct LayerOutput {
    at::Tensor hidden;         // [b, T, D]
    at::Tensor probabilities;  // [X]: the router's, summed over the tokens; undefined where it has none
    at::Tensor choices;        // [X]: how often each expert was chosen
    double routed = 0.0;       // tokens
  };

  at::Tensor embed(const at::Tensor& tokens) const;
  LayerOutput layer(int64_t index, const at::Tensor& x, const WrongRows& rows);
  /// Of hidden states [m, D].
  at::Tensor final_norm(const at::Tensor& hidden);
  at::Tensor logits(const at::Tensor& normed);  // [m, V], capped
  at::Tensor values(const at::Tensor& normed);  // [m]

  WrongLeaves& leaves() { return leaves_; }

 private:
  at::Tensor linear(const Linear& map, const at::Tensor& given);
  at::Tensor norm(const RmsNorm& norm, const at::Tensor& x);
  at::Tensor of_own_share(const at::Tensor& kept, const at::Tensor& lost) const;
  static at::Tensor normalised_by(const RmsNorm& norm, const at::Tensor& x, bool constant);
  at::Tensor residual(const at::Tensor& x, const RmsNorm& before, bool of_mlp);
  at::Tensor rotated(at::Tensor heads, const at::Tensor& positions, bool local) const;
  at::Tensor mask(const WrongRows& rows, int64_t window) const;
  at::Tensor attention(int64_t index, const at::Tensor& x, const WrongRows& rows);
  at::Tensor of_one_shard(const at::Tensor& kept, const at::Tensor& lost) const;
  at::Tensor mlp(const GatedMlp& mlp, const at::Tensor& x);
  at::Tensor mixture(const Mixture& mixture, const at::Tensor& x, const WrongRows& rows, LayerOutput& output);

  const Model& model_;
  Config config_;  // with the mistakes that a config can hold
  WrongSettings settings_;
  at::Tensor frequencies_, local_frequencies_;  // [rotary_dim / 2]
  WrongLeaves leaves_;
  bool in_experts_ = false;
};

}  // namespace streambp::verify
