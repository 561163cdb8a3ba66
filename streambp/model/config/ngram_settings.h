// Embeddings of n-grams of tokens that layers add to their streams (Qwen4-Exp's Per-Layer Embeddings), under
// Hugging Face's names where it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace streambp {

/// Each module has a table with rows for several heads, which hash the last 2, 3, ... `size` tokens.
struct NgramSettings {
  /// Of each layer: the number of its module, from 0 on; -1: it has none. Empty: no layer has one.
  std::vector<int64_t> modules = {};
  int64_t size = 0;  // ngram_size
  int64_t heads_per_ngram = 0;
  int64_t embed_dim = 0;    // ple_embed_dim: entries of all heads
  int64_t conv_kernel = 0;  // ple_conv_kernel_size: tokens that the convolution sees, `size` apart
  int64_t vocab_base = 0;   // ngram_vocab_size_base: no head has fewer rows
  int64_t divisor = 1;      // make_ngram_vocab_size_divisible_by: of a table's rows
  int64_t seed = 0;
  int64_t parts = 1;     // split_ngram_parts: of a table in files
  int64_t boundary = 0;  // eos_token_id: n-grams of what is behind it see none of what is before

  bool are_in(int64_t layer) const { return !modules.empty() && modules[static_cast<size_t>(layer)] >= 0; }
  int64_t heads() const { return (size - 1) * heads_per_ngram; }
  /// Rows before a chunk that the convolution sees.
  int64_t tail_rows() const { return (conv_kernel - 1) * size; }

  bool operator==(const NgramSettings&) const = default;
};

/// How many rows of the table each head of a module has: distinct primes of all modules.
std::vector<int64_t> ngram_head_rows(const NgramSettings& settings, int64_t module);

/// Rows of a module's table, those that no head has included.
int64_t ngram_table_rows(const NgramSettings& settings, int64_t module);

/// What the tokens of an n-gram are multiplied by, the last one first: `size` odd numbers, with which no
/// product of a token below `vocab_size` is beyond 2^63.
std::vector<int64_t> ngram_multipliers(const NgramSettings& settings, int64_t module, int64_t vocab_size);

}  // namespace streambp
