#include "streambp/distributed/rows_of_rank.h"

#include <algorithm>

#include "streambp/distributed/exchanged_keys_values.h"
#include "streambp/distributed/passed_states.h"
#include "streambp/error.h"

namespace streambp {

RowsOfRank::RowsOfRank(Communicator& communicator, const SequenceSplit& split)
    : communicator_(communicator), split_(split), begins_{0} {
  if (split.ranks() != communicator.size())
    throw InputError("rows over {} ranks on {}, expected as many", split.ranks(), communicator.size());
  for (const Piece& piece : all()) {
    if (piece.continues() && begins_.back() > 0) cuts_.push_back(begins_.back());
    begins_.push_back(begins_.back() + piece.size());
  }
}

std::vector<Piece> RowsOfRank::in_whole(int64_t begin, int64_t end) const {
  std::vector<Piece> found;
  auto i = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
  for (; i < all().size() && begins_[i] < end; ++i) {
    Piece piece = all()[i];
    piece.end = std::min(piece.end, piece.begin + end - begins_[i]);
    piece.begin += std::max<int64_t>(begin - begins_[i], 0);
    found.push_back(piece);
  }
  return found;
}

int64_t RowsOfRank::rows_before(int64_t begin) const {
  const Piece piece = in_whole(begin, begin + 1).front();
  return piece.begin - piece.sequence_begin;
}

bool RowsOfRank::is_continued() const {
  const int64_t next = communicator_.rank() + 1;
  return next < communicator_.size() && split_.pieces(next).front().continues();
}

std::unique_ptr<CarryStream> RowsOfRank::carry_stream(const Model& model, int64_t layer, const Chunks& chunks,
                                                      CarryStream::Holds holds) {
  const Config& config = model.config();
  if (config.shares_keys_values(layer) || config.has_consumers(layer))
    throw InputError(
        "layer {}: several layers read its keys and values, expected ranks to divide sequences, "
        "not rows",
        layer);
  if (config.is_recurrent(layer)) {
    if (!split_.is_contiguous())
      throw InputError("layer {} is recurrent, expected rows that were divided for a model with such layers",
                       layer);
    return std::make_unique<PassedStates>(communicator_, *this, model, chunks, holds, arrived_[layer]);
  }
  const int64_t window = config.windows[static_cast<size_t>(layer)];
  const auto [routes, is_new] = routes_.try_emplace(window);
  if (is_new) routes->second = RowRoutes(split_, communicator_.rank(), window);
  return std::make_unique<ExchangedKeysValues>(communicator_, *this, routes->second, model, layer);
}

}  // namespace streambp
