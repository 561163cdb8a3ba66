#include "streambp/distributed/sequence/sequence_split.h"

#include <algorithm>
#include <numeric>

#include "streambp/error.h"

namespace streambp {
namespace {

/// A sequence of less work than this share of a rank's stays whole.
constexpr double kLeastDivided = 0.05;

constexpr double kProductsOfWeight = 4.0;
constexpr double kProductsOfPair = 9.0;

/// How much of a weight a token meets.
double share_met(const Config& config, const ParameterShape& shape) {
  const bool is_map = shape.role == ParameterRole::kWeight || shape.role == ParameterRole::kHead ||
                      shape.role == ParameterRole::kExperts;
  if (!is_map) return shape.role == ParameterRole::kEmbedding && config.tie_word_embeddings ? 1.0 : 0.0;
  if (shape.role != ParameterRole::kExperts && !shape.of_expert) return 1.0;
  return static_cast<double>(config.mixture.num_experts_per_tok) /
         static_cast<double>(config.mixture.num_experts);
}

double numbers_of(const ParameterShape& shape) {
  return std::accumulate(shape.shape.begin(), shape.shape.end(), 1.0,
                         [](double numbers, int64_t size) { return numbers * static_cast<double>(size); });
}

/// Widths of a layer's queries and of what attention gives, all heads together.
double attended_width(const Config& config, int64_t layer) {
  if (!config.is_latent()) return 2.0 * static_cast<double>(config.query_width(layer));
  const LatentAttentionSettings& latent = config.latent;
  return static_cast<double>(config.num_attention_heads *
                             (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim));
}

/// Pairs of a query and a key that it sees, in the first `rows` rows of a sequence.
double pairs(int64_t rows, int64_t window) {
  const auto triangle = [](double n) { return n * (n + 1.0) / 2.0; };
  const auto n = static_cast<double>(rows), w = static_cast<double>(window);
  return window == 0 || rows <= window ? triangle(n) : triangle(w) + (n - w) * w;
}

struct Sequence {
  int64_t begin = 0;
  int64_t end = 0;
  double work = 0.0;

