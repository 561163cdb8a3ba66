// What indexers pick of tokens, or of groups of them; see layers.h.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "reference/column_groups.h"
#include "reference/layers.h"
#include "reference/mixture.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// The tokens that each token sees where groups of `group` tokens are picked; 0: tokens are.
std::vector<std::vector<int>> seen_of_groups(const std::vector<std::vector<int>>& picked, int group) {
  if (group == 0) return picked;
  std::vector<std::vector<int>> all;
  for (int t = 0; t < static_cast<int>(picked.size()); ++t) {
    const int begun = (t + 1) / group * group;  // of the group that has not ended
    std::vector<int> seen = numbers(begun, t + 1 - begun);
    for (const int one : picked[static_cast<std::size_t>(t)]) {
      for (const int token : numbers(one * group, group)) seen.push_back(token);
    }
    all.push_back(std::move(seen));
  }
  return all;
}

}  // namespace

std::vector<std::vector<int>> with_given(std::vector<std::vector<int>> picked, const PicksOfLayers& given,
                                         int layer) {
  const auto of_layer = given.find(layer);
  if (of_layer == given.end()) return picked;
  require(of_layer->second.size() == picked.size(), "with_given",
          "expected picks of each of " + std::to_string(picked.size()) + " tokens");
  for (std::size_t t = 0; t < picked.size(); ++t) {
    if (!of_layer->second[t].empty()) picked[t] = of_layer->second[t];
  }
  return picked;
}

std::vector<std::vector<int>> picked_by_scores(const IndexerSettings& indexer, int rate,
                                               const Matrix& queries, const Matrix& keys,
                                               const Matrix& weights) {
  const Index size = indexer.head_dim;
  std::vector<std::vector<int>> all;
  for (Index t = 0; t < queries.rows(); ++t) {
    const Index known = (t + 1) / rate;
    Matrix scores = Matrix::Zero(1, known);
    for (int head = 0; head < indexer.heads; ++head) {
      for (Index b = 0; b < known; ++b) {
        const Scalar product = queries.row(t).segment(head * size, size).dot(keys.row(b));
        if (product > Scalar(Number{0})) scores(0, b) += weights(t, head) * product;
      }
    }
    const int count = std::min(indexer.topk, static_cast<int>(known));
    all.push_back(count == 0 ? std::vector<int>() : largest_columns(scores, count).front());
  }
  return all;
}

Var Layers::indexer_rope(const Var& heads, const std::vector<double>& positions,
                         const RopeOptions& turn) const {
  const IndexerSettings& indexer = config_.indexer;
  if (!indexer.rotates_last) return rope(heads, positions, turn);
  const int count = static_cast<int>(heads.cols()) / indexer.head_dim;
  RopeOptions of_part = turn;
  of_part.head_dim = config_.latent.qk_rope_head_dim;
  const auto parts = split_groups(heads, count, {indexer.head_dim - of_part.head_dim, of_part.head_dim});
  return join_groups({parts[0], rope(parts[1], positions, of_part)}, count);
}

std::vector<std::vector<int>> Layers::picked(const std::string& module, int layer, const Var& x,
                                             const Var& latents, const std::vector<double>& positions,
                                             double length) const {
  const IndexerSettings& indexer = config_.indexer;
  RopeOptions turn = config_.rotates(layer) ? rotation(layer, length) : RopeOptions{};
  turn.head_dim = indexer.head_dim;
  turn.interleaved = indexer.interleaved;
  const auto turned = [&](const Var& heads) {
    if (!config_.rotates(layer)) return heads;
    if (!indexer.reads_hidden) return indexer_rope(heads, positions, turn);
    return rope(heads, parameter("model.rotary_emb.alpha"), positions, turn);
  };
  const Var normed = layer_norm(module + "k_norm", project(module + "wk", false, x), indexer.norm_eps);
  const Matrix keys =
      indexer.group > 0 ? keys_of_groups(module, turned(normed), x) : held_constant(turned(normed).value());
  const int rate = std::max(indexer.group, 1);
  const Var read = indexer.reads_hidden ? layer_norm(module + "q_input_norm", x, indexer.norm_eps) : latents;
  Var projected = project(module + "wq_b", false, read);
  if (indexer.reads_hidden) projected = scaled_by_place(module, projected, positions);
  const Matrix queries = held_constant(turned(projected).value());
  const Matrix weights = held_constant(project(module + "weights_proj", false, x).value());
  return picked_by_scores(indexer, rate, queries, keys, weights);
}

Matrix Layers::keys_of_groups(const std::string& module, const Var& keys, const Var& x) const {
  const int group = config_.indexer.group;
  const Var gates = linear(x, parameter(module + "index_kpool_compress_gate"));
  const Var& ape = parameter(module + "index_kpool_compress_ape");
  Matrix all(x.rows() / group, keys.cols());
  for (Index i = 0; i < all.rows(); ++i) {
    const std::vector<int> rows = numbers(static_cast<int>(i) * group, group);
    const Var weights = exp(log_softmax(transpose(add(gather_rows(gates, rows), ape))));  // [head_dim, group]
    all.row(i) = transpose(row_sum(mul(weights, transpose(gather_rows(keys, rows))))).value();
  }
  return held_constant(all);
}

std::vector<std::vector<int>> Layers::seen_by_means(const std::string& module, int layer, const Var& x,
                                                    const std::vector<double>& positions, double length,
                                                    const PicksOfLayers& given) const {
  const IndexerSettings& indexer = config_.indexer;
  const Index size = indexer.head_dim, of_queries = Index{indexer.heads} * size;
  RopeOptions turn = rotation(layer, length);
  turn.head_dim = indexer.head_dim;
  const Var both = project(module + "index_qk_proj", false, x);
  const Var queries = rope(norm(module + "q_layernorm", slice_columns(both, 0, of_queries)), positions, turn);
  const Var rows = slice_columns(both, of_queries, size);
  std::vector<Var> means;
  std::vector<double> firsts;
  for (int first = 0; first + indexer.group <= static_cast<int>(x.rows()); first += indexer.group) {
    const Var of_group = gather_rows(rows, numbers(first, indexer.group));
    means.push_back(transpose(scale(row_sum(transpose(of_group)), Number{1} / Number{1.0 * indexer.group})));
    firsts.push_back(positions[static_cast<std::size_t>(first)]);
  }
  Matrix keys(0, size);
  if (!means.empty())
    keys = held_constant(rope(norm(module + "k_layernorm", concat_rows(means)), firsts, turn).value());
  const Number weight = Number{1} / std::sqrt(static_cast<Number>(size));
  const auto picked = picked_by_scores(indexer, indexer.group, held_constant(queries.value()), keys,
                                       Matrix::Constant(x.rows(), indexer.heads, Scalar(weight)));
  return seen_of_groups(with_given(picked, given, layer), indexer.group);
}

std::vector<std::vector<int>> Layers::tokens_picked(const std::string& module, int layer, const Var& x,
                                                    const Var& latents, const std::vector<double>& positions,
                                                    double length, const PicksOfLayers& given) const {
  const auto all = picked(module, layer, x, latents, positions, length);
  return seen_of_groups(with_given(all, given, layer), config_.indexer.group);
}

}  // namespace streambp::STREAMBP_REFERENCE
