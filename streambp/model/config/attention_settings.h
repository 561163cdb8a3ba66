// Settings of attention other than with keys and values of heads, and of several residual streams, under
// Hugging Face's names where it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace streambp {

/// Latent attention (DeepSeek V3): keys and values of all heads are projected up from one small vector a
/// token, next to one rotated key for all heads.
struct LatentAttentionSettings {
  int64_t q_lora_rank = 0;   // queries are projected through as many numbers; 0: at once
  int64_t kv_lora_rank = 0;  // of that vector; 0: the model has ordinary attention
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  double norm_eps = 1e-6;  // of the norms of latents; mistral_large4_text, glm5_next_text: rms_norm_eps
  /// mistral_large4_text: queries are multiplied by trained numbers of their head, one of them times
  /// log(1 + position) (softmax_scaling); the rotary frequencies are, by e to the power of trained numbers
  /// (model.rotary_emb.alpha); and in layers that don't rotate a head's key is of latents alone, as many
  /// entries.
  bool trained_positions = false;
  /// mistral_large4_text (kv_source_layers): of each layer the one whose latents and rotated keys it reads,
  /// itself or one below that rotates as it does. Empty: each its own.
  std::vector<int64_t> sources = {};

  bool shares(int64_t layer) const {
    return !sources.empty() && sources[static_cast<size_t>(layer)] != layer;
  }

  bool operator==(const LatentAttentionSettings&) const = default;
};

/// Sparse attention (DeepSeek V3.2, GLM-5, MiniMax M3): beside latent, or ordinary, attention a layer has an
/// indexer, a few heads with keys of their own, by whose scores each row picks the earlier rows that its
/// attention sees. No gradient reaches a choice, so its parameters are never trained.
struct IndexerSettings {
  int64_t topk = 0;           // rows that a row sees at most; 0: the model has no indexers
  int64_t heads = 0;          // index_n_heads
  int64_t head_dim = 0;       // index_head_dim
  bool interleaved = false;   // glm_moe_dsa: entries 2i and 2i + 1 of the indexer's heads rotate together
  std::vector<bool> shared;   // glm_moe_dsa, hy_v4, of each layer: it sees what a layer below has picked
  bool rotates_last = false;  // hy_v4: of its heads the last qk_rope_head_dim entries rotate, not the first
  double norm_eps = 1e-6;     // of the norm of its keys; hy_v4: rms_norm_eps
  /// mistral_large4_text: queries are of hidden states, normed, and not of the queries' latents; they are
  /// scaled as attention's are, and rotate where those do.
  bool reads_hidden = false;
  /// minimax_m3_vl_text (index_block_size): rows of the blocks of keys that are picked, topk by each head of
  /// the indexer for its share of the query heads; 0: rows are picked, or what a compressor makes of blocks.
  int64_t block = 0;
  int64_t local_blocks = 0;       // of them, how many of the last ones every row sees
  std::vector<bool> layers = {};  // of each layer: whether it has an indexer; the others see all rows
  /// glm5_next_text (index_kpool): it picks groups of as many neighbouring rows, each made one key by a
  /// softmax of gates, and topk counts these; a row sees its own group's rows up to itself besides. 0: it
  /// picks rows.
  int64_t group = 0;
  /// qwen4_exp_text (indexer_compress_ratio is its group): beside ordinary attention, and a group's key is
  /// the mean of its rows' keys, normed, and turned as its first row is.
  bool of_means = false;

  int64_t rows_of_pick() const { return group > 0 ? group : 1; }

  bool operator==(const IndexerSettings&) const = default;
};

/// DeepSeek V4's attention: keys are values, one head of them for all; a row sees a window, and of what is
/// before it in its sequence blocks of rows, which a compressor makes one row each.
struct CompressedSettings {
  int64_t q_lora_rank = 0;  // queries are projected through as many numbers; 0: the model has other attention
  int64_t window = 0;       // sliding_window
  std::vector<int64_t> rates = {};  // of each layer: rows of a block; 0: the layer sees the window alone
  /// Of each layer with blocks: whether they overlap, and an indexer picks those that a row sees
  /// (compressed_sparse_attention; else heavily_compressed_attention).
  std::vector<bool> overlaps = {};
  int64_t o_groups = 0, o_lora_rank = 0;  // what heads give is projected in groups first, to as many numbers

  int64_t rate_of(int64_t layer) const { return rates[static_cast<size_t>(layer)]; }
  bool overlaps_in(int64_t layer) const { return overlaps[static_cast<size_t>(layer)]; }

  bool operator==(const CompressedSettings&) const = default;
};

/// Hyper-connections (hy_v4, deepseek_v4, glm5_next_text, qwen4_exp_text): a token has several residual
/// streams, which gates of the token itself add up for what attention or MLP reads, and share out what it
/// gives.
struct HyperSettings {
  int64_t streams = 0;     // hc_mult; 0: the model has one residual stream, and no gates
  double magnitude = 2.0;  // hc_magnitude: the gates of what is given are as large at most
  double eps = 1e-6;       // hc_eps: what gates are more than 0
  /// deepseek_v4, glm5_next_text (hc_sinkhorn_iters): streams are mixed before they take their share of what
  /// is given, by a matrix that is divided as often by the sums of its columns, and its rows; 0: they are not
  /// mixed.
  int64_t sinkhorn_iters = 0;
  bool head_reads_mean = false;  // glm5_next_text: the final norm reads the streams' mean, without gates
  /// qwen4_exp_text (hc_lowrank): the rank of the map of all normed streams to a weight of each of their
  /// entries, of which what is read is the mean; 0: a stream has one weight.
  int64_t lowrank = 0;

  bool operator==(const HyperSettings&) const = default;
};

}  // namespace streambp