  int64_t rows() const { return end - begin; }
};

std::vector<Sequence> sequences_of(const SequenceWork& work, const std::vector<int64_t>& offsets) {
  std::vector<Sequence> sequences;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t rows = offsets[i + 1] - offsets[i];
    if (rows > 0) sequences.push_back({offsets[i], offsets[i + 1], work.of(rows)});
  }
  return sequences;
}

double sum_of(const std::vector<Sequence>& sequences) {
  double sum = 0.0;
  for (const Sequence& sequence : sequences) sum += sequence.work;
  return sum;
}

/// Where piece `index` of `count` of `rows` rows begins; the first pieces have one row more than the last.
int64_t begin_of(int64_t rows, int64_t index, int64_t count) {
  return rows / count * index + std::min(index, rows % count);
}

/// The fewest rows of a sequence that are as much work as `limit`, at most `most`.
int64_t rows_with(const SequenceWork& work, double limit, int64_t most) {
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (work.of(middle) < limit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

SequenceWork::SequenceWork(const Config& config) {
  for (const ParameterShape& shape : parameter_shapes(config))
    of_row_ += 2.0 * kProductsOfWeight * numbers_of(shape) * share_met(config, shape);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.attends(layer)) continue;
    of_pair_[config.windows[static_cast<size_t>(layer)]] += kProductsOfPair * attended_width(config, layer);
  }
}

double SequenceWork::of(int64_t rows) const {
  double sum = of_row_ * static_cast<double>(rows);
  for (const auto& [window, of_pair] : of_pair_) sum += of_pair * pairs(rows, window);
  return sum;
}

bool divides_contiguously(const Config& config) {
  const std::vector<bool>& recurrent = config.linear_attention;
  return std::find(recurrent.begin(), recurrent.end(), true) != recurrent.end();
}

namespace {

/// Why rows of one sequence cannot lie on several ranks; null: they can.
const char* reason_for_whole_sequences(const Config& config) {
  if (config.has_indexers()) return "its indexers pick among the rows of a whole sequence";
  if (!config.ngrams.modules.empty()) return "its embeddings of n-grams read rows before those of a rank";
  if (config.has_shared_blocks())
    return "the state that its layers hand on needs attention to the rows before";
  if (config.is_compressed()) return "its blocks are of rows of a whole sequence";
  return nullptr;
}

}  // namespace

SequenceSplit::SequenceSplit(const Config& config, const std::vector<int64_t>& offsets, int64_t ranks)
    : contiguous_(divides_contiguously(config)),
      offsets_(offsets),
      of_rank_(static_cast<size_t>(std::max<int64_t>(ranks, 0))) {
  if (ranks < 1 || offsets.back() < ranks)
    throw InputError("{} rows over {} ranks, expected at least one row on every rank", offsets.back(), ranks);
  if (const char* const reason = reason_for_whole_sequences(config); reason != nullptr && ranks > 1)
    throw InputError(
        "rows of {} over {} ranks: {}, expected whole sequences on every rank (data parallelism)",
        config.family, ranks, reason);
  const SequenceWork work(config);
  if (contiguous_) {
    cut_contiguously(work, offsets, ranks);
  } else {
    cut_by_sequences(work, offsets, ranks);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (pieces(rank).empty())
      throw InputError("{} rows over {} ranks leave rank {} without one, expected fewer ranks",
                       offsets.back(), ranks, rank);
  }
}

void SequenceSplit::cut_contiguously(const SequenceWork& work, const std::vector<int64_t>& offsets,
                                     int64_t ranks) {
  const std::vector<Sequence> sequences = sequences_of(work, offsets);
  const double all = sum_of(sequences);
  std::vector<int64_t> begins{0};  // of each rank's rows, and the end
  size_t next = 0;
  double before = 0.0;  // the work of the sequences before `next`
  for (int64_t rank = 1; rank < ranks; ++rank) {
    const double limit = all * static_cast<double>(rank) / static_cast<double>(ranks);
    while (next + 1 < sequences.size() && before + sequences[next].work < limit)
      before += sequences[next++].work;
    const int64_t row = sequences[next].begin + rows_with(work, limit - before, sequences[next].rows());
    // One row at least for every rank.
    begins.push_back(std::clamp(row, begins.back() + 1, offsets.back() - (ranks - rank)));
  }
  begins.push_back(offsets.back());
  std::vector<Piece> pieces;
  size_t rank = 0;
  for (const Sequence& sequence : sequences) {
    for (int64_t begin = sequence.begin; begin < sequence.end;) {
      while (begins[rank + 1] <= begin) ++rank;
      const int64_t end = std::min(sequence.end, begins[rank + 1]);
      pieces.push_back({begin, end, sequence.begin, static_cast<int64_t>(rank)});
      begin = end;
    }
  }
  hand_out(std::move(pieces));
}

void SequenceSplit::cut_by_sequences(const SequenceWork& work, const std::vector<int64_t>& offsets,
                                     int64_t ranks) {
  std::vector<Sequence> sequences = sequences_of(work, offsets);
  const double least = kLeastDivided * sum_of(sequences) / static_cast<double>(ranks);
  std::vector<Piece> pieces, loose;
  std::vector<double> of_ranks(static_cast<size_t>(ranks));
  const auto work_of = [&](const Piece& piece) {
    return work.of(piece.end - piece.sequence_begin) - work.of(piece.begin - piece.sequence_begin);
  };
  for (const Sequence& sequence : sequences) {
    const bool in_zigzag = sequence.rows() >= 2 * ranks;
    const int64_t count = ranks == 1 || sequence.work <= least ? 1
                          : in_zigzag                          ? 2 * ranks
                                                               : std::min(sequence.rows(), ranks);
    for (int64_t i = 0; i < count; ++i) {
      const Piece piece{sequence.begin + begin_of(sequence.rows(), i, count),
                        sequence.begin + begin_of(sequence.rows(), i + 1, count), sequence.begin,
                        std::min(i, count - 1 - i)};
      if (count != 2 * ranks) {
        loose.push_back(piece);
        continue;
      }
      pieces.push_back(piece);
      of_ranks[static_cast<size_t>(piece.rank)] += work_of(piece);
    }
  }
  std::stable_sort(loose.begin(), loose.end(),
                   [&](const Piece& a, const Piece& b) { return work_of(a) > work_of(b); });
  for (Piece& piece : loose) {
    const auto idlest = std::min_element(of_ranks.begin(), of_ranks.end());
    piece.rank = idlest - of_ranks.begin();
    *idlest += work_of(piece);
    pieces.push_back(piece);
  }
  hand_out(std::move(pieces));
}

void SequenceSplit::hand_out(std::vector<Piece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  for (const Piece& piece : pieces) {
    if (!all_.empty() && all_.back().rank == piece.rank &&
        all_.back().sequence_begin == piece.sequence_begin) {
      all_.back().end = piece.end;
    } else {
      all_.push_back(piece);
    }
  }
  for (const Piece& piece : all_) of_rank_[static_cast<size_t>(piece.rank)].push_back(piece);
}

int64_t SequenceSplit::rows(int64_t rank) const {
  int64_t sum = 0;
  for (const Piece& piece : pieces(rank)) sum += piece.size();
  return sum;
}

Batch SequenceSplit::batch_of(const Batch& whole, int64_t rank) const {
  Batch in_pieces = whole;
  in_pieces.sequence_inputs.clear();
  in_pieces.offsets.clear();
  std::vector<int64_t> own;
  for (size_t i = 0; i < all_.size(); ++i) {
    in_pieces.offsets.push_back(all_[i].begin);
    if (all_[i].rank == rank) own.push_back(static_cast<int64_t>(i));
  }
  in_pieces.offsets.push_back(whole.size());
  return select_sequences(in_pieces, own);
}

}  // namespace streambp
