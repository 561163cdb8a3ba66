// DeepSeek V4's attention and the experts of its hashed layers; see layers.h.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "reference/column_groups.h"
#include "reference/layers.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {

Var Layers::rope_last(const Var& heads, int size, const std::vector<double>& positions,
                      const RopeOptions& turn) const {
  const int count = static_cast<int>(heads.cols()) / size;
  RopeOptions of_part = turn;
  of_part.head_dim = 2 * static_cast<int>(turn.inverse_frequencies.size());
  of_part.interleaved = true;
  const auto parts = split_groups(heads, count, {size - of_part.head_dim, of_part.head_dim});
  return join_groups({parts[0], rope(parts[1], positions, of_part)}, count);
}

Var Layers::block_keys(const std::string& module, int layer, int size, const Var& x,
                       const std::vector<double>& positions, const RopeOptions& turn) const {
  const int rate = config_.compressed.rates[static_cast<std::size_t>(layer)];
  const bool overlaps = config_.compressed.overlaps[static_cast<std::size_t>(layer)];
  const Var v = project(module + "kv_proj", false, x), z = project(module + "gate_proj", false, x);
  const Var& bias = parameter(module + "position_bias");
  const auto of_block = [&](const Var& all, int block) {
    return gather_rows(all, numbers(block * rate, rate));
  };
  std::vector<Var> pooled;
  std::vector<double> of_blocks;
  for (int block = 0; block < x.rows() / rate; ++block) {
    Var values = of_block(v, block), gates = add(of_block(z, block), bias);
    if (overlaps) {
      values = slice_columns(values, size, size);
      gates = slice_columns(gates, size, size);
    }
    if (overlaps && block > 0) {
      values = concat_rows({slice_columns(of_block(v, block - 1), 0, size), values});
      gates = concat_rows({slice_columns(add(of_block(z, block - 1), bias), 0, size), gates});
    }
    const Var weights = exp(log_softmax(transpose(gates)));  // [size, tokens]
    pooled.push_back(transpose(row_sum(mul(weights, transpose(values)))));
    of_blocks.push_back(positions[static_cast<std::size_t>(block * rate)]);
  }
  return rope_last(norm(module + "kv_norm", concat_rows(pooled)), size, of_blocks, turn);
}

std::vector<std::vector<int>> Layers::picked_blocks(const std::string& module, int layer, const Var& x,
                                                    const Var& latents, const std::vector<double>& positions,
                                                    const RopeOptions& turn) const {
  const IndexerSettings& indexer = config_.indexer;
  const int rate = config_.compressed.rates[static_cast<std::size_t>(layer)];
  const Matrix keys = held_constant(block_keys(module, layer, indexer.head_dim, x, positions, turn).value());
  const Matrix queries = held_constant(
      rope_last(project(module + "q_b_proj", false, latents), indexer.head_dim, positions, turn).value());
  const Matrix weights = held_constant(project(module + "scorer.weights_proj", false, x).value());
  return picked_by_scores(indexer, rate, queries, keys, weights);
}

Var Layers::compressed_attention(const std::string& module, int layer, const Var& x,
                                 const std::vector<double>& positions, double length,
                                 const PicksOfLayers& given) const {
  const CompressedSettings& settings = config_.compressed;
  const int size = config_.head_dim, heads = config_.num_attention_heads, tokens = static_cast<int>(x.rows());
  const int rate = settings.rates[static_cast<std::size_t>(layer)];
  const RopeOptions turn = rotation(layer, length);
  const Var latents = norm(module + "q_a_norm", project(module + "q_a_proj", false, x));
  const Var queries =
      rope_last(plainly_normed(project(module + "q_b_proj", false, latents), size), size, positions, turn);
  Var keys =
      rope_last(norm(module + "kv_norm", project(module + "kv_proj", false, x)), size, positions, turn);
  const bool has_blocks = rate > 0 && tokens >= rate;
  std::vector<std::vector<int>> blocks(static_cast<std::size_t>(tokens));
  if (has_blocks) {
    keys = concat_rows({keys, block_keys(module + "compressor.", layer, size, x, positions, turn)});
    for (int t = 0; t < tokens; ++t) blocks[static_cast<std::size_t>(t)] = numbers(0, (t + 1) / rate);
    if (settings.overlaps[static_cast<std::size_t>(layer)])
      blocks = with_given(picked_blocks(module + "compressor.indexer.", layer, x, latents, positions, turn),
                          given, layer);
  }
  AttentionOptions options;
  options.query_heads = heads;
  options.key_value_heads = 1;
  options.scale = config_.attention_scale > 0.0 ? config_.attention_scale : 1.0 / std::sqrt(Number{1} * size);
  for (int t = 0; t < tokens; ++t) {
    const int first = std::max(0, t - settings.window + 1);
    std::vector<int> seen = numbers(first, t - first + 1);
    for (const int block : blocks[static_cast<std::size_t>(t)]) seen.push_back(tokens + block);
    options.seen.push_back(std::move(seen));
  }
  const Var mixed = causal_attention(queries, keys, keys, parameter(module + "sinks"), options);
  std::vector<double> back;
  for (const double position : positions) back.push_back(-position);
  const Var turned = rope_last(mixed, size, back, turn);
  const Index width = Index{heads} * size / settings.o_groups;
  std::vector<Var> groups;  // transposed
  for (int group = 0; group < settings.o_groups; ++group) {
    const Var of_heads = slice_columns(turned, group * width, width);
    const std::vector<int> rows = numbers(group * settings.o_lora_rank, settings.o_lora_rank);
    Var y = linear(of_heads, gather_rows(parameter(module + "o_a_proj.weight"), rows));
    if (const auto adapter = config_.adapters.find(module + "o_a_proj"); adapter != config_.adapters.end()) {
      const Var inner = linear(of_heads, parameter(module + "o_a_proj.lora_A.weight"));
      const Var& b = parameter(module + "o_a_proj.lora_B.weight");
      y = add(y, scale(linear(inner, gather_rows(b, rows)), adapter->second.scale));
    }
    groups.push_back(transpose(y));
  }
  return project(module + "o_b_proj", false, transpose(concat_rows(groups)));
}

ExpertsOfTokens Layers::hashed_experts(const std::string& module, const std::vector<int>& tokens) const {
  const Matrix& table = parameter(module + "gate.tid2eid").value();
  ExpertsOfTokens all;
  for (const int token : tokens) {
    std::vector<int> experts;
    for (Index i = 0; i < table.cols(); ++i)
      experts.push_back(static_cast<int>(std::lround(static_cast<double>(real_part(table(token, i))))));
    const bool are_there = std::all_of(experts.begin(), experts.end(), [&](int expert) {
      return expert >= 0 && expert < config_.mixture.num_experts;
    });
    require(are_there, "hashed_experts", "expected experts of token " + std::to_string(token));
    all.push_back(std::move(experts));
  }
  return all;
}

}  // namespace streambp::STREAMBP_REFERENCE
