#include "streambp/backprop/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/ranges.h>
#include <set>

#include "streambp/error.h"

namespace streambp {
namespace {

std::string number_or_auto(int64_t number) {
  return number == 0 ? "auto" : fmt::to_string(number);
}

int64_t to_number(const std::string& text) {
  int64_t number = 0;  // stays 0 for "auto"
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// Every k-th input kept and k more of the layers between: k of about the root of the layers holds the least,
/// and a larger one computes more again for nothing.
std::vector<std::string> every_candidates(const SearchContext& context) {
  const auto least = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(context.layers))));
  std::vector<std::string> every;
  for (int64_t k = 1; k < least; k *= 2) every.push_back(fmt::to_string(k));
  every.push_back(fmt::to_string(least));
  return every;
}

std::string describe_head(const Settings& settings) {
  Settings plain;
  plain.method = settings.method;
  if (settings.streams_head() == plain.streams_head()) return "";
  return settings.streams_head() ? "streamed head" : "full head";
}

SettingKind chunk_kind() {
  return {.name = "chunk",
          .flag = "--chunk",
          .type = SettingType::kNumber,
          .help = "tokens of a chunk, or auto",
          .choices = {"auto"},
          .text = [](const Settings& s) { return number_or_auto(s.chunk); },
          .assign = [](Settings& s, const std::string& text) { s.chunk = to_number(text); },
          .default_recorded = true,
          .refused_elsewhere = false,
          .searched = true};
}

bool keeps_all_attention(const Settings& settings) {
  return settings.keep.attention == kAllLayers;
}

SettingKind keep_attention_kind() {
  return {.name = "keep_attention",
          .flag = "--keep-attention",
          .type = SettingType::kSwitch,
          .help = "keep each layer's attention output instead of computing it again: --keep attention",
          .choices = {},
          .text = [](const Settings& s) { return std::string(keeps_all_attention(s) ? "true" : "false"); },
          .assign =
              [](Settings& s, const std::string& text) {
                if (text == "true") s.keep.attention = kAllLayers;
                if (text == "false" && keeps_all_attention(s)) s.keep.attention = 0;
              },
          .default_recorded = true,
          .searched = true,
          .candidates =
              [](const SearchContext&) {
                return std::vector<std::string>{"true", "false"};
              },
          .same_bits = {"true"}};
}

SettingKind every_kind() {
  return {.name = "every",
          .flag = "--every",
          .type = SettingType::kNumber,
          .help =
              "keep every k-th layer's input and compute the others again (with --keep-attention without "
              "attention)",
          .choices = {},
          .text = [](const Settings& s) { return fmt::to_string(s.every); },
          .assign = [](Settings& s, const std::string& text) { s.every = to_number(text); },
          .default_recorded = true,
          .searched = true,
          .candidates = every_candidates,
          .same_bits = {"2", "3", "100"}};
}

/// In addition to all attention outputs, which keep_attention records.
KeptLayers further_kept(const Settings& settings) {
  KeptLayers kept = settings.keep;
  if (keeps_all_attention(settings)) kept.attention = 0;
  return kept;
}

/// What costs the least memory for its time first: keys and values are projected twice otherwise. Queries and
/// the first half's result save the same time for their memory. Gate and up projections, which are large,
/// also of some layers alone. Where inputs are not kept, nothing but attention is worth its memory.
std::vector<std::string> keep_candidates(const SearchContext& context) {
  if (context.settings.every > 1) return {"none"};
  std::vector<std::string> candidates{"none", "keys-values", "keys-values,attention-half",
                                      "queries,keys-values,attention-half"};
  std::set<int64_t> counts;
  for (int64_t quarter = 1; quarter < 4; ++quarter)
    counts.insert(std::max<int64_t>(1, context.layers * quarter / 4));
  for (const int64_t count : counts)
    candidates.push_back(fmt::format("queries,keys-values,attention-half,gate-up:{}", count));
  candidates.emplace_back("queries,keys-values,attention-half,gate-up");
  return candidates;
}

SettingKind keep_kind() {
  return {
      .name = "keep",
      .flag = "--keep",
      .type = SettingType::kWord,
      .help =
          "activations of each layer to keep instead of computing them again, by commas: attention, queries, "
          "keys-values, attention-half, gate-up (of dense layers); attention:12 means the 12 highest layers",
      .choices = {"none"},
      .examples = {"keys-values", "attention:2", "attention:1,keys-values,attention-half:7,gate-up"},
      .text = [](const Settings& s) { return kept_layers_text(further_kept(s)); },
      .assign =
          [](Settings& s, const std::string& text) {
            const bool all_attention = keeps_all_attention(s);
            s.keep = parse_kept_layers(text);
            if (s.keep.attention == 0 && all_attention) s.keep.attention = kAllLayers;
          },
      .searched = true,
      .candidates = keep_candidates,
      .fixes = {"keep_attention"},
      .same_bits = {"queries,keys-values,attention-half,gate-up"}};
}

