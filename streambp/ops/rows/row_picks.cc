#include "streambp/ops/rows/row_picks.h"

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"

namespace streambp {

RowPicks::RowPicks(int64_t topk, const std::vector<int64_t>& offsets, int64_t rate)
    : topk_(topk), tokens_(offsets.back()) {
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    needed_ = needed_ || (offsets[i + 1] - offsets[i]) / rate > topk;
}

bool RowPicks::are_known(int64_t layer, int64_t end) const {
  const auto found = layers_.find(layer);
  return found != layers_.end() && end <= found->second.end;
}

at::Tensor RowPicks::find(int64_t layer, int64_t begin, int64_t n) const {
  return layers_.at(layer).picks.narrow(0, begin, n);
}

at::Tensor RowPicks::room(int64_t layer, int64_t begin, int64_t n, c10::Device device) {
  at::Tensor& picks = layers_[layer].picks;
  if (!picks.defined()) {
    const MemoryScope scope("picked rows");
    picks = at::empty({tokens_, topk_}, at::TensorOptions().device(device).dtype(at::kInt));
  }
  return picks.narrow(0, begin, n);
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
