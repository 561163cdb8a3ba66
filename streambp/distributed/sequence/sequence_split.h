// Which rows of a batch each rank has, where ranks divide the sequences themselves.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "streambp/model/batch.h"
#include "streambp/model/config/config.h"

namespace streambp {

/// Operations of training on the first rows of a sequence, as they are counted to divide it: of every weight
/// that a row meets four products of it (two forward passes, one backward), of every pair of a query and a
/// key that it sees nine (two forward passes of two products, a backward pass of five).
class SequenceWork {
 public:
  explicit SequenceWork(const Config& config);

  /// Of the first `rows` rows.
  double of(int64_t rows) const;

 private:
  double of_row_ = 0.0;                     // of all linear maps
  std::map<int64_t, double> of_pair_ = {};  // of all layers with a window of so many tokens (0: none)
};

/// Neighbouring rows [begin, end) of one sequence of a stream, which begins at `sequence_begin`, on a rank.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t sequence_begin = 0;
  int64_t rank = 0;

  int64_t size() const { return end - begin; }
  bool continues() const { return begin > sequence_begin; }
};

/// Whether ranks can only divide the rows of a model's streams into one run each: some layer is recurrent.
bool divides_contiguously(const Config& config);

/// The rows of a stream over ranks, balanced by SequenceWork. A sequence of more than a twentieth of a rank's
/// share is cut into twice as many pieces as there are ranks, equal but for one row: rank r has the r-th from
/// the front and the r-th from the back, so that rows and work are both equal on all ranks (zigzag). Whole
/// sequences follow, the largest first, each on the rank with the least work. Where the model has a recurrent
/// layer every rank has one run of neighbouring rows, since states pass from rank to rank.
class SequenceSplit {
 public:
  /// Of sequences that begin at `offsets`, the end last. Throws InputError for fewer rows than ranks.
  SequenceSplit(const Config& config, const std::vector<int64_t>& offsets, int64_t ranks);

  /// Where the sequences begin that are divided, the end last.
  const std::vector<int64_t>& offsets() const { return offsets_; }

  int64_t ranks() const { return static_cast<int64_t>(of_rank_.size()); }
  /// Whether each rank's rows are neighbours, and follow those of the rank before it.
  bool is_contiguous() const { return contiguous_; }

  /// In the order of the stream; no two of them could be one.
  const std::vector<Piece>& pieces(int64_t rank) const { return of_rank_[static_cast<size_t>(rank)]; }

  /// Rows of a rank.
  int64_t rows(int64_t rank) const;

  /// The rows of a rank as a batch of their own, each piece a sequence, with the whole's positions and
  /// targets. Inputs by sequence are left out.
  Batch batch_of(const Batch& whole, int64_t rank) const;

 private:
  void cut_contiguously(const SequenceWork& work, const std::vector<int64_t>& offsets, int64_t ranks);
  void cut_by_sequences(const SequenceWork& work, const std::vector<int64_t>& offsets, int64_t ranks);
  /// Joins neighbouring pieces of one rank, in the order of the stream.
  void hand_out(std::vector<Piece> pieces);

  bool contiguous_;
  std::vector<int64_t> offsets_;
  std::vector<Piece> all_;                   // in the order of the stream
  std::vector<std::vector<Piece>> of_rank_;  // the same by ranks
};

}  // namespace streambp
