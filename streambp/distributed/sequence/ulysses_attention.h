// Attention of a rank's rows to those of all ranks, which divide its heads.
#pragma once

#include <cstdint>

#include "streambp/backprop/streamed/stream_part.h"
#include "streambp/distributed/sequence/row_routes.h"
#include "streambp/distributed/transport/communicator.h"

namespace streambp {

class RowsOfRank;

/// Throws InputError for a layer whose heads as many ranks don't divide. Key heads may be fewer than ranks,
/// which then have the same ones.
void require_divided_heads(const Config& config, int64_t layer, int64_t ranks);

/// DeepSpeed-Ulysses (Jacobs et al., 2023, arXiv 2309.14509), RingAttention's rival: ranks send each other
/// queries, keys and values so that each has some heads of all rows, attends as one process does, and sends
/// back what it gives. Between a forward and a backward pass over a layer a rank keeps its heads, and
/// gradients alone are exchanged.
class UlyssesAttention final : public PartAttention {
 public:
  /// Throws InputError for heads that the ranks don't divide. Communicator and rows outlive this.
  UlyssesAttention(Communicator& communicator, const RowsOfRank& rows, const Config& config, int64_t layer,
                   const AttentionSettings& settings);

  AttentionBlock forward(const at::Tensor& queries, const KeysValues& own, bool goes_back) override;
  AttentionBlockGradients backward(const at::Tensor& d_output, const AttentionBlock& result,
                                   const at::Tensor& queries, const KeysValues& own) override;

 private:
  /// Which of `heads` heads, the queries' or the keys', a rank has.
  struct Heads {
    int64_t first = 0;
    int64_t count = 0;

    at::Tensor of(const at::Tensor& x) const { return x.narrow(1, first, count); }
  };
  Heads heads_of(int64_t rank, int64_t heads) const;

  /// x [N, heads, ...] of this rank's rows becomes its heads of all rows.
  at::Tensor to_heads(const at::Tensor& x);
  /// And back: adds to rows [N, heads, ...] what all ranks' heads have of them.
  void add_to_rows(const at::Tensor& of_heads, const at::Tensor& rows);

  /// What every rank has of all rows.
  struct OwnHeads {
    at::Tensor queries;
    KeysValues keys_values;
    AttentionBlock result;
  };
  OwnHeads gather(const at::Tensor& queries, const KeysValues& own);

  Communicator& communicator_;
  const RowsOfRank& rows_;
  AttentionSettings settings_;
  OwnHeads kept_;  // for a backward pass
};

}  // namespace streambp