std::string offload_text(const Settings& settings) {
  if (settings.offload == Offload::kNone) return "none";
  return settings.offload_layers ? fmt::format("host:{}", *settings.offload_layers) : "host";
}

void assign_offload(Settings& settings, const std::string& text) {
  settings.offload = text == "none" ? Offload::kNone : Offload::kHost;
  settings.offload_layers.reset();
  if (text == "none" || text == "host") return;
  int64_t layers = 0;
  const char* const end = text.data() + text.size();
  const bool is_host = text.starts_with("host:");
  if (is_host) {
    const auto [stopped, problem] = std::from_chars(text.data() + 5, end, layers);
    if (problem == std::errc() && stopped == end && layers >= 0) {
      settings.offload_layers = layers;
      return;
    }
  }
  throw InputError("--offload '{}': expected none, host, or host:LAYERS", text);
}

SettingKind offload_kind() {
  return {.name = "offload",
          .flag = "--offload",
          .type = SettingType::kWord,
          .help =
              "move what is kept of the layers to the host's memory: none, host, or host:LAYERS for the "
              "activations "
              "of so many layers from the lowest one alone, while inputs stay (with --keep and a known "
              "budget, host "
              "means as many of them as must go)",
          .choices = {"none", "host"},
          .examples = {"host:0", "host:3"},
          .text = offload_text,
          .assign = assign_offload,
          .default_recorded = true,
          .searched = true,
          .candidates =
              [](const SearchContext& context) {
                return context.may_offload ? std::vector<std::string>{"none", "host"}
                                           : std::vector<std::string>{"none"};
              },
          .same_bits = {"host", "host:1"}};
}

SettingKind order_kind() {
  return {
      .name = "order",
      .flag = "--order",
      .type = SettingType::kWord,
      .help =
          "a layer's chunks in the backward pass last to first (reverse), or first to last with all "
          "keys and values before them again, as the published code does (forward)",
      .choices = {"reverse", "forward"},
      .text =
          [](const Settings& s) { return std::string(s.order == Order::kForward ? "forward" : "reverse"); },
      .assign =
          [](Settings& s, const std::string& text) {
            s.order = text == "forward" ? Order::kForward : Order::kReverse;
          },
      .default_recorded = true,
      .same_gradients = {"forward"}};
}

SettingKind head_kind() {
  std::vector<std::string> full_by_default;
  for (const MethodKind& method : method_kinds()) {
    if (method.head == HeadDefault::kFull) full_by_default.push_back(method.name);
  }
  return {.name = "head",
          .flag = "--head",
          .type = SettingType::kWord,
          .help = fmt::format("LM head: full logits, streamed, or auto ({} don't stream it, the others do)",
                              fmt::join(full_by_default, " and ")),
          .choices = {"auto", "full", "streamed"},
          .text =
              [](const Settings& s) {
                return std::string(!s.stream_head ? "auto" : *s.stream_head ? "streamed" : "full");
              },
          .assign =
              [](Settings& s, const std::string& text) {
                s.stream_head = text == "auto" ? std::nullopt : std::optional<bool>(text == "streamed");
              },
          .describe = describe_head,
          .default_recorded = true,
          .searched = true};
}

SettingKind head_chunk_kind() {
  return {.name = "head_chunk",
          .flag = "--head-chunk",
          .type = SettingType::kNumber,
          .help = "scored tokens of a streamed head's chunk, or auto",
          .choices = {"auto"},
          .text = [](const Settings& s) { return number_or_auto(s.head_chunk); },
          .assign = [](Settings& s, const std::string& text) { s.head_chunk = to_number(text); },
          .applies = [](const Settings& s) { return s.streams_head(); },
          .default_recorded = true};
}

SettingKind baseline_kind() {
  return {.name = "baseline",
          .flag = "--baseline",
          .type = SettingType::kWord,
          .help =
              "fair (what the method needs), hugging-face (what transformers 4.51 holds) or trl (the same "
              "with the log-probabilities of TRL's trainers, sequence by sequence in the model's dtype)",
          .choices = {"fair", "hugging-face", "trl"},
          .text = [](const Settings& s) { return s.baseline; },
          .assign = [](Settings& s, const std::string& text) { s.baseline = text; },
          .default_recorded = true,
          .same_bits = {"hugging-face", "trl"},
          .checked_with_full_head = true};
}

bool is_positive_number(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, number);
  return problem == std::errc() && stopped == end && number >= 1;
}

std::string choices_text(const std::vector<std::string>& choices) {
  const std::vector<std::string> but_last(choices.begin(), choices.end() - 1);
  return but_last.empty() ? choices.back()
                          : fmt::format("{} or {}", fmt::join(but_last, ", "), choices.back());
}

}  // namespace

