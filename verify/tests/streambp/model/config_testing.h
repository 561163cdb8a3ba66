// What the tests of config.json share: small configs, changes to them, and checks of refusals.
#pragma once

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "streambp/model/config/config.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {

inline const std::filesystem::path kModels = std::filesystem::path(STREAMBP_GOLDENS) / "models";

/// A small model as transformers 4 writes it.
inline nlohmann::json small_config(const std::string& family) {
  return {{"model_type", family},      {"vocab_size", 101},      {"hidden_size", 48},
          {"intermediate_size", 44},   {"num_hidden_layers", 3}, {"num_attention_heads", 6},
          {"num_key_value_heads", 2},  {"head_dim", 8},          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},      {"rope_theta", 500.0},    {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}, {"pad_token_id", nullptr}};
}

inline nlohmann::json with(nlohmann::json config, const nlohmann::json& changes) {
  config.update(changes);
  return config;
}

inline nlohmann::json without(nlohmann::json config, const std::string& key) {
  config.erase(key);
  return config;
}

inline Config parse(const nlohmann::json& config) {
  return parse_config(config.dump(), "test.json");
}

inline bool has_parameter(const Config& config, const std::string& name, const std::vector<int64_t>& shape) {
  const auto shapes = parameter_shapes(config);
  return std::any_of(shapes.begin(), shapes.end(), [&](const ParameterShape& parameter) {
    return parameter.name == name && parameter.shape == shape;
  });
}

/// Rope settings of which the rest is as by default.
inline RopeSettings rope_settings(RopeType type, double theta, double factor = 1.0, int64_t original = 0) {
  RopeSettings rope;
  rope.type = type;
  rope.theta = theta;
  rope.factor = factor;
  rope.original_max_position_embeddings = original;
  return rope;
}

/// Success if `config` is refused with a message that names the file and contains every one of `parts`.
template <typename... Parts>
testing::AssertionResult refuses(const nlohmann::json& config, const Parts&... parts) {
  return refused([&] { parse(config); }, "test.json: ", parts...);
}

}  // namespace streambp
