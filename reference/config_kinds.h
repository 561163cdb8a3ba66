// Settings of kinds of layers that few families have.
#pragma once

#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Latent attention (DeepSeek-V2, 2024, https://arxiv.org/abs/2405.04434): keys and values of all heads are
/// projected up from one small vector; see Layers::latent_attention.
struct LatentAttentionSettings {
  int q_lora_rank = 0;       // of the queries' vector; 0: they are projected at once
  int kv_lora_rank = 0;      // of the keys' and values'; 0: the model has ordinary attention
  int qk_nope_head_dim = 0;  // the entries of a head that do not rotate
  int qk_rope_head_dim = 0;  // those that do, whose key all heads share; 0: none, where no layer rotates
  int v_head_dim = 0;
  double mscale_all_dim = 0.0;  // with a rotation for long contexts, scores are multiplied by the square of
                                // 0.1 mscale_all_dim ln(factor) + 1
  double norm_eps = 1e-6;       // of the norms of latents
  /// Mistral Large 4: the frequencies of the rotation are f_i e^{alpha_i} with trained alpha, queries of head
  /// h are multiplied by scale_h ln(1 + position) + bias_h with trained numbers, and a layer that does not
  /// rotate has heads of qk_nope_head_dim + qk_rope_head_dim entries of its latents and no common key.
  bool trained_positions = false;
  std::vector<int> sources =
      {};  // of each layer the one whose latents and common key it reads. Empty: its own
};

/// Sparse attention (DeepSeek-V3.2): each token's attention sees those earlier tokens alone that an indexer
/// scores highest; see Layers::latent_attention.
struct IndexerSettings {
  int topk = 0;              // how many at most; 0: there are no indexers
  int heads = 0;             // of the indexer
  int head_dim = 0;          // of its queries and of its one key; the first qk_rope_head_dim entries rotate
  bool interleaved = false;  // GLM-5: they do so in pairs of neighbours
  std::vector<bool> shared = {};  // GLM-5, of each layer: it sees what the nearest layer below that is not
                                  // shared has picked. Empty: none is
  bool rotates_last = false;      // Hunyuan 4: the last qk_rope_head_dim entries rotate, not the first
  double norm_eps = 1e-6;         // of the norm of its key
  bool reads_hidden = false;  // Mistral Large 4: its queries are of what attention reads, normed (layer_norm)
                              // and multiplied as attention's are, and rotate where those do
  int block = 0;         // MiniMax M3, beside ordinary attention: each of its heads picks topk blocks of as
                         // many tokens (Layers::attention); 0: it picks tokens
  int local_blocks = 0;  // of which the last ones, this many, are picked whatever their scores
  std::vector<bool> layers = {};  // MiniMax M3, of each layer: whether it has an indexer
  int group = 0;          // GLM-5.3: it picks groups of as many neighbours, topk of them at most; 0: tokens
  bool of_means = false;  // Qwen4-Exp: likewise beside ordinary attention, by the means of the groups' keys;
                          // see Layers::attention
};

/// DeepSeek V4's attention (transformers, modeling_deepseek_v4.py); see Layers::compressed_attention.
struct CompressedSettings {
  int q_lora_rank = 0;          // of the queries' vector; 0: the model has other attention
  int window = 0;               // how many tokens a query sees, itself included
  std::vector<int> rates = {};  // of each layer: tokens of a block that a compressor makes one key; 0: none
  std::vector<bool> overlaps = {};    // of each layer with blocks: they overlap, and an indexer picks them
  int o_groups = 0, o_lora_rank = 0;  // the first of two projections of the output is one of each group
};

/// Hyper-connections (Zhu et al. 2024, https://arxiv.org/abs/2409.19606) as Hunyuan 4, DeepSeek V4 and
/// GLM-5.3 have them; see Layers::streams_read.
struct HyperSettings {
  int streams = 0;  // of every token; 0: one, which each half of a layer reads and adds to
  double magnitude = 1.0;
  double eps = 0.0;
  bool head_reads_mean = false;  // GLM-5.3: the last norm reads the mean of the streams, without weights
  int sinkhorn_iters = 0;  // DeepSeek V4: streams are mixed by a matrix that is normalised as often; 0: not
  int lowrank = 0;  // Qwen4-Exp: what is read and given are maps of all streams; see Layers::low_rank_read
};

/// Embeddings of n-grams that Qwen4-Exp's layers add to their streams; see Layers::of_ngrams.
struct NgramSettings {
  std::vector<int> modules = {};  // of each layer: the number of its module, from 0 on; -1: none. Empty: none
  int size = 0;                   // tokens of the longest n-gram
  int heads_per_ngram = 0;        // of each length from 2 on
  int embed_dim = 0;              // entries of all heads
  int conv_kernel = 0;            // taps of the convolution, which are `size` tokens apart
  int vocab_base = 0;             // no head has fewer rows
  int divisor = 1;                // of the rows of a table
  long long seed = 0;
  int boundary = 0;  // the token behind which an n-gram sees nothing of what is before
};

/// Transformer blocks that layers run in turn before their state space, Zamba 2's; see Layers::shared_block.
struct SharedBlockSettings {
  std::vector<bool> layers = {};    // of each layer: whether it runs one. Empty: none does
  int count = 1;                    // of blocks: the layers that run one have block 0, 1, ..., 0, 1, ...
  int adapter_rank = 0;             // of each such layer's own adapter of gate_up_proj ...
  bool attention_adapters = false;  // ... and of q_proj, k_proj and v_proj
};

}  // namespace streambp::STREAMBP_REFERENCE
