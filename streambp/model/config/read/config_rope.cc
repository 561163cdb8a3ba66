// Rotary embedding in config.json. transformers 4 has rope_theta next to rope_scaling, transformers 5 has
// everything in rope_parameters; a file may hold both where both say the same.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"
#include "streambp/model/config/rope_defaults.h"
#include "streambp/model/config/rope_types.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char* kMscaleAllDim = "mscale_all_dim";

// What the types take from outside their own object.
struct Surroundings {
  const ConfigReader& file;
  const FamilyRope& family;
  const Config& config;
};

std::optional<std::string> type_name(const ConfigReader& object, const char* key, RopeTypes types) {
  std::optional<std::string> name = object.text(key);
  // Early Phi-3 files have these names for it.
  if (types == RopeTypes::kLongrope && (name == "su" || name == "yarn")) name = "longrope";
  return name;
}

const KnownType& find_type(const ConfigReader& object, RopeTypes types) {
  const std::string name = agreed(object, "rope_type", type_name(object, "rope_type", types), "type",
                                  type_name(object, "type", types))
                               .value_or("default");
  const bool phi3 = types == RopeTypes::kLongrope, ministral3 = types == RopeTypes::kYarn;
  const bool gemma4 = types == RopeTypes::kProportional;
  for (const KnownType& known : known_types()) {
    bool possible = !phi3 || known.type == RopeType::kDefault || known.type == RopeType::kLongrope;
    if (ministral3) possible = known.type == RopeType::kYarn;  // the only one with all that its class reads
    // Of the others some would take the head's size from elsewhere.
    const bool proportional = known.type == RopeType::kProportional;
    possible = gemma4 ? proportional || known.type == RopeType::kDefault
                      : possible && (!proportional || types == RopeTypes::kOfKinds);
    if (name == known.name && possible) return known;
  }
  object.refuse(object.find("rope_type") != nullptr ? "rope_type" : "type",
                ministral3 ? "yarn"
                : gemma4   ? "default or proportional"
                : phi3     ? "default or longrope"
                           : "default, linear, dynamic, llama3, yarn or longrope");
}

// original_max_position_embeddings, which Phi-3 has outside the object: there it holds, with the class's
// default where it is absent, whatever the object says.
std::optional<int64_t> original_positions(const ConfigReader& object, const Surroundings& around) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (around.family.types == RopeTypes::kLongrope && !around.file.has(kKey)) {
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
  const double all_dim = object.number(kMscaleAllDim).value_or(0.0);
  if (!(mscale >= 0.0)) object.refuse("mscale", "a number of at least 0");
  if (!(all_dim >= 0.0)) object.refuse("mscale_all_dim", "a number of at least 0");
  const bool scaled = mscale != 0.0 && all_dim != 0.0;
  // 0 is as good as absent; one alone is not read by any transformers, nor are both with attention_factor.
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
  if (!rope.truncate && around.family.of_windows)
    object.refuse(
        "truncate",
        "true where layers with a window have another rope: transformers 4 reads false, 5 does not");
  rope.attention_factor = yarn_attention_factor(object, rope.factor);
  if (!(rope.theta > 1.0)) object.refuse("rope_theta", "a number above 1 with rope type yarn");
}

// Hunyuan's fixed stretch of the base, as NTK-aware scaling has it for one length; the published files say
// dynamic. Its class reads none of the other keys there.
void stretch_base(const ConfigReader& object, const Surroundings& around, RopeSettings& rope) {
  if (around.config.rotary_dim < 4)
    around.file.refuse("head_dim", "an even number of at least 4 with rope type dynamic");
  const auto entries = static_cast<double>(around.config.rotary_dim);
  const double theta = rope.theta * std::pow(object.positive("alpha", 1.0), entries / (entries - 2));
  rope = {};
  rope.theta = theta;
  if (!std::isfinite(rope.theta)) object.refuse("alpha", "a number that leaves the base finite");
}

