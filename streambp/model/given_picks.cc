#include "streambp/model/given_picks.h"

#include <algorithm>
#include <vector>

#include "streambp/error.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

/// What the tokens of a batch may be given, by what their indexers pick: rows, or blocks of some.
class Candidates {
 public:
  Candidates(const Config& config, const Batch& batch)
      : batch_(batch), topk_(config.indexer.topk), rate_(config.pick_kind().rate) {
    std::vector<at::Tensor> positions, firsts;
    for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
      const int64_t begin = batch.offsets[s], length = batch.offsets[s + 1] - begin;
      if (length == 0) continue;
      const int64_t column = batch.padded_indices[begin].item<int64_t>() % batch.padded_columns;
      positions.push_back(at::arange(length, at::kLong));
      firsts.push_back(at::full({length}, is_of_blocks() ? 0 : column, at::kLong));
      most_ = std::max(most_, length / rate_);
    }
    first_ = at::cat(firsts);
    count_ = (at::cat(positions) + 1).div(rate_, "floor");
  }

  bool is_of_blocks() const { return rate_ > 1; }

  /// Throws for the first token whose `given` [N, k] int64 of `layer` can't be, called `name`.
  void check(const at::Tensor& given, const std::string& name, int64_t layer) const {
    const int64_t k = given.size(1);
    const at::Tensor first = first_.unsqueeze(1), end = first + count_.unsqueeze(1);
    const at::Tensor sorted = std::get<0>(given.sort(/*dim=*/1, /*descending=*/false));
    at::Tensor wrong = given.ne(-1).logical_and(given.lt(first).logical_or(given.ge(end))).any(1);
    if (k > 1) {
      const at::Tensor later = sorted.narrow(1, 1, k - 1);
      wrong = wrong.logical_or(later.eq(sorted.narrow(1, 0, k - 1)).logical_and(later.ne(-1)).any(1));
    }
    if (!wrong.any().item<bool>()) return;
    refuse(wrong.nonzero()[0][0].item<int64_t>(), given, name, layer);
  }

  /// Of checked `given` [N, k] int64: numbers of rows or blocks in each token's sequence [N, width()] int32,
  /// those that are missing filled with others of the token's own; of a token without any all it may see,
  /// where these are no more than topk.
  at::Tensor in_sequences(const at::Tensor& given) const {
    const int64_t width = std::clamp<int64_t>(most_, 1, topk_);
    const at::Tensor own = at::where(given.lt(0), given, given - first_.unsqueeze(1));
    at::Tensor sorted = std::get<0>(own.sort(/*dim=*/1, /*descending=*/true));
    sorted = sorted.narrow(1, 0, std::min(width, sorted.size(1)));
    sorted = at::constant_pad_nd(sorted, {0, width - sorted.size(1)}, -1);
    const at::Tensor highest = sorted.narrow(1, 0, 1);
    const at::Tensor all = at::minimum(at::arange(width, at::kLong), count_.sub(1).unsqueeze(1)).clamp_min(0);
    return at::where(highest.lt(0), all, at::where(sorted.lt(0), highest, sorted)).to(at::kInt);
  }

  /// The tokens without any that could see more than topk: [N] bool.
  at::Tensor open(const at::Tensor& given) const { return given.lt(0).all(1).logical_and(count_.gt(topk_)); }

 private:
  [[noreturn]] void refuse(int64_t token, const at::Tensor& given, const std::string& name,
                           int64_t layer) const {
    const auto index = batch_.padded_indices[token].item<int64_t>();
    const auto first = first_[token].item<int64_t>(), end = first + count_[token].item<int64_t>();
    const int64_t k = given.size(1);
    std::vector<int64_t> seen;
    std::string what;
    for (int64_t i = 0; i < k && what.empty(); ++i) {
      const auto number = given[token][i].item<int64_t>();
      if (number == -1) continue;
      const bool is_twice = std::find(seen.begin(), seen.end(), number) != seen.end();
      seen.push_back(number);
      if (number < first || number >= end || is_twice)
        what = fmt::format("{}{}", number,
                           number >= end    ? ", which is ahead of it"
                           : number < 0     ? ", which stands for nothing"
                           : number < first ? ", which is padding or another document's"
                                            : " twice");
    }
    const std::string may_see =
        end > first ? fmt::format("different ones from {} to {}, -1 for fewer, or ", first, end - 1) : "";
    throw InputError(
        "{}: row {}, column {} of input_ids sees {} {} in layer {}, expected {}-1 in all {} places where the "
        "indexer is to pick",
        name, index / batch_.padded_columns, index % batch_.padded_columns,
        is_of_blocks() ? "block" : "column", what, layer, may_see, k);
  }

  const Batch& batch_;
  int64_t topk_, rate_;
  int64_t most_ = 0;          // that any token may see
  at::Tensor first_, count_;  // [N]: the number that stands for the first one a token may see, and how many
};

/// The layers with an indexer of their own. Throws InputError for a model without one and a batch with picks.
std::vector<int64_t> picking_layers(const Config& config, const Batch& batch) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.has_indexer(layer)) layers.push_back(layer);
  }
  if (config.picks_key_blocks() && batch.indexer_indices.defined())
    throw InputError(
        "{}indexer_indices: of {}, whose indexers pick blocks for each group of query heads, they are not "
        "read; "
        "leave the tensor out",
        batch.indices_source, config.family);
  if (layers.empty() && batch.indexer_indices.defined())
    throw InputError("{}indexer_indices: the model has no indexers; leave the tensor out",
                     batch.indices_source);
  return layers;
}

/// Checks the batch's, and puts them into `picks` unless it is null.
void give(const Config& config, const Batch& batch, c10::Device device, RowPicks* picks) {
  const std::string name = batch.indices_source + "indexer_indices";
  const std::vector<int64_t> layers = picking_layers(config, batch);
  const auto with_indexer = static_cast<int64_t>(layers.size());
  const int64_t given_layers = batch.indexer_indices.size(1), k = batch.indexer_indices.size(2);
  if ((given_layers != with_indexer && given_layers != config.num_hidden_layers) || k > config.indexer.topk)
    throw InputError(
        "{}: {} of each token in {} layers, expected 1 to {} ({}) in each of the {} layers with an indexer "
        "of "
        "their own, or of all {} layers",
        name, k, given_layers, config.indexer.topk,
        config.indexer.of_means    ? "indexer_budget / indexer_compress_ratio"
        : config.indexer.group > 0 ? "index_topk / index_kpool"
                                   : "index_topk",
        with_indexer, config.num_hidden_layers);
  const Candidates candidates(config, batch);
  const MemoryScope scope("picked rows");
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t layer = layers[i];
    const at::Tensor given =
        batch.indexer_indices.select(1, given_layers == with_indexer ? static_cast<int64_t>(i) : layer)
            .to(at::kLong);
    candidates.check(given, name, layer);
    if (picks == nullptr) continue;
    picks->give(layer, candidates.in_sequences(given).to(device), candidates.open(given));
  }
}

}  // namespace

std::shared_ptr<RowPicks> picks_of(const Config& config, const Batch& batch, c10::Device device) {
  picking_layers(config, batch);
  if (!config.has_indexers()) return nullptr;
  auto picks = std::make_shared<RowPicks>(config.pick_kind(), batch.offsets);
  if (batch.indexer_indices.defined()) give(config, batch, device, picks.get());
  return picks;
}

void check_given_picks(const Config& config, const Batch& batch) {
  if (batch.indexer_indices.defined()) give(config, batch, at::kCPU, nullptr);
}

}  // namespace streambp
