// MiniMax M3's attention over blocks of keys, and its MLPs; see layers.h.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "reference/column_groups.h"
#include "reference/layers.h"
#include "reference/mixture.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {

std::vector<std::vector<std::vector<int>>> Layers::in_picked_blocks(const std::string& module, int layer,
                                                                    const Var& x,
                                                                    const std::vector<double>& positions,
                                                                    double length) const {
  const IndexerSettings& indexer = config_.indexer;
  const Index size = indexer.head_dim;
  RopeOptions turn = rotation(layer, length);
  turn.head_dim = indexer.head_dim;
  const auto heads_of = [&](const std::string& part) {
    const Var heads = norm(module + part + "_norm", project(module + part + "_proj", false, x));
    return held_constant(rope(heads, positions, turn).value());
  };
  const Matrix queries = heads_of("q"), keys = heads_of("k");
  std::vector<std::vector<std::vector<int>>> all(static_cast<std::size_t>(indexer.heads));
  for (int head = 0; head < indexer.heads; ++head) {
    for (Index t = 0; t < x.rows(); ++t) {
      const int own = static_cast<int>(t) / indexer.block;
      Matrix scores = Matrix::Constant(1, own + 1, Scalar(-std::numeric_limits<double>::infinity()));
      for (Index s = 0; s <= t; ++s) {
        const Scalar product = queries.row(t).segment(head * size, size).dot(keys.row(s));
        Scalar& score = scores(0, s / indexer.block);
        if (product > score) score = product;
      }
      for (int block = std::max(own - indexer.local_blocks + 1, 0); block <= own; ++block)
        scores(0, block) = Scalar(std::numeric_limits<double>::infinity());
      std::vector<int> blocks = largest_columns(scores, std::min(indexer.topk, own + 1)).front();
      std::sort(blocks.begin(), blocks.end());
      std::vector<int> tokens;
      for (const int block : blocks) {
        const int end = std::min((block + 1) * indexer.block, static_cast<int>(t) + 1);
        for (int s = block * indexer.block; s < end; ++s) tokens.push_back(s);
      }
      all[static_cast<std::size_t>(head)].push_back(std::move(tokens));
    }
  }
  return all;
}

Var Layers::attention_in_blocks(const std::vector<std::vector<std::vector<int>>>& seen, const Var& q,
                                const KeyValues& source, const AttentionOptions& options) const {
  const int heads = options.query_heads, shared_by = heads / options.key_value_heads;
  const int picked_by = heads / static_cast<int>(seen.size());
  const Index size = q.cols() / heads;
  AttentionOptions of_head = options;
  of_head.query_heads = of_head.key_value_heads = 1;
  std::vector<Var> mixed;
  for (int head = 0; head < heads; ++head) {
    const Index key = Index{head / shared_by} * size;
    of_head.seen = seen[static_cast<std::size_t>(head / picked_by)];
    mixed.push_back(causal_attention(slice_columns(q, head * size, size), slice_columns(source.k, key, size),
                                     slice_columns(source.v, key, size), of_head));
  }
  return join_groups(mixed, 1);
}

Var Layers::clamped_mlp(const std::string& module, const Var& x) const {
  const Var both = project(module + "gate_up_proj", false, x);
  const Index width = both.cols() / 2;
  const Var inner = clamped_swiglu(slice_columns(both, 0, width), slice_columns(both, width, width),
                                   config_.swiglu_alpha, config_.swiglu_limit);
  return project(module + "down_proj", false, inner);
}

}  // namespace streambp::STREAMBP_REFERENCE
