// Rotary embedding in config.json. transformers 4 has rope_theta next to rope_scaling, transformers 5 has
// everything in rope_parameters; a file may hold both where both say the same.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "streambp/model/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

struct KnownType {
  const char* name;
  RopeType type;
  std::vector<std::string_view> keys;  // beyond those that every type has
};

const std::array<KnownType, 6>& known_types() {
  static const std::array<KnownType, 6> kTypes = {{
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
  }};
  return kTypes;
}

// What the types take from outside their own object.
struct Surroundings {
  const ConfigReader& file;
  const Config& config;
};

std::optional<std::string> type_name(const ConfigReader& object, const char* key, const Config& config) {
  std::optional<std::string> name = object.text(key);
  // Early Phi-3 files have these names for it.
  if (config.family == "phi3" && (name == "su" || name == "yarn")) name = "longrope";
  return name;
}

const KnownType& find_type(const ConfigReader& object, const Config& config) {
  const std::string name = agreed(object, "rope_type", type_name(object, "rope_type", config), "type",
                                  type_name(object, "type", config))
                               .value_or("default");
  const bool phi3 = config.family == "phi3";
  for (const KnownType& known : known_types()) {
    const bool possible = !phi3 || known.type == RopeType::kDefault || known.type == RopeType::kLongrope;
    if (name == known.name && possible) return known;
  }
  object.refuse(object.find("rope_type") != nullptr ? "rope_type" : "type",
                phi3 ? "default or longrope" : "default, linear, dynamic, llama3, yarn or longrope");
}

// original_max_position_embeddings, which Phi-3 has outside the object: there it holds, with the class's
// default where it is absent, whatever the object says.
std::optional<int64_t> original_positions(const ConfigReader& object, const Surroundings& around) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (around.config.family == "phi3" && !around.file.has(kKey)) {
    constexpr int64_t kOfClass = 4096;
    if (object.optional_size(kKey, kMaxPositions).value_or(kOfClass) != kOfClass)
      object.refuse(
          kKey, fmt::format("the key outside, which transformers reads ({} where it is absent)", kOfClass));
    return kOfClass;
  }
  return agreed(object, kKey, object.optional_size(kKey, kMaxPositions), "the one outside",
                around.file.optional_size(kKey, kMaxPositions));
}

void parse_dynamic(const ConfigReader& object, const Surroundings& around, RopeSettings& rope) {
  rope.original_max_position_embeddings = around.config.max_position_embeddings;
  // transformers scales from max_position_embeddings and does not read this key.
  if (original_positions(object, around).value_or(rope.original_max_position_embeddings) !=
      rope.original_max_position_embeddings) {
    object.refuse("original_max_position_embeddings",
                  fmt::format("max_position_embeddings ({}) with rope type dynamic",
                              rope.original_max_position_embeddings));
  }
  if (around.config.rotary_dim < 4) {
    around.file.refuse("head_dim", "an even number of at least 4 with rope type dynamic");
  }
}

void parse_llama3(const ConfigReader& object, RopeSettings& rope) {
  rope.low_freq_factor = object.positive("low_freq_factor", 0.0);
  rope.high_freq_factor = object.number("high_freq_factor").value_or(0.0);
  if (!(rope.high_freq_factor > rope.low_freq_factor)) {
    object.refuse("high_freq_factor",
                  fmt::format("a number above low_freq_factor ({})", rope.low_freq_factor));
  }
}

double yarn_attention_factor(const ConfigReader& object, double factor) {
  const double mscale = object.number("mscale").value_or(0.0);
  const double all_dim = object.number("mscale_all_dim").value_or(0.0);
  if (!(mscale >= 0.0)) object.refuse("mscale", "a number of at least 0");
  if (!(all_dim >= 0.0)) object.refuse("mscale_all_dim", "a number of at least 0");
  const bool scaled = mscale != 0.0 && all_dim != 0.0;
  // 0 is as good as absent; one alone is not read by transformers, nor both with attention_factor.
  if (!scaled && mscale != 0.0) object.refuse("mscale", "mscale_all_dim with it");
  if (!scaled && all_dim != 0.0) object.refuse("mscale_all_dim", "mscale with it");
  if (scaled && object.find("attention_factor") != nullptr) {
    object.refuse("mscale", "none with attention_factor");
  }
  const auto of = [&](double m) { return 0.1 * m * std::log(factor) + 1.0; };
  return object.positive("attention_factor", scaled ? of(mscale) / of(all_dim) : of(1.0));
}

