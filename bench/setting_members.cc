#include "bench/setting_members.h"

#include <algorithm>

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

}  // namespace streambp::bench
