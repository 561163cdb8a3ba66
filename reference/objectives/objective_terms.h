// What the objectives share: which token belongs to which sequence, sums over them, and ratios of
// probabilities.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "reference/model.h"

namespace streambp::STREAMBP_REFERENCE {

inline constexpr Number kInfinity = std::numeric_limits<Number>::infinity();

/// The sequence of every scored token, in order. Sequences without scored tokens count, so that a batch means
/// the same whatever of it is scored.
struct TokenLayout {
  int sequences = 0;
  std::vector<int> sequence_of_token;

  std::size_t tokens() const { return sequence_of_token.size(); }
};

/// The number of scored tokens of every sequence.
std::vector<Number> token_counts(const TokenLayout& layout);

/// Per-token numbers summed over every sequence.
std::vector<Number> sum_by_sequence(const TokenLayout& layout, const std::vector<Number>& per_token);

/// Per-sequence numbers, given to each of the sequence's tokens.
std::vector<Number> spread(const TokenLayout& layout, const std::vector<Number>& per_sequence);

/// Throws std::invalid_argument unless every token's sequence is from 0 to sequences - 1.
void require_valid(const std::string& objective, const TokenLayout& layout);

/// Throws std::invalid_argument unless `x`, called `name` in the message, has `size` entries.
void require_size(const std::string& objective, const std::string& name, const std::vector<Number>& x,
                  std::size_t size);

/// Throws std::invalid_argument unless low <= x <= high and x is finite.
void require_range(const std::string& objective, const std::string& name, Number x, Number low, Number high);

/// Numbers as a column [n, 1] that has no gradient.
Var constant(Tape& tape, const std::vector<Number>& x);

/// The value of `x` with nothing before it: the gradient ends here.
Var detached(Tape& tape, const Var& x);

/// The mean of all entries of x [n, 1], 0 if n is.
Var mean(const Var& x);

/// sum_i weights_i x_i of x [n, 1].
Var weighted_sum(Tape& tape, const Var& x, const std::vector<Number>& weights);

/// Sums over the tokens of every sequence, [M, 1] -> [sequences, 1].
Var sequence_sums(const Var& x, const TokenLayout& layout);

/// The same over the number of the sequence's tokens, or over 1 where it has none.
Var sequence_means(Tape& tape, const Var& x, const TokenLayout& layout);

/// The largest logarithm of a ratio of probabilities that is followed.
inline constexpr Number kLargestLogRatio = 80.0;

/// min(log_ratio, 80). A ratio of e^80 is far outside of anything these losses are used for, and its double
/// is far from overflow; above it the ratio is held constant, so that loss and gradients stay finite whatever
/// the probabilities.
Var capped(const Var& log_ratio);

/// Schulman's estimate "k3" of KL(policy || reference) from one token's log-probabilities, never negative
/// (http://joschu.net/blog/kl-approx.html), with d = capped(reference - policy):   e^d - d - 1
Var k3(const Var& reference, const Var& policy);

}  // namespace streambp::STREAMBP_REFERENCE
