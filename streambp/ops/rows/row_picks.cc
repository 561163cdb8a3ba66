#include "streambp/ops/rows/row_picks.h"

#include <algorithm>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"

namespace streambp {

RowPicks::RowPicks(const PickKind& kind, const std::vector<int64_t>& offsets)
    : kind_(kind), tokens_(offsets.back()) {
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    needed_ = needed_ || kind.seen(offsets[i + 1] - offsets[i]) > kind.topk;
}

void RowPicks::give(int64_t layer, const at::Tensor& picks, const at::Tensor& open) {
  OfLayer& of_layer = layers_[layer];
  given_ = true;
  of_layer.picks = picks;
  if (open.any().item<bool>()) {
    of_layer.open = open.contiguous();
  } else {
    of_layer.end = tokens_;
  }
}

bool RowPicks::are_known(int64_t layer, int64_t end) const {
  const auto found = layers_.find(layer);
  return found != layers_.end() && end <= found->second.end;
}

at::Tensor RowPicks::find(int64_t layer, int64_t begin, int64_t n) const {
  return layers_.at(layer).picks.narrow(0, begin, n);
}

int64_t RowPicks::first_open(int64_t layer, int64_t begin, int64_t end) const {
  if (!given_) return begin;
  const at::Tensor& open = layers_.at(layer).open;
  if (!open.defined()) return end;
  const bool* const rows = open.const_data_ptr<bool>();
  return std::find(rows + begin, rows + end, true) - rows;
}

void RowPicks::keep(int64_t layer, int64_t begin, const at::Tensor& picks) {
  OfLayer& of_layer = layers_[layer];
  if (!of_layer.picks.defined()) {
    const MemoryScope scope("picked rows");
    of_layer.picks = at::empty({tokens_, kind_.width()}, picks.options());
  }
  const int64_t n = picks.size(0);
  const at::Tensor room = of_layer.picks.narrow(0, begin, n);
  if (!given_) {
    room.copy_(picks);
    return;
  }
  const at::Tensor open = of_layer.open.narrow(0, begin, n).unsqueeze(1).to(picks.device());
  room.copy_(at::where(open, picks, room));
}

void RowPicks::count_tied(int64_t layer, int64_t rows) {
  if (rows == 0) return;
  if (refuses_ties_)
    throw InputError(
        "indexer of layer {}: {} of its rows leave out one with the very score of one that they pick (often "
        "0, "
        "as a ReLU has it), and torch.topk on a CPU picks others of them than the engine does; expected "
        "picks "
        "that are given (indexer_indices), or lane=\"module\" of patch()",
        layer, rows);
  tied_rows_[layer] += rows;
}

at::Tensor RowPicks::add_keys(int64_t layer, int64_t first, int64_t begin, const at::Tensor& keys) {
  const int64_t end = begin + keys.size(0);
  if (has_values(keys) && begin > first && layers_[layer].end < begin)
    throw InputError(
        "indexer of layer {}: rows from {} on before those from {} on, expected a layer's rows from "
        "first to last",
        layer, begin, layers_[layer].end);
  if (begin == first && end == tokens_) return keys;
  at::Tensor& all = layers_[layer].keys;
  if (!all.defined()) {
    const MemoryScope scope("indexer keys");
    all = at::empty({tokens_, keys.size(1)}, keys.options());
  }
  all.narrow(0, begin, keys.size(0)).copy_(keys);
  return all.narrow(0, first, end - first);
}

void RowPicks::finish(int64_t layer, int64_t end) {
  OfLayer& of_layer = layers_[layer];
  of_layer.end = end;
  if (end < tokens_) return;
  of_layer.keys.reset();
  if (!keeps_) layers_.erase(layers_.begin(), layers_.find(layer));
}

}  // namespace streambp
