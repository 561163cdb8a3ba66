#include "reference/objectives/objective_terms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {

std::vector<Number> token_counts(const TokenLayout& layout) {
  return sum_by_sequence(layout, std::vector<Number>(layout.tokens(), 1.0));
}

std::vector<Number> sum_by_sequence(const TokenLayout& layout, const std::vector<Number>& per_token) {
  require_valid("sum_by_sequence", layout);
  require_size("sum_by_sequence", "numbers", per_token, layout.tokens());
  std::vector<Number> sums(static_cast<std::size_t>(layout.sequences), 0.0);
  for (std::size_t t = 0; t < per_token.size(); ++t) {
    sums[static_cast<std::size_t>(layout.sequence_of_token[t])] += per_token[t];
  }
  return sums;
}

std::vector<Number> spread(const TokenLayout& layout, const std::vector<Number>& per_sequence) {
  require_valid("spread", layout);
  require_size("spread", "numbers", per_sequence, static_cast<std::size_t>(layout.sequences));
  std::vector<Number> result;
  for (int sequence : layout.sequence_of_token) {
    result.push_back(per_sequence[static_cast<std::size_t>(sequence)]);
  }
  return result;
}

void require_valid(const std::string& objective, const TokenLayout& layout) {
  for (int sequence : layout.sequence_of_token) {
    require(sequence >= 0 && sequence < layout.sequences, objective,
            "expected sequences from 0 to " + std::to_string(layout.sequences - 1) + ", got " +
                std::to_string(sequence));
  }
}

void require_size(const std::string& objective, const std::string& name, const std::vector<Number>& x,
                  std::size_t size) {
  require(x.size() == size, objective,
          "expected " + std::to_string(size) + " " + name + ", got " + std::to_string(x.size()));
}

void require_range(const std::string& objective, const std::string& name, Number x, Number low, Number high) {
  require(x >= low && x <= high && std::isfinite(x), objective,
          "expected " + name + " from " + std::to_string(low) + " to " + std::to_string(high) + ", got " +
              std::to_string(x));
}

Var constant(Tape& tape, const std::vector<Number>& x) {
  Matrix column(static_cast<Index>(x.size()), 1);
  std::copy(x.begin(), x.end(), column.data());
  return tape.leaf(std::move(column));
}

Var detached(Tape& tape, const Var& x) {
  return tape.leaf(held_constant(x.value()));
}

Var mean(const Var& x) {
  return scale(sum(x), 1.0 / std::max(static_cast<Number>(x.rows()), Number{1}));
}

Var weighted_sum(Tape& tape, const Var& x, const std::vector<Number>& weights) {
  return sum(mul(x, constant(tape, weights)));
}

Var sequence_sums(const Var& x, const TokenLayout& layout) {
  return scatter_rows(x, layout.sequence_of_token, layout.sequences);
}

Var sequence_means(Tape& tape, const Var& x, const TokenLayout& layout) {
  std::vector<Number> reciprocals = token_counts(layout);
  for (Number& count : reciprocals) count = 1.0 / std::max(count, Number{1});
  return mul(sequence_sums(x, layout), constant(tape, reciprocals));
}

Var capped(const Var& log_ratio) {
  return clip(log_ratio, -kInfinity, kLargestLogRatio);
}

Var k3(const Var& reference, const Var& policy) {
  const Var d = capped(sub(reference, policy));
  return offset(sub(exp(d), d), -1.0);
}

}  // namespace streambp::STREAMBP_REFERENCE
