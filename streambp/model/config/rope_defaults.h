// The rotary embedding of families whose class in transformers has one for files that have none.
#pragma once

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {

inline constexpr const char* kQueryScaleBeta = "llama_4_scaling_beta";

// The rope of a Ministral 3 whose file has none: its class's.
inline const nlohmann::json& ministral3_rope() {
  static const nlohmann::json kRope = {{"rope_type", "yarn"},   {"rope_theta", 1e6},
                                       {"factor", 16.0},        {"original_max_position_embeddings", 16384u},
                                       {"beta_fast", 32.0},     {"beta_slow", 1.0},
                                       {"mscale_all_dim", 1.0}, {"mscale", 1.0},
                                       {kQueryScaleBeta, 0.1}};
  return kRope;
}

// The rope of the layers of a Gemma 4 that see all tokens, where its file has none: its class's.
inline const nlohmann::json& gemma4_rope() {
  static const nlohmann::json kRope = {
      {"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}};
  return kRope;
}

// The same of an LFM3.
inline const nlohmann::json& lfm3_rope() {
  static const nlohmann::json kRope = {
      {"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}, {"rope_theta", 1e6}};
  return kRope;
}

// The rope of a GPT-OSS whose file has none: its class's.
inline const nlohmann::json& gpt_oss_rope() {
  static const nlohmann::json kRope = {
      {"rope_type", "yarn"}, {"factor", 32.0},   {"original_max_position_embeddings", 4096u},
      {"beta_fast", 32.0},   {"beta_slow", 1.0}, {"truncate", false}};
  return kRope;
}

// The rope of a Mistral Large 4 whose file has none: its class's.
inline const nlohmann::json& mistral_large4_rope() {
  static const nlohmann::json kRope = {{"rope_type", "yarn"},    {"rope_theta", 1e4},
                                       {"factor", 2048.0},       {"original_max_position_embeddings", 512u},
                                       {"beta_fast", 32.0},      {"beta_slow", 1.0},
                                       {"attention_factor", 1.0}};
  return kRope;
}

// The rope of a Mistral 4 whose file has none: its class's.
inline const nlohmann::json& mistral4_rope() {
  static const nlohmann::json kRope = {{"rope_type", "yarn"},   {"rope_theta", 1e4},
                                       {"factor", 128.0},       {"original_max_position_embeddings", 8192u},
                                       {"beta_fast", 32.0},     {"beta_slow", 1.0},
                                       {"mscale_all_dim", 1.0}, {"mscale", 1.0},
                                       {kQueryScaleBeta, 0.1}};
  return kRope;
}

inline const nlohmann::json& class_rope(ClassRope rope) {
  if (rope == ClassRope::kMistral4) return mistral4_rope();
  if (rope == ClassRope::kMistralLarge4) return mistral_large4_rope();
  if (rope == ClassRope::kGemma4) return gemma4_rope();
  if (rope == ClassRope::kLfm3) return lfm3_rope();
  return rope == ClassRope::kGptOss ? gpt_oss_rope() : ministral3_rope();
}

}  // namespace streambp
