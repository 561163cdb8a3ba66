#include "bench/sweep/setting_members.h"

#include <algorithm>

#include "streambp/error.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

json value_of(const SettingKind& kind, const Settings& settings) {
  const std::string text = kind.text(settings);
  switch (kind.type) {
    case SettingType::kSwitch:
      return text == "true";
    case SettingType::kNumber:
      if (std::find(kind.choices.begin(), kind.choices.end(), text) != kind.choices.end()) return text;
      return std::stoll(text);
    case SettingType::kWord:
      break;
  }
  return text;
}

bool is_recorded(const SettingKind& kind, const Settings& settings) {
  return kind.default_recorded || !is_default(kind, settings);
}

/// Records say how the head was run, not that this was left to the method.
Settings with_head(Settings settings) {
  settings.stream_head = settings.streams_head();
  return settings;
}

}  // namespace

json setting_members(const Settings& given) {
  const Settings settings = with_head(given);
  json members = json::object();
  for (const SettingKind& kind : setting_kinds()) {
    if (is_recorded(kind, settings))
      members[kind.name] = applies(kind, settings) ? value_of(kind, settings) : json(nullptr);
  }
  return members;
}

json open_setting_members(const Settings& given, const std::set<std::string>& fixed) {
  json members = json::object();
  for (const SettingKind& kind : setting_kinds()) {
    const bool open = kind.searched && kind.candidates != nullptr && !fixed.contains(kind.name);
    if (is_recorded(kind, given)) members[kind.name] = open ? json("auto") : value_of(kind, given);
  }
  return members;
}

json searched_setting_members(const Settings& given) {
  const Settings settings = with_head(given);
  json members = json::object();
  for (const SettingKind& kind : setting_kinds()) {
    if (!kind.searched || kind.name == "chunk" || !is_recorded(kind, settings)) continue;
    members[kind.name] = applies(kind, settings) ? value_of(kind, settings) : json(nullptr);
  }
  return members;
}

std::string settings_flags(const Settings& settings) {
  std::string flags = "--method " + method_name(settings.method);
  for (const SettingKind& kind : setting_kinds()) {
    const bool says_nothing = kind.describe != nullptr && kind.describe(settings).empty();
    if (!applies(kind, settings) || is_default(kind, settings) || says_nothing) continue;
    flags += " " + kind.flag;
    if (kind.type != SettingType::kSwitch) flags += " " + kind.text(settings);
  }
  return flags;
}

std::string own_settings_text(const std::string& method, const json& members) {
  try {
    Settings settings;
    settings.method = parse_method(method);
    for (const SettingKind& kind : setting_kinds()) {
      const json value = members.value(kind.name, json());
      if (kind.name == "chunk" || value.is_null()) continue;
      set_setting(kind, settings, value.is_string() ? value.get<std::string>() : value.dump());
    }
    const std::string text = configuration_text(settings);
    return text == method ? "" : text.substr(method.size() + 2);
  } catch (const InputError&) {  // another version's
    return "unknown";
  }
}

}  // namespace streambp::bench
