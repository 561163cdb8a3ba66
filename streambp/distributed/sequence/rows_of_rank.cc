#include "streambp/distributed/sequence/rows_of_rank.h"

#include <algorithm>

#include "streambp/distributed/sequence/exchanged_keys_values.h"
#include "streambp/distributed/sequence/passed_states.h"
#include "streambp/distributed/sequence/ring_attention.h"
#include "streambp/distributed/sequence/ulysses_attention.h"
#include "streambp/error.h"

namespace streambp {

const char* exchange_name(Exchange exchange) {
  switch (exchange) {
    case Exchange::kGather:
      return "gather";
    case Exchange::kRing:
      return "ring";
    case Exchange::kUlysses:
      return "ulysses";
  }
  return "";
}

namespace {

/// Whether a layer's keys and values are gathered, whatever the exchange, or it has none.
bool always_gathers(const Config& config, int64_t layer) {
  return !config.can_store_keys_values(layer) || config.has_consumers(layer);
}

}  // namespace

void require_exchange(const Config& config, Exchange exchange, int64_t ranks) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (exchange == Exchange::kUlysses && !always_gathers(config, layer))
      require_divided_heads(config, layer, ranks);
  }
}

RowsOfRank::RowsOfRank(Communicator& communicator, const SequenceSplit& split, Exchange exchange)
    : communicator_(communicator), split_(split), exchange_(exchange), begins_{0} {
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

int64_t RowsOfRank::index_of(int64_t row) const {
  const auto after = std::upper_bound(all().begin(), all().end(), row,
                                      [](int64_t at, const Piece& piece) { return at < piece.begin; });
  const auto i = static_cast<size_t>(after - all().begin()) - 1;
  return begins_[i] + row - all()[i].begin;
}

at::Tensor RowsOfRank::own_in(const at::Tensor& x, const RowRange& rows) const {
  return x.narrow(0, rows.size() > 0 ? index_of(rows.begin) : 0, rows.size());
}

int64_t RowsOfRank::rows_before(int64_t begin) const {
  const Piece piece = in_whole(begin, begin + 1).front();
  return piece.begin - piece.sequence_begin;
}

bool RowsOfRank::is_continued() const {
  const int64_t next = communicator_.rank() + 1;
  return next < communicator_.size() && split_.pieces(next).front().continues();
}

const RowRoutes& RowsOfRank::routes_of(const Config& config, int64_t layer) {
  const int64_t window = config.windows[static_cast<size_t>(layer)];
  const auto [routes, is_new] = routes_.try_emplace(window);
  if (is_new) routes->second = RowRoutes(split_, communicator_.rank(), window);
  return routes->second;
}

std::unique_ptr<PartAttention> RowsOfRank::attention(const Model& model, int64_t layer,
                                                     const Chunks& chunks) {
  const Config& config = model.config();
  if (exchange_ == Exchange::kGather || always_gathers(config, layer)) return nullptr;
  const AttentionSettings& settings = model.layers()[static_cast<size_t>(layer)].attention_settings();
  if (exchange_ == Exchange::kRing)
    return std::make_unique<RingAttention>(communicator_, *this, routes_of(config, layer), chunks, settings);
  return std::make_unique<UlyssesAttention>(communicator_, *this, config, layer, settings);
}

std::unique_ptr<CarryStream> RowsOfRank::carry_stream(const Model& model, const Stream& stream, int64_t layer,
                                                      const Chunks& chunks, CarryStream::Holds holds) {
  const Config& config = model.config();
  if (!config.has_mixer(layer)) return no_carry_stream();
  if (config.is_recurrent(layer)) {
    if (!split_.is_contiguous())
      throw InputError("layer {} is recurrent, expected rows that were divided for a model with such layers",
                       layer);
    auto states = std::make_unique<PassedStates>(communicator_, *this, model, chunks, holds, arrived_[layer]);
    if (!config.attends(layer)) return states;
    return both_carries(std::make_unique<ExchangedKeysValues>(communicator_, *this, routes_of(config, layer),
                                                              model, layer, chunks, nullptr),
                        std::move(states));
  }
  if (config.shares_keys_values(layer)) {
    const RowRoutes& kept = routes_of(config, config.producer_of(layer));
    return std::make_unique<SharedOnRanks>(*this, kept, *stream.shared, config, layer, chunks);
  }
  SharedKeysValues* const shared = config.has_consumers(layer) ? stream.shared.get() : nullptr;
  return std::make_unique<ExchangedKeysValues>(communicator_, *this, routes_of(config, layer), model, layer,
                                               chunks, shared);
}

}  // namespace streambp
