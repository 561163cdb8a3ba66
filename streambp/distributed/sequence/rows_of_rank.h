// One rank's rows of a batch whose sequences several ranks divide, as a stream that a pass runs over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "streambp/backprop/streamed/stream_part.h"
#include "streambp/distributed/sequence/row_routes.h"
#include "streambp/distributed/sequence/sequence_split.h"
#include "streambp/distributed/transport/communicator.h"

namespace streambp {

/// How rows attend to those of other ranks.
enum class Exchange {
  kGather,   // a rank gathers the keys and values of all rows that it looks at, for a pass over its chunks
  kRing,     // they come block by block, and go again (RingAttention)
  kUlysses,  // ranks divide the heads instead, for all rows (UlyssesAttention)
};

/// "gather", "ring", "ulysses".
const char* exchange_name(Exchange exchange);

/// Throws InputError where it can't be among as many ranks: they don't divide some layer's heads.
void require_exchange(const Config& config, Exchange exchange, int64_t ranks);

/// What of a layer lies on other ranks: with attention its keys and values are exchanged once a pass over its
/// chunks, and the gradients that chunks leave for other ranks' are sent back; with a recurrent layer the
/// state at the end of a rank's rows goes to the next rank, and its gradient comes back. Latent attention,
/// and layers that share keys and values, gather whatever the exchange. All ranks run the same passes with
/// the same settings, but for chunks. Communicator and split outlive this.
class RowsOfRank final : public StreamPart {
 public:
  RowsOfRank(Communicator& communicator, const SequenceSplit& split, Exchange exchange = Exchange::kGather);

  const std::vector<int64_t>& cuts() const override { return cuts_; }
  int64_t rows_before(int64_t begin) const override;

  /// Throws InputError for a recurrent layer with a split that is not contiguous.
  std::unique_ptr<CarryStream> carry_stream(const Model& model, const Stream& stream, int64_t layer,
                                            const Chunks& chunks, CarryStream::Holds holds) override;

  /// Throws InputError for heads that ranks can't divide (UlyssesAttention).
  std::unique_ptr<PartAttention> attention(const Model& model, int64_t layer, const Chunks& chunks) override;

  /// All of this rank's rows.
  const std::vector<Piece>& all() const { return split_.pieces(communicator_.rank()); }

  /// Rows [begin, end) of this rank's stream where they are in the whole's, piece by piece.
  std::vector<Piece> in_whole(int64_t begin, int64_t end) const;

  /// Where row `row` of the whole, which is this rank's, is in this rank's stream.
  int64_t index_of(int64_t row) const;

  /// Rows of the whole, neighbours of one piece or none at all, in a tensor [N, ...] of this rank's stream.
  at::Tensor own_in(const at::Tensor& x, const RowRange& rows) const;

  const SequenceSplit& split() const { return split_; }

  /// Whether this rank's first row continues the rank before it, and its last one is continued.
  bool continues() const { return all().front().continues(); }
  bool is_continued() const;

 private:
  const RowRoutes& routes_of(const Config& config, int64_t layer);

  Communicator& communicator_;
  const SequenceSplit& split_;
  Exchange exchange_;
  std::vector<int64_t> begins_;  // of each piece in this rank's stream, and the end
  std::vector<int64_t> cuts_;
  std::map<int64_t, RowRoutes> routes_;    // by the window of layers
  std::map<int64_t, DeltaCarry> arrived_;  // of recurrent layers: the state that the first row continues
};

}  // namespace streambp
