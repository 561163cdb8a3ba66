// How config.json is read: key by key, and whatever does not fit is refused by name.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {

/// Upper bounds of the sizes: far above any published model, and low enough that the parameters' bytes in
/// double stay below 2^63 (MLP: 2^12 layers x 3 matrices x 2^18 x 2^22 x 8 bytes; attention: 2^12 layers x 4
/// matrices x 2^18 x 2^25 x 8 bytes = 2^60). The experts of a layer are together at most as wide as a dense
/// MLP, and their number bounds the list of parameters.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxHidden = int64_t{1} << 18;
inline constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
inline constexpr int64_t kMaxHeads = int64_t{1} << 12;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 13;
inline constexpr int64_t kMaxPositions = int64_t{1} << 40;
inline constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 16;

/// One JSON object of a config. A key that holds null counts as absent, as in transformers, except to has().
/// Every function throws InputError (file, key, what it holds, what was expected) if the value has another
/// type or is out of bounds.
class ConfigReader {
 public:
  /// `prefix` goes before key names in messages: empty, or the name of the object and a dot. `object` and
  /// `where` have to outlive this.
  ConfigReader(const nlohmann::json& object, const std::string& where, std::string prefix = "")
      : object_(&object), where_(&where), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
      throw InputError("{}: {} is not a JSON object", where, prefix_.empty() ? "config" : prefix_);
    }
  }

  /// The same object, in which keys of the class may stand under other names (transformers' attribute_map):
  /// pairs of a key and its other name. Refuses two that contradict each other.
  using OtherNames = std::vector<std::pair<std::string, std::string>>;
  ConfigReader with_other_names(const OtherNames& names) const {
    ConfigReader same = *this;
    same.other_names_ = names;
    for (const auto& [key, other] : names) {
      if (object_->contains(key) && object_->contains(other) && object_->at(key) != object_->at(other))
        refuse(key, fmt::format("the same as {}: {}", other, shown(object_->at(other))));
    }
    return same;
  }

  /// Another object in the place of this one, whose file and prefix its messages have; it has to outlive
  /// this.
  ConfigReader of(const nlohmann::json& object) const { return {object, *where_, prefix_}; }

  bool has(const char* key) const { return object_->contains(stored(key)); }
  const nlohmann::json& object() const { return *object_; }

  const nlohmann::json* find(const char* key) const {
    const auto at = object_->find(stored(key));
    return at == object_->end() || at->is_null() ? nullptr : &*at;
  }

  /// The object under `key`, which has to be there.
  ConfigReader inner(const char* key) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) refuse(key, "a JSON object");
    return ConfigReader(*value, *where_, prefix_ + key + ".");
  }

  [[noreturn]] void refuse(const std::string& of_class, const std::string& expected) const {
    const std::string key = stored(of_class);
    const auto at = object_->find(key);
    const std::string found = at == object_->end() ? "missing" : shown(*at);
    throw InputError("{}: {}{} is {}, expected {}", *where_, prefix_, key, found, expected);
  }

  /// An integer from 1 to `limit`; absent: nothing.
  std::optional<int64_t> optional_size(const char* key, int64_t limit) const {
    if (find(key) == nullptr) return {};
    return size(key, limit);
  }

  /// An integer from 1 to `limit`; required where there is no fallback.
  int64_t size(const char* key, int64_t limit, std::optional<int64_t> fallback = {}) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > static_cast<uint64_t>(limit)) {
      refuse(key, fmt::format("an integer from 1 to {}", limit));
    }
    return value->get<int64_t>();
  }

  /// The same from 0.
  int64_t size_from_zero(const char* key, int64_t limit, int64_t fallback) const {
    const nlohmann::json* const value = find(key);
    return value != nullptr && *value == 0 ? 0 : size(key, limit, fallback);
  }

  /// A finite number; absent: nothing.
  std::optional<double> number(const char* key) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return {};
    if (!value->is_number()) refuse(key, "a number");
    return value->get<double>();
  }

  /// A finite number above 0.
  double positive(const char* key, double fallback) const {
    const double value = number(key).value_or(fallback);
    if (!(value > 0.0)) refuse(key, "a number above 0");
    return value;
  }

  bool flag(const char* key, bool fallback) const {
    const nlohmann::json* const value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, "true or false");
    return value == nullptr ? fallback : value->get<bool>();
  }

  std::optional<std::string> text(const char* key) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(key, "a string");
    return value->get<std::string>();
  }

  /// A list of `count` numbers above 0.
  std::vector<double> positive_list(const char* key, std::size_t count) const {
    const nlohmann::json* const value = find(key);
    bool good = value != nullptr && value->is_array() && value->size() == count;
    std::vector<double> numbers;
    for (std::size_t i = 0; good && i < count; ++i) {
      good = (*value)[i].is_number() && (*value)[i].get<double>() > 0.0;
      if (good) numbers.push_back((*value)[i].get<double>());
    }
    if (!good) refuse(key, fmt::format("a list of {} numbers above 0", count));
    return numbers;
  }

  /// Refuses any value but the one that is supported here; absent means that value.
  void only(const char* key, const nlohmann::json& supported) const {
    const nlohmann::json* const value = find(key);
    if (value != nullptr && *value != supported) {
      refuse(key, shown(supported) + " (nothing else is supported)");
    }
  }

 private:
  /// The name under which the object has a key.
  std::string stored(const std::string& key) const {
    if (object_->contains(key)) return key;
    for (const auto& [of_class, other] : other_names_) {
      if (of_class == key && object_->contains(other)) return other;
    }
    return key;
  }

  const nlohmann::json* object_;
  const std::string* where_;
  std::string prefix_;
  OtherNames other_names_;
};

