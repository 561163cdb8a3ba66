#include "streambp/model/layers/key_block_indexer.h"

#include <algorithm>
#include <cmath>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/indexer.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// The keys [groups, E] of the groups of a sequence's rows with the keys [m, E], which stand in the stream
/// from row `first` on.
at::Tensor means_of_groups(const KeyBlockIndexer& indexer, const at::Tensor& keys, const RopeTable& stream,
                           int64_t first) {
  const int64_t rate = indexer.settings.group, groups = keys.size(0) / rate;
  const at::Tensor means = keys.narrow(0, 0, groups * rate)
                               .view({groups, rate, -1})
                               .to(sum_dtype(keys))
                               .mean(1)
                               .to(keys.scalar_type());
  const auto of_first = [&](const at::Tensor& table) {
    return table.narrow(0, first, groups * rate).slice(0, 0, groups * rate, rate).contiguous();
  };
  return normed_rope(means.unsqueeze(1), &indexer.k_norm, {of_first(stream.cosine), of_first(stream.sine)})
      .squeeze(1);
}

/// Runs an indexer of means over rows x [n, D].
void run_indexer_of_means(const KeyBlockIndexer& indexer, const at::Tensor& x, const IndexerRope& rope,
                          const std::vector<int64_t>& offsets, const PickingRows& picking) {
  const IndexerSettings& settings = indexer.settings;
  const int64_t n = x.size(0);
  const at::Tensor held = picking.picks->add_keys(picking.layer, picking.sequence_begin, picking.begin,
                                                  linear_forward(*indexer.k_proj, x));
  const auto asks = [&] {
    const at::Tensor queries = normed_rope(
        linear_forward(*indexer.q_proj, x).view({n, -1, settings.head_dim}), &indexer.q_norm, rope.rows);
    return std::pair(queries,
                     at::full({n, settings.heads}, 1.0 / std::sqrt(static_cast<double>(settings.head_dim)),
                              queries.options().dtype(sum_dtype(queries))));
  };
  pick_in_sequences(settings, held, n, offsets, picking, asks, [&](const at::Tensor& rows, int64_t key) {
    return means_of_groups(indexer, rows, rope.stream, picking.sequence_begin + key);
  });
}

/// Runs the indexer over rows x [n, D].
void run_indexer(const KeyBlockIndexer& indexer, const at::Tensor& x, const RopeTable& table,
                 const std::vector<int64_t>& offsets, const PickingRows& picking) {
  const IndexerSettings& settings = indexer.settings;
  RowPicks& picks = *picking.picks;
  const int64_t n = x.size(0), many = settings.topk * settings.block;  // rows of which each sees all
  const auto heads_of = [&](const Linear& map, const RmsNorm& norm) {
    return normed_rope(linear_forward(map, x).view({n, -1, settings.head_dim}), &norm, table);
  };
  const at::Tensor own = heads_of(*indexer.k_proj, indexer.k_norm).squeeze(1);
  const at::Tensor keys = picks.add_keys(picking.layer, picking.sequence_begin, picking.begin, own);
  const int64_t prefix = picking.begin - picking.sequence_begin;
  at::Tensor queries;  // of the rows, where any of them picks
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t end = offsets[s + 1], earlier = s == 0 ? prefix : 0;
    const int64_t begin = first_picking(picking, offsets[s] + std::max<int64_t>(many - earlier, 0), end);
    if (begin >= end) continue;
    if (!queries.defined()) queries = heads_of(*indexer.q_proj, indexer.q_norm);
    const int64_t key = s == 0 ? 0 : prefix + offsets[s];
    picks.keep(
        picking.layer, picking.begin + begin,
        pick_blocks(queries.narrow(0, begin, end - begin), keys.narrow(0, key, earlier + end - offsets[s]),
                    {settings.topk, settings.block, settings.local_blocks}, earlier + begin - offsets[s]));
  }
  picks.finish(picking.layer, picking.begin + n);
}

}  // namespace

PickedRows picked_key_blocks(const KeyBlockIndexer& indexer, const std::function<at::Tensor()>& read,
                             const IndexerRope& rope, const std::vector<int64_t>& offsets,
                             const PickingRows& picking) {
  if (picking.picks == nullptr || !picking.picks->are_needed()) return {};
  const int64_t n = offsets.back();
  const IndexerSettings& settings = indexer.settings;
  if (!picking.picks->are_known(picking.layer, picking.begin + n)) {
    const at::NoGradGuard no_grad;
    const MemoryScope scope("indexer");
    const at::Tensor x = read().detach();
    if (settings.of_means) {
      run_indexer_of_means(indexer, x, rope, offsets, picking);
    } else {
      run_indexer(indexer, x, rope.rows, offsets, picking);
    }
  }
  const PickKind& kind = picking.picks->kind();
  bool are_read = picking.picks->are_given();
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t earlier = s == 0 ? picking.begin - picking.sequence_begin : 0;
    are_read = are_read || kind.seen(earlier + offsets[s + 1] - offsets[s]) > kind.topk;
  }
  if (!are_read) return {};
  PickedRows picked{picking.picks->find(picking.layer, picking.begin, n)};
  if (settings.of_means) {
    picked.rate = settings.group;
    picked.has_tail = picked.rate > 1;
    picked.of_all_rows = picking.picks->are_given();
    return picked;
  }
  picked.groups = settings.heads;
  picked.rate = settings.block;
  return picked;
}

}  // namespace streambp
