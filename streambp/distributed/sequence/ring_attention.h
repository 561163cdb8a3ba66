// Attention of a rank's rows to those of all ranks, which come to it block by block.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/backprop/streamed/stream_part.h"
#include "streambp/distributed/sequence/row_routes.h"
#include "streambp/distributed/transport/communicator.h"
#include "streambp/ops/attention/attention_earlier.h"

namespace streambp {

class RowsOfRank;

/// Ring attention (Liu et al., 2023, arXiv 2310.01889): in step k every rank has a block of the keys and
/// values of rank - k, and forgets it before the next one comes. What the rows attend to is merged by
/// log-sum-exps; the backward pass takes the final result, and the blocks come once more, each going back
/// with the gradients that the rows leave for it.
///
/// A block comes from its owner rather than from the neighbour. The bytes are the same where everybody looks
/// at everything, and rows that a rank does not look at, beyond a window or in other documents, are not sent
/// to it at all.
class RingAttention final : public PartAttention {
 public:
  /// All but `settings` outlive this.
  RingAttention(Communicator& communicator, const RowsOfRank& rows, const RowRoutes& routes,
                const Chunks& chunks, const AttentionSettings& settings);

  AttentionBlock forward(const at::Tensor& queries, const KeysValues& own, bool goes_back) override;
  AttentionBlockGradients backward(const at::Tensor& d_output, const AttentionBlock& result,
                                   const at::Tensor& queries, const KeysValues& own) override;

 private:
  /// A chunk of the rank's rows, whose first sequence continues earlier rows.
  struct Part {
    int64_t begin = 0;             // in the rank's stream
    std::vector<int64_t> offsets;  // of the sequences in it
    int64_t whole_begin = 0;       // of the first row, in the whole
    int64_t first_seen = 0;        // by the first row, in the whole
    int64_t right_before = 0;      // how many of the rows that it sees are the rank's and right before it

    at::Tensor of(const at::Tensor& x) const { return x.narrow(0, begin, offsets.back()); }
    /// Its rows that continue something.
    at::Tensor first_of(const at::Tensor& x) const { return x.narrow(0, begin, offsets[1]); }
    at::Tensor before_in(const at::Tensor& x) const {
      return x.narrow(0, begin - right_before, right_before);
    }
  };

  /// Calls body(part, tokens) for each part that looks at any of the rows `range` of the whole, whose keys,
  /// values and gradients `block` has; not for the rows right before a part.
  template <typename Body>
  void for_each_viewer(const RowRange& range, const Prefix& block, Body body) const;
  /// The same for what of the rank's own rows is not right before a part, `own` being all of them.
  template <typename Body>
  void for_each_own_viewer(const Prefix& own, Body body) const;

  std::vector<RowExchange> exchanges(const KeysValues& own) const;
  /// The block that comes, while the rank's own goes to another.
  Prefix receive(const RowExchange& message, const KeysValues& own);

  Communicator& communicator_;
  const RowsOfRank& rows_;
  const RowRoutes& routes_;
  AttentionSettings settings_;
  std::vector<Part> parts_;
};

}  // namespace streambp