/// Two spellings of one setting, each optional: they may both be there if they agree.
template <typename T>
std::optional<T> agreed(const ConfigReader& settings, const char* key, std::optional<T> a, const char* other,
                        std::optional<T> b) {
  if (a && b && *a != *b) settings.refuse(key, fmt::format("the same as {}: {}", other, shown(*b)));
  return a ? a : b;
}

struct Family;  // family.h

/// Fills what differs by family, once the sizes are there: biases, norms, activation, the scale and caps of
/// scores and logits, the layers' windows, the mixture of experts. Refuses what has no counterpart here.
void parse_family(const ConfigReader& settings, const Family& family, Config& config);

/// Parts of parse_family: the layers' windows, once no_rope is there, or which of them are recurrent; latent
/// attention; what Gemma 4 alone has, once the windows are there; and the mixture of experts.
void parse_windows(const ConfigReader& settings, const Family& family, Config& config);
void parse_recurrent(const ConfigReader& settings, const Family& family, Config& config);
/// Nemotron-H's layers, a letter for each: M a recurrent one, * one that attends, - an MLP, E experts.
std::string layer_parts(const ConfigReader& settings);
void parse_latent(const ConfigReader& settings, Config& config);
/// Which layers read another's latents, once no_rope is there (Mistral Large 4).
void parse_latent_sources(const ConfigReader& settings, Config& config);
/// The indexers of latent attention, once that is there.
void parse_indexer(const ConfigReader& settings, const Family& family, Config& config);
/// Those that pick groups of rows (GLM-5.3), once it is there which layers attend.
void parse_group_indexer(const ConfigReader& settings, const Family& family, Config& config);
void parse_gemma4(const ConfigReader& settings, const Family& family, Config& config);
void parse_mixture(const ConfigReader& settings, const Family& family, Config& config);
/// Which layers have experts, by mlp_layer_types, which has to be there.
std::vector<bool> sparse_by_types(const ConfigReader& settings, int64_t layers);
void parse_muse_spark_mixture(const ConfigReader& settings, Config& config);
void parse_router_loss(const ConfigReader& settings, MixtureSettings& mixture);
/// What Step 3.7's files say otherwise than transformers writes it, in transformers' words; and what its
/// class alone has, but for its mixture, once the windows are there.
nlohmann::json in_words_of_step(const ConfigReader& settings);
/// Leaves out of `sizes`, the class's own, what `given` says in other words.
void forget_what_step_renames(const nlohmann::json& given, nlohmann::json& sizes);
void parse_step(const ConfigReader& settings, Config& config);
/// Zamba 2's: the size of heads, once their number is there, and the blocks themselves, once all sizes and
/// the state space are.
void parse_block_heads(const ConfigReader& settings, Config& config);
void parse_shared_blocks(const ConfigReader& settings, Config& config);
/// LFM3's: its layers of each kind, their convolutions, gates of heads, and norms of outputs.
void parse_lfm3(const ConfigReader& settings, const Family& family, Config& config);
/// Likewise DeepSeek V4's, of attention, streams and indexers; and its mixture.
nlohmann::json in_words_of_deepseek_v4(const ConfigReader& settings);
void parse_compressed(const ConfigReader& settings, Config& config);
void check_compressed(const ConfigReader& settings, const Config& config);  // once rotary_dim is there
void parse_hashed_mixture(const ConfigReader& settings, Config& config);
/// Likewise MiniMax M3's, of attention and indexers.
nlohmann::json in_words_of_minimax_m3(const ConfigReader& settings);
void parse_key_blocks(const ConfigReader& settings, Config& config);
void check_key_blocks(const ConfigReader& settings, const Config& config);  // once rotary_dim is there
/// What Qwen4-Exp alone has, once it is there which layers attend.
void parse_qwen4_exp(const ConfigReader& settings, Config& config);
void check_qwen4_exp(const ConfigReader& settings, const Config& config);  // once rotary_dim is there

/// Fills rotary_dim, rope, local_rope and the scale of queries, once sizes and family are there.
void parse_rope(const ConfigReader& settings, const Family& family, Config& config);

}  // namespace streambp
