#include "reference/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// f of pair i for the base `theta`.
Number plain(Number theta, int i, int rotary_dim) {
  return std::pow(theta, Number{-2} * i / rotary_dim);
}

Number dynamic(const RopeSettings& rope, int i, int rotary_dim, Number length) {
  require(rotary_dim > 2, "rope", "expected more than one pair for dynamic scaling");
  const Number context = rope.original_max_position_embeddings;
  const Number stretch = rope.factor * std::max(length, context) / context - (rope.factor - Number{1});
  const Number d = rotary_dim;
  return plain(rope.theta * std::pow(stretch, d / (d - 2.0)), i, rotary_dim);
}

/// How many turns the pair makes over the context of pre-training decides. Few turns: a slow pair, whose
/// larger angles the model has not seen, is slowed down; many turns: a fast pair stays; between them, s goes
/// from 0 to 1.
Number llama3(const RopeSettings& rope, Number f) {
  const Number turns = rope.original_max_position_embeddings * f / (2 * std::numbers::pi_v<Number>);
  const Number low = rope.low_freq_factor;
  const Number high = rope.high_freq_factor;
  const Number s = std::clamp<Number>((turns - low) / (high - low), 0, 1);
  return (1.0 - s) * f / rope.factor + s * f;
}

/// The same thought as llama3's, but the ramp is even in the number of the pair, not in its turns.
Number yarn(const RopeSettings& rope, int i, int rotary_dim) {
  const auto pair_with = [&](Number turns) {
    return rotary_dim *
           std::log(rope.original_max_position_embeddings / (turns * 2 * std::numbers::pi_v<Number>)) /
           (2.0 * std::log(Number{rope.theta}));
  };
  Number low = pair_with(rope.beta_fast);
  Number high = pair_with(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max<Number>(low, 0);
  high = std::min<Number>(high, rotary_dim - 1);
  if (low == high) high += 0.001;
  const Number s = std::clamp<Number>((i - low) / (high - low), 0, 1);
  const Number f = plain(rope.theta, i, rotary_dim);
  return s * f / rope.factor + (1.0 - s) * f;
}

Number longrope(const RopeSettings& rope, int i, int rotary_dim, Number length) {
  const auto pairs = static_cast<std::size_t>(rotary_dim / 2);
  require(rope.short_factor.size() == pairs && rope.long_factor.size() == pairs, "rope",
          "expected " + std::to_string(pairs) + " short and long factors, one for every pair, got " +
              std::to_string(rope.short_factor.size()) + " and " + std::to_string(rope.long_factor.size()));
  const bool is_long = length > rope.original_max_position_embeddings;
  const Number divisor = (is_long ? rope.long_factor : rope.short_factor)[static_cast<std::size_t>(i)];
  return plain(rope.theta, i, rotary_dim) / divisor;
}

Number proportional(const RopeSettings& rope, int i, int rotary_dim) {
  const Number share = rope.partial_rotary_factor;
  require(share >= 0.0 && share <= 1.0, "rope",
          "expected a partial_rotary_factor from 0 to 1, got " + std::to_string(share));
  return i < std::floor(share * rotary_dim / 2.0) ? plain(rope.theta, i, rotary_dim) / rope.factor : 0.0;
}

Number frequency(const RopeSettings& rope, int i, int rotary_dim, Number length) {
  const Number f = plain(rope.theta, i, rotary_dim);
  switch (rope.type) {
    case RopeType::kDefault:
      return f;
    case RopeType::kLinear:
      return f / rope.factor;
    case RopeType::kDynamic:
      return dynamic(rope, i, rotary_dim, length);
    case RopeType::kLlama3:
      return llama3(rope, f);
    case RopeType::kYarn:
      return yarn(rope, i, rotary_dim);
    case RopeType::kLongrope:
      return longrope(rope, i, rotary_dim, length);
    case RopeType::kProportional:
      return proportional(rope, i, rotary_dim);
  }
  throw std::invalid_argument("rope: no such type");
}

}  // namespace

std::vector<Number> rope_inverse_frequencies(const RopeSettings& rope, int rotary_dim, double length) {
  require(rotary_dim > 0 && rotary_dim % 2 == 0, "rope",
          "expected an even number of entries to turn, got " + std::to_string(rotary_dim));
  require(rope.theta > 0.0 && rope.factor > 0.0, "rope", "expected a positive theta and factor");
  const bool knows_context = rope.type != RopeType::kDefault && rope.type != RopeType::kLinear &&
                             rope.type != RopeType::kProportional;
  require(!knows_context || rope.original_max_position_embeddings > 0.0, "rope",
          "expected the context length of pre-training");
  std::vector<Number> frequencies;
  for (int i = 0; i < rotary_dim / 2; ++i) frequencies.push_back(frequency(rope, i, rotary_dim, length));
  return frequencies;
}

}  // namespace streambp::STREAMBP_REFERENCE