const std::vector<SettingKind>& setting_kinds() {
  static const std::vector<SettingKind> kinds{chunk_kind(), keep_attention_kind(), every_kind(),
                                              keep_kind(),  offload_kind(),        order_kind(),
                                              head_kind(),  head_chunk_kind(),     baseline_kind()};
  return kinds;
}

const SettingKind& setting_kind(const std::string& name) {
  std::vector<std::string> names;
  for (const SettingKind& kind : setting_kinds()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  throw InputError("setting '{}': expected one of {}", name, fmt::join(names, ", "));
}

void set_setting(const SettingKind& kind, Settings& settings, const std::string& text) {
  const bool is_choice = std::find(kind.choices.begin(), kind.choices.end(), text) != kind.choices.end();
  switch (kind.type) {
    case SettingType::kSwitch:
      if (text != "true" && text != "false")
        throw InputError("{} '{}': expected true or false", kind.flag, text);
      break;
    case SettingType::kNumber:
      if (!is_choice && !is_positive_number(text)) {
        throw InputError("{} '{}': expected a whole number from 1 up{}", kind.flag, text,
                         kind.choices.empty() ? "" : fmt::format(", or {}", choices_text(kind.choices)));
      }
      break;
    case SettingType::kWord:
      if (!is_choice && kind.examples.empty())
        throw InputError("{} '{}': expected {}", kind.flag, text, choices_text(kind.choices));
      break;
  }
  kind.assign(settings, text);
}

bool is_default(const SettingKind& kind, const Settings& settings) {
  return kind.text(settings) == kind.text(Settings{});
}

bool applies(const SettingKind& kind, const Settings& settings) {
  return takes(settings.method, kind.name) && (kind.applies == nullptr || kind.applies(settings));
}

Settings settings_for(Method method, const Settings& asked) {
  Settings settings;
  settings.method = method;
  if (method_kind(method).fuses_optimizer) settings.consumer = asked.consumer;
  for (const SettingKind& kind : setting_kinds()) {
    if (takes(method, kind.name)) set_setting(kind, settings, kind.text(asked));
  }
  return settings;
}

std::vector<Settings> same_bits_variants(const Settings& settings, bool with_full_head) {
  std::vector<Settings> all{settings};
  for (const SettingKind& kind : setting_kinds()) {
    if (!takes(settings.method, kind.name) || kind.checked_with_full_head != with_full_head) continue;
    const std::vector<Settings> so_far = all;
    for (const std::string& text : kind.same_bits) {
      for (Settings variant : so_far) {
        set_setting(kind, variant, text);
        all.push_back(variant);
      }
    }
  }
  all.erase(all.begin());
  return all;
}

std::vector<Settings> same_gradients_variants(const Settings& settings) {
  std::vector<Settings> all;
  for (const SettingKind& kind : setting_kinds()) {
    if (!takes(settings.method, kind.name)) continue;
    for (const std::string& text : kind.same_gradients) {
      all.push_back(settings);
      set_setting(kind, all.back(), text);
    }
  }
  return all;
}

std::vector<std::string> methods_that_take(const std::string& setting) {
  std::vector<std::string> names;
  for (const MethodKind& kind : method_kinds()) {
    if (kind.takes(setting)) names.push_back(kind.name);
  }
  return names;
}

std::string configuration_text(const Settings& settings) {
  std::string text = method_name(settings.method);
  for (const SettingKind& kind : setting_kinds()) {
    if (!applies(kind, settings)) continue;
    const std::string name = kind.flag.substr(2), value = kind.text(settings);
    std::string words;
    if (kind.describe != nullptr) {
      words = kind.describe(settings);
    } else if (!is_default(kind, settings)) {
      words = kind.type == SettingType::kSwitch ? name : name + " " + value;
    }
    if (!words.empty()) text += ", " + words;
  }
  return text;
}

void check_settings(const Settings& settings) {
  const MethodKind& method = method_kind(settings.method);
  for (const SettingKind& kind : setting_kinds()) {
    Settings copy = settings;
    set_setting(kind, copy, kind.text(settings));
    if (method.takes(kind.name) || !kind.refused_elsewhere || is_default(kind, settings)) continue;
    throw InputError("{}: takes no {}, a setting of {}", method.name, kind.flag.substr(2),
                     fmt::join(methods_that_take(kind.name), ", "));
  }
  if (settings.consumer != nullptr && !method.fuses_optimizer)
    throw InputError("{}: takes no fused optimizer", method.name);
  if (method.head == HeadDefault::kAlwaysStreamed && !settings.streams_head())
    throw InputError("{}: its head is streamed; expected another method for a full one", method.name);
}

bool Settings::streams_head() const {
  return stream_head.value_or(method_kind(method).head != HeadDefault::kFull);
}

}  // namespace streambp
