// One rank's rows of a batch whose sequences several ranks divide, as a stream that a pass runs over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "streambp/backprop/stream_part.h"
#include "streambp/distributed/communicator.h"
#include "streambp/distributed/row_routes.h"
#include "streambp/distributed/sequence_split.h"

namespace streambp {

/// What of a layer lies on other ranks: with attention its keys and values are exchanged once a pass over its
/// chunks, and the gradients that chunks leave for other ranks' are sent back; with a recurrent layer the
/// state at the end of a rank's rows goes to the next rank, and its gradient comes back. All ranks run the
/// same passes with the same settings, but for chunks. Communicator and split outlive this.
class RowsOfRank final : public StreamPart {
 public:
  RowsOfRank(Communicator& communicator, const SequenceSplit& split);

  const std::vector<int64_t>& cuts() const override { return cuts_; }
  int64_t rows_before(int64_t begin) const override;

  /// Throws InputError for a layer whose keys and values other layers read (Gemma 4), and for a recurrent one
  /// with a split that is not contiguous.
  std::unique_ptr<CarryStream> carry_stream(const Model& model, int64_t layer, const Chunks& chunks,
                                            CarryStream::Holds holds) override;

  /// All of this rank's rows.
  const std::vector<Piece>& all() const { return split_.pieces(communicator_.rank()); }

  /// Rows [begin, end) of this rank's stream where they are in the whole's, piece by piece.
  std::vector<Piece> in_whole(int64_t begin, int64_t end) const;

  /// Whether this rank's first row continues the rank before it, and its last one is continued.
  bool continues() const { return all().front().continues(); }
  bool is_continued() const;

 private:
  Communicator& communicator_;
  const SequenceSplit& split_;
  std::vector<int64_t> begins_;  // of each piece in this rank's stream, and the end
  std::vector<int64_t> cuts_;
  std::map<int64_t, RowRoutes> routes_;    // by the window of layers
  std::map<int64_t, DeltaCarry> arrived_;  // of recurrent layers: the state that the first row continues
};

}  // namespace streambp