// LongRoPE (Ding et al. 2024). The factor by which the length grew matters only to the default of
// attention_factor; where it is absent it follows from the two lengths.
void parse_longrope(const ConfigReader& object, const Surroundings& around, RopeSettings& rope) {
  const auto count = static_cast<std::size_t>(around.config.rotary_dim / 2);
  rope.short_factor = object.positive_list("short_factor", count);
  rope.long_factor = object.positive_list("long_factor", count);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double grown = static_cast<double>(around.config.max_position_embeddings) / original;
  const double factor = object.positive("factor", grown);
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
  const KnownType& known = find_type(object, around.family.types);
  const bool has_alpha =
      known.type == RopeType::kDynamic && around.family.reads_alpha && object.find("alpha") != nullptr;
  for (const auto& [key, value] : object.object().items()) {
    const bool of_ministral3 = key == kQueryScaleBeta || key == "max_position_embeddings";  // reads the first
    // Which entries the three positions of an image's patches rotate: a text's are equal.
    const bool of_qwen3_5 = key == "mrope_section" || key == "mrope_interleaved";
    static constexpr std::array<std::string_view, 5> kWithAlpha = {"alpha", "beta_fast", "beta_slow",
                                                                   "mscale", "mscale_all_dim"};
    const bool of_hunyuan = std::find(kWithAlpha.begin(), kWithAlpha.end(), key) != kWithAlpha.end();
    const bool used = (of_qwen3_5 && around.family.image_keys) || (of_hunyuan && has_alpha) ||
                      (of_ministral3 && around.family.types == RopeTypes::kYarn) ||
                      std::find(kCommon.begin(), kCommon.end(), key) != kCommon.end() ||
                      std::find(known.keys.begin(), known.keys.end(), key) != known.keys.end();
    if (!used && !value.is_null()) {
      object.refuse(key, fmt::format("no such key with rope type {}", known.name));
    }
  }
  RopeSettings rope;
  rope.type = known.type;
  rope.theta = theta;
  if (rope.type == RopeType::kDefault) return rope;
  if (rope.type == RopeType::kProportional) {
    rope.factor = object.positive("factor", 1.0);
    rope.proportion = object.positive("partial_rotary_factor", 1.0);
    if (!(rope.proportion <= 1.0)) object.refuse("partial_rotary_factor", "a number above 0 and at most 1");
    return rope;
  }
  if (rope.type != RopeType::kLongrope) {
    rope.factor = object.number("factor").value_or(0.0);
    if (!(rope.factor >= 1.0)) object.refuse("factor", "a number of at least 1");
  }
  if (rope.type == RopeType::kLinear) return rope;
  if (has_alpha) {
    stretch_base(object, around, rope);
    return rope;
  }
  if (rope.type == RopeType::kDynamic) {
    parse_dynamic(object, around, rope);
    return rope;
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const std::optional<int64_t> original = original_positions(object, around);
  // A llama3 without it transformers 4 does not load; null no transformers.
  const bool absent = rope.type != RopeType::kLlama3 && !object.has(kOriginal) && !around.file.has(kOriginal);
  rope.original_max_position_embeddings = original ? *original
                                          : absent ? around.config.max_position_embeddings
                                                   : object.size(kOriginal, kMaxPositions);
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

// How much of a head is rotated.
void parse_rotary_dim(const ConfigReader& settings, const FamilyRope& family,
                      const std::vector<ConfigReader>& objects, Config& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (config.is_latent()) {  // has it
    const double share = family.share_of_key ? static_cast<double>(config.latent.qk_rope_head_dim) /
                                                   static_cast<double>(config.head_dim)
                                             : 1.0;
    settings.only(kKey, share);
    for (const ConfigReader& object : objects) object.only(kKey, share);
    return;
  }
  config.rotary_dim = config.head_dim;
  if (family.of_kinds()) {  // whose rope says how many of the pairs turn
    if (config.gemma4.global_head_dim > 0) config.rotary_dim = config.gemma4.global_head_dim;
    settings.only(kKey, nullptr);
    for (const ConfigReader& object : objects) {
      if (find_type(object, family.types).type != RopeType::kProportional) object.only(kKey, 1);
    }
    return;
  }
  if (!family.partial) {
    settings.only(kKey, 1);
    for (const ConfigReader& object : objects) object.only(kKey, 1);
    return;
  }
  if (family.partial_within) settings.only(kKey, *family.partial);
  std::optional<double> stated = family.partial_within ? std::nullopt : settings.number(kKey);
  for (const ConfigReader& object : objects) {
    stated = agreed(object, kKey, object.number(kKey), "the one stated elsewhere in the file", stated);
  }
  constexpr const char* kEntries = "rotary_dim";
  if (family.reads_rotary_dim && settings.find(kEntries) != nullptr) {
    const auto entries = static_cast<double>(settings.size(kEntries, config.head_dim));
    const std::optional<double> share = entries / static_cast<double>(config.head_dim);
    stated = agreed(settings, kEntries, share, kKey, stated);
  }
  const bool is_null =
      settings.has(kKey) && settings.find(kKey) == nullptr;  // the whole, not the class's part
  const double factor = stated.value_or(is_null ? 1.0 : *family.partial);
  const ConfigReader& source = settings.find(kKey) != nullptr || objects.empty() ? settings : objects.front();
  if (!(factor > 0.0 && factor <= 1.0)) source.refuse(kKey, "a number above 0 and at most 1");
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * factor);
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    source.refuse(kKey, fmt::format("one that turns an even number of a head's {} entries, not {}",
                                    config.head_dim, config.rotary_dim));
  }
}

// The rope objects of a file: those of all layers, or of the layers that look at everything, and those of the
// layers with a window.
struct RopeObjects {
  std::vector<ConfigReader> full;
  std::vector<ConfigReader> local;
};

