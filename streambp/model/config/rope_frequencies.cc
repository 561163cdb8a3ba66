#include "streambp/model/config/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace streambp {
namespace {

// Long wavelengths are stretched by the factor, short ones kept, those between blended.
double llama3_frequency(const RopeSettings& rope, double frequency) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Neural tangent kernel scaling: the base grows with the length, so that the longest wavelength stretches by
// as much as the length exceeds the original one.
double dynamic_theta(const RopeSettings& rope, double dim, int64_t length) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double stretch = std::max(static_cast<double>(length), original) / original;
  return rope.theta * std::pow(rope.factor * stretch - (rope.factor - 1.0), dim / (dim - 2.0));
}

// YaRN (Peng et al. 2023): pairs that turn more than beta_fast times within the original length are kept,
// those that turn less than beta_slow times are stretched, and a linear ramp over the pairs blends between.
class YarnRamp {
 public:
  YarnRamp(const RopeSettings& rope, double dim) {
    low_ = pair_of(rope, dim, rope.beta_fast);
    high_ = pair_of(rope, dim, rope.beta_slow);
    if (rope.truncate) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, dim - 1.0);
    if (low_ == high_) high_ += 0.001;
  }

  // How much of pair `i` is stretched, from 0 to 1.
  double stretched(double i) const { return std::clamp((i - low_) / (high_ - low_), 0.0, 1.0); }

 private:
  // The pair, a real number, that completes `rotations` rotations within the original length.
  static double pair_of(const RopeSettings& rope, double dim, double rotations) {
    const auto original = static_cast<double>(rope.original_max_position_embeddings);
    return dim * std::log(original / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  }

  double low_;
  double high_;
};

}  // namespace

std::vector<double> rope_inverse_frequencies(const RopeSettings& rope, int64_t rotary_dim, int64_t length) {
  const auto dim = static_cast<double>(rotary_dim);
  const double theta = rope.type == RopeType::kDynamic ? dynamic_theta(rope, dim, length) : rope.theta;
  std::vector<double> frequencies(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
  }
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeType::kLlama3:
      for (double& frequency : frequencies) frequency = llama3_frequency(rope, frequency);
      break;
    case RopeType::kProportional: {
      const auto turning = static_cast<std::size_t>(rope.proportion * dim / 2.0);
      for (std::size_t i = 0; i < frequencies.size(); ++i)
        frequencies[i] = i < turning ? frequencies[i] / rope.factor : 0.0;
      break;
    }
    case RopeType::kYarn: {
      const YarnRamp ramp(rope, dim);
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double stretched = ramp.stretched(static_cast<double>(i));
        frequencies[i] *= stretched / rope.factor + (1.0 - stretched);
      }
      break;
    }
    case RopeType::kLongrope: {
      const bool is_long = length > rope.original_max_position_embeddings;
      const std::vector<double>& factors = is_long ? rope.long_factor : rope.short_factor;
      for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
      break;
    }
  }
  return frequencies;
}

}  // namespace streambp
