// How fast the pairs of a head rotate: the rotary embedding's frequencies and what is done to them for long
// contexts.
#pragma once

#include <vector>

#include "reference/scalar.h"

namespace streambp::STREAMBP_REFERENCE {

enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongrope, kProportional };

/// Settings of the rotation, under Hugging Face's names.
struct RopeSettings {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                          // linear, dynamic, llama3, yarn, proportional
  double low_freq_factor = 1.0;                 // llama3
  double high_freq_factor = 4.0;                // llama3
  double original_max_position_embeddings = 0;  // dynamic, llama3, yarn, longrope
  double beta_fast = 32.0;                      // yarn
  double beta_slow = 1.0;                       // yarn
  bool truncate = true;                         // yarn
  double attention_factor = 1.0;                // yarn, longrope: cosines and sines are multiplied by it
  std::vector<double> short_factor = {};        // longrope, one for every pair
  std::vector<double> long_factor = {};         // longrope, one for every pair
  double partial_rotary_factor = 1.0;           // proportional: the share of the pairs that rotate
};

/// The d / 2 frequencies of the rotation of d = rotary_dim entries, f_i = theta^(-2i / d), changed for long
/// contexts so (transformers, modeling_rope_utils.py, has all of these). With c the context length
/// of pre-training, `original_max_position_embeddings`, and `length` one more than the greatest position in
/// the batch:
/// - linear: f / factor (Chen et al. 2023, https://arxiv.org/abs/2306.15595).
/// - dynamic: theta becomes theta (factor m / c - (factor - 1))^(d / (d - 2)) with m = max(length, c), so
///   that a batch within c is left alone.
/// - llama3: with the wavelength 2 pi / f, f / factor where the wavelength is over c / low_freq_factor, f
///   where it is under c / high_freq_factor, and between them (1 - s) f / factor + s f with
///   s = (c / wavelength - low) / (high - low).
/// - yarn (Peng et al. 2023, https://arxiv.org/abs/2309.00071): the pair that makes n turns over c is
///   i(n) = d ln(c / (2 pi n)) / (2 ln theta). With low = max(i(beta_fast), 0), high = min(i(beta_slow),
///   d - 1), rounded down and up before that if `truncate`, and the ramp s = (i - low) / (high - low) kept
///   between 0 and 1 (high is 0.001 more where both are equal):   s f / factor + (1 - s) f
/// - longrope (Ding et al. 2024, https://arxiv.org/abs/2402.13753): f_i / long_factor[i] if length > c, else
///   f_i / short_factor[i].
/// - proportional (Gemma 4): f_i / factor for the first pairs, floor(partial_rotary_factor d / 2) of them,
/// and
///   0 for the others, so that d is a whole head and the entries that rotate are the first of both its
///   halves.
/// Throws std::invalid_argument if d is not even and positive, a setting that divides is not positive,
/// dynamic scaling has fewer than two pairs to spread over, longrope has not one factor for every pair, or
/// partial_rotary_factor is not from 0 to 1.
std::vector<Number> rope_inverse_frequencies(const RopeSettings& rope, int rotary_dim, double length);

}  // namespace streambp::STREAMBP_REFERENCE