RopeObjects rope_objects(const ConfigReader& settings, bool two) {
  RopeObjects objects;
  if (settings.find("rope_parameters") != nullptr) {
    const ConfigReader parameters = settings.inner("rope_parameters");
    if (two) {
      for (const auto& [key, value] : parameters.object().items()) {
        if (key != "full_attention" && key != "sliding_attention" && !value.is_null()) {
          parameters.refuse(key, "full_attention and sliding_attention only");
        }
      }
      if (parameters.find("full_attention") != nullptr)
        objects.full.push_back(parameters.inner("full_attention"));
      if (parameters.find("sliding_attention") != nullptr)
        objects.local.push_back(parameters.inner("sliding_attention"));
    } else {
      objects.full.push_back(parameters);
    }
  }
  if (settings.find("rope_scaling") != nullptr) {
    objects.full.push_back(settings.inner("rope_scaling"));
    const ConfigReader& scaling = objects.full.back();
    if (two && scaling.find("type") != nullptr && scaling.find("rope_type") == nullptr)
      scaling.refuse("type", "rope_type instead: transformers 4 reads it, 5 does not");
  }
  return objects;
}

// DeepSeek V3's scores are multiplied by a square of what grows with the length (yarn_apply_mscale).
void scale_latent(const std::vector<ConfigReader>& objects, Config& config) {
  std::optional<double> stated;
  for (const ConfigReader& object : objects) {
    const double all_dim = object.number(kMscaleAllDim).value_or(0.0);
    if (stated.value_or(all_dim) != all_dim)
      object.refuse(kMscaleAllDim, "the one stated elsewhere in the file");
    stated = all_dim;
  }
  if (stated.value_or(0.0) == 0.0 || config.rope.factor <= 1.0) return;
  const double scale = 0.1 * *stated * std::log(config.rope.factor) + 1.0;
  config.attention_scale *= scale * scale;
}

// Gemma 4's and LFM3's classes read rope_parameters alone, with an object for each kind of layer.
void check_ropes_of_kinds(const ConfigReader& settings, const Config& config, const RopeObjects& objects) {
  constexpr const char* kKey = "rope_parameters";
  settings.only("rope_scaling", nullptr);
  settings.only("rope_theta", nullptr);
  if (settings.find(kKey) == nullptr) return;
  const bool windows = std::count(config.windows.begin(), config.windows.end(), 0) < config.num_hidden_layers;
  if (objects.full.empty() || (windows && objects.local.empty()))
    settings.refuse(kKey, windows ? "full_attention and sliding_attention" : "full_attention");
  for (const auto* part : {&objects.full, &objects.local}) {
    if (!part->empty() && part->front().find("rope_theta") == nullptr)
      part->front().refuse("rope_theta", "a number above 0");
  }
}

void parse_query_scale(const std::vector<ConfigReader>& objects, Config& config) {
  for (const ConfigReader& object : objects) {
    const std::optional<double> beta = object.number(kQueryScaleBeta);
    if (!beta || !(*beta >= 0.0)) object.refuse(kQueryScaleBeta, "a number of at least 0");
    config.query_scale_beta = *beta;
  }
  for (const ConfigReader& object : objects) {
    if (*object.number(kQueryScaleBeta) != config.query_scale_beta)
      object.refuse(kQueryScaleBeta, "the one stated elsewhere in the file");
  }
  config.query_scale_original = config.rope.original_max_position_embeddings;
}

}  // namespace

void parse_rope(const ConfigReader& settings, const Family& family, Config& config) {
  const FamilyRope& of_family = family.rope;
  const bool two = of_family.of_windows;
  RopeObjects objects = rope_objects(settings, two);
  if (of_family.of_kinds()) check_ropes_of_kinds(settings, config, objects);
  const std::string class_default = fmt::format("the default of {}", family.name);
  if (objects.full.empty() && of_family.of_class != ClassRope::kNone) {
    if (of_family.null_is_ambiguous && settings.has("rope_scaling"))
      settings.refuse("rope_scaling",
                      "an object (of none, transformers 4 makes plain rotary embedding, 5 YaRN)");
    objects.full.emplace_back(class_rope(of_family.of_class), class_default, "rope_parameters.");
  }
  std::vector<ConfigReader> all = objects.full;
  all.insert(all.end(), objects.local.begin(), objects.local.end());
  if (of_family.partial_by_kind) {
    parse_rotary_dim(settings, of_family, objects.local, config);
    config.window_rotary_dim = config.rotary_dim;
    all = objects.full;
  }
  parse_rotary_dim(settings, of_family, all, config);
  const Surroundings around{settings, of_family, config};
  config.rope = parse_rope_of(objects.full, "rope_theta", of_family.theta, around);
  if (of_family.types == RopeTypes::kYarn) parse_query_scale(objects.full, config);
  if (config.is_latent()) scale_latent(objects.full, config);
  constexpr const char* kLocalTheta = "rope_local_base_freq";
  if (!of_family.reads_theta_of_windows) settings.only(kLocalTheta, nullptr);
  if (!two) return;
  config.local_rope = parse_rope_of(objects.local, kLocalTheta, of_family.theta_of_windows, around);
  // transformers 5 takes rope_theta for the layers without a window alone, 4 for all.
  const bool states_local = of_family.reads_theta_of_windows ||
                            (!objects.local.empty() && objects.local.front().find("rope_theta") != nullptr);
  if (!states_local && settings.number("rope_theta").value_or(of_family.theta) != of_family.theta) {
    settings.refuse(
        "rope_theta",
        fmt::format("{}, or sliding_attention.rope_theta with it in rope_parameters", of_family.theta));
  }
}

}  // namespace streambp