void parse_yarn(const ConfigReader& object, const Surroundings& around, RopeSettings& rope) {
  rope.beta_fast = object.positive("beta_fast", rope.beta_fast);
  rope.beta_slow = object.positive("beta_slow", rope.beta_slow);
  if (!(rope.beta_fast >= rope.beta_slow)) {
    object.refuse("beta_fast", fmt::format("at least beta_slow ({})", rope.beta_slow));
  }
  rope.truncate = object.flag("truncate", true);
  if (!rope.truncate && around.config.family == "gemma3_text")
    object.refuse("truncate", "true with gemma3: transformers 4 reads false, 5 does not");
  rope.attention_factor = yarn_attention_factor(object, rope.factor);
  if (!(rope.theta > 1.0)) object.refuse("rope_theta", "a number above 1 with rope type yarn");
}

// LongRoPE (Ding et al. 2024). The factor by which the length grew matters only to the default of
// attention_factor, and follows from the two lengths.
void parse_longrope(const ConfigReader& object, const Surroundings& around, RopeSettings& rope) {
  const auto count = static_cast<std::size_t>(around.config.rotary_dim / 2);
  rope.short_factor = object.positive_list("short_factor", count);
  rope.long_factor = object.positive_list("long_factor", count);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double factor = static_cast<double>(around.config.max_position_embeddings) / original;
  if (object.number("factor").value_or(factor) != factor) {
    object.refuse("factor",
                  fmt::format("max_position_embeddings / original_max_position_embeddings ({})", factor));
  }
  if (rope.original_max_position_embeddings < 2) {
    object.refuse("original_max_position_embeddings", "an integer of at least 2 with rope type longrope");
  }
  rope.attention_factor = object.positive(
      "attention_factor", factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original)));
}

// One rope object; `theta` is the base where the object does not state it.
RopeSettings parse_rope_object(const ConfigReader& object, const Surroundings& around, double theta) {
  static constexpr std::array<std::string_view, 4> kCommon = {"rope_type", "type", "rope_theta",
                                                              "partial_rotary_factor"};
  const KnownType& known = find_type(object, around.config);
  for (const auto& [key, value] : object.object().items()) {
    const bool used = std::find(kCommon.begin(), kCommon.end(), key) != kCommon.end() ||
                      std::find(known.keys.begin(), known.keys.end(), key) != known.keys.end();
    if (!used && !value.is_null()) {
      object.refuse(key, fmt::format("no such key with rope type {}", known.name));
    }
  }
  RopeSettings rope;
  rope.type = known.type;
  rope.theta = theta;
  if (rope.type == RopeType::kDefault) return rope;
  if (rope.type != RopeType::kLongrope) {
    rope.factor = object.number("factor").value_or(0.0);
    if (!(rope.factor >= 1.0)) object.refuse("factor", "a number of at least 1");
  }
  if (rope.type == RopeType::kLinear) return rope;
  if (rope.type == RopeType::kDynamic) {
    parse_dynamic(object, around, rope);
    return rope;
  }
  const std::optional<int64_t> original = original_positions(object, around);
  rope.original_max_position_embeddings =
      original ? *original : object.size("original_max_position_embeddings", kMaxPositions);
  if (rope.type == RopeType::kLlama3) parse_llama3(object, rope);
  if (rope.type == RopeType::kYarn) parse_yarn(object, around, rope);
  if (rope.type == RopeType::kLongrope) parse_longrope(object, around, rope);
  return rope;
}

