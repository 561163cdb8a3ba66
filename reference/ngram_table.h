// Which rows of a table stand for the n-grams that end with each token (transformers, modeling_qwen4_exp.py).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/config_kinds.h"

namespace streambp::STREAMBP_REFERENCE {

/// The table of one module. Head j of n-grams of 2 tokens, then those of 3 and so on, has as many rows as the
/// next prime: of all modules together, those from vocab_base on in their order. The heads' rows are below
/// one another.
struct NgramTable {
  std::vector<std::int64_t> heads;        // how many rows each has
  std::vector<std::int64_t> multipliers;  // of the token itself, the one before it, ...
  Index rows = 0;                         // of all, up to the next multiple of `divisor`
};

/// The multipliers are 2 (z mod h) + 1 with h half of the largest number whose product with vocab_size is in
/// 63 bits, and z the second number of SplitMix64 with the state seed + 10007 module and those that follow.
NgramTable ngram_table(const NgramSettings& settings, int module, int vocab_size);

/// The rows of each token for head `head`: with x_0 the token, x_1 the one before it and so on, the row
///     (m_0 x_0 xor m_1 x_1 xor ... m_{n-1} x_{n-1}) mod rows of the head
/// of those of the head, where x_s is `boundary` if there is no such token, or any of x_1 ... x_s is.
std::vector<int> ngram_rows(const NgramSettings& settings, const NgramTable& table, int head,
                            const std::vector<int>& tokens);

}  // namespace streambp::STREAMBP_REFERENCE
