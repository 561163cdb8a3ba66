// The types of rotary embedding that config.json may name, and the keys of each.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp {

struct KnownType {
  const char* name;
  RopeType type;
  std::vector<std::string_view> keys;  // beyond those that every type has
};

inline const std::array<KnownType, 7>& known_types() {
  static const std::array<KnownType, 7> kTypes = {{
      {"default", RopeType::kDefault, {}},
      {"linear", RopeType::kLinear, {"factor"}},
      {"dynamic", RopeType::kDynamic, {"factor", "original_max_position_embeddings"}},
      {"llama3",
       RopeType::kLlama3,
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
      {"yarn",
       RopeType::kYarn,
       {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
        "attention_factor", "mscale", "mscale_all_dim"}},
      {"longrope",
       RopeType::kLongrope,
       {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"}},
      {"proportional", RopeType::kProportional, {"factor"}},
  }};
  return kTypes;
}

}  // namespace streambp