// The rope that `objects` and the key `theta_key` outside them describe: each may be absent, and those that
// are there have to agree.
RopeSettings parse_rope_of(const std::vector<ConfigReader>& objects, const char* theta_key,
                           double default_theta, const Surroundings& around) {
  std::optional<double> stated = around.file.number(theta_key);
  for (const ConfigReader& object : objects) {
    stated = agreed(object, "rope_theta", object.number("rope_theta"),
                    "the theta stated elsewhere in the file", stated);
  }
  RopeSettings rope;
  rope.theta = stated.value_or(default_theta);
  if (!(rope.theta > 0.0)) {
    const ConfigReader& source =
        around.file.find(theta_key) != nullptr || objects.empty() ? around.file : objects.front();
    source.refuse(&source == &around.file ? theta_key : "rope_theta", "a number above 0");
  }
  std::vector<RopeSettings> parsed;
  for (const ConfigReader& object : objects) parsed.push_back(parse_rope_object(object, around, rope.theta));
  if (parsed.size() == 2 && parsed[0] != parsed[1]) {
    around.file.refuse("rope_scaling", "the same as rope_parameters");
  }
  return parsed.empty() ? rope : parsed.front();
}

// How much of a head is rotated: the whole of it in every family but phi3.
void parse_rotary_dim(const ConfigReader& settings, const std::vector<ConfigReader>& objects,
                      Config& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  config.rotary_dim = config.head_dim;
  if (config.family != "phi3") {
    settings.only(kKey, 1);
    for (const ConfigReader& object : objects) object.only(kKey, 1);
    return;
  }
  std::optional<double> stated = settings.number(kKey);
  for (const ConfigReader& object : objects) {
    stated = agreed(object, kKey, object.number(kKey), "the one stated elsewhere in the file", stated);
  }
  const double factor = stated.value_or(1.0);
  const ConfigReader& source = settings.find(kKey) != nullptr || objects.empty() ? settings : objects.front();
  if (!(factor > 0.0 && factor <= 1.0)) source.refuse(kKey, "a number above 0 and at most 1");
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * factor);
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    source.refuse(kKey, fmt::format("one that turns an even number of a head's {} entries, not {}",
                                    config.head_dim, config.rotary_dim));
  }
}

}  // namespace

void parse_rope(const ConfigReader& settings, Config& config) {
  const bool gemma3 = config.family == "gemma3_text";
  std::vector<ConfigReader> objects;
  std::vector<ConfigReader> local_objects;
  if (settings.find("rope_parameters") != nullptr) {
    const ConfigReader parameters = settings.inner("rope_parameters");
    if (gemma3) {
      for (const auto& [key, value] : parameters.object().items()) {
        if (key != "full_attention" && key != "sliding_attention" && !value.is_null()) {
          parameters.refuse(key, "full_attention and sliding_attention only");
        }
      }
      if (parameters.find("full_attention") != nullptr) objects.push_back(parameters.inner("full_attention"));
      if (parameters.find("sliding_attention") != nullptr) {
        local_objects.push_back(parameters.inner("sliding_attention"));
      }
    } else {
      objects.push_back(parameters);
    }
  }
  if (settings.find("rope_scaling") != nullptr) {
    objects.push_back(settings.inner("rope_scaling"));
    const ConfigReader& scaling = objects.back();
    if (gemma3 && scaling.find("type") != nullptr && scaling.find("rope_type") == nullptr)
      scaling.refuse("type", "rope_type instead: transformers 4 reads it, 5 does not");
  }

  std::vector<ConfigReader> all = objects;
  all.insert(all.end(), local_objects.begin(), local_objects.end());
  parse_rotary_dim(settings, all, config);
  const Surroundings around{settings, config};
  config.rope = parse_rope_of(objects, "rope_theta", gemma3 ? 1e6 : 1e4, around);
  if (gemma3) {
    config.local_rope = parse_rope_of(local_objects, "rope_local_base_freq", 1e4, around);
  } else {
    settings.only("rope_local_base_freq", nullptr);
  }
}

}  // namespace streambp
