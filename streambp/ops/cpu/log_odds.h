// The probability p of a target by its log-odds z = ln(p / (1 - p)) against all other words together. A
// float32 p next to 1 has lost 1 - p, which is what its gradient is made of; z has not.
#pragma once

namespace streambp::cpu {

/// z of a target with logit `target`; others[0]: the largest logit m of the others, others[1]: the logarithm
/// of their sum of exp((x - m) * scale). NaN for a logit of +infinity, as a softmax has it.
inline double log_odds_of(double target, const double* others, double scale) {
  if (target > 1.7976931348623157e308) return __builtin_nan("");
  return (target - others[0]) * scale - others[1];
}

/// ln p.
inline double log_probability_of(double log_odds) {
  return log_odds > 0 ? -__builtin_log1p(__builtin_exp(-log_odds))
                      : log_odds - __builtin_log1p(__builtin_exp(log_odds));
}

/// 1 - p.
inline double complement_of(double log_odds) {
  return 1 / (1 + __builtin_exp(log_odds));
}

}  // namespace streambp::cpu
