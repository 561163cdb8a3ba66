// The settings of a method as members of records, from the table of settings (streambp/backprop/settings.h).
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "streambp/backprop/settings.h"

namespace streambp::bench {

/// The member of every setting: true or false, a number, a word; null where the method does not take it.
/// Settings with SettingKind::default_recorded off are left out where they have their default.
nlohmann::json setting_members(const Settings& settings);

/// The same where `--method auto` has still to choose: "auto" for those that it searches and that are not in
/// `fixed`, the others as they are in `given`.
nlohmann::json open_setting_members(const Settings& given, const std::set<std::string>& fixed);

/// Those that `--method auto` searches, but for the chunk, as it has chosen them.
nlohmann::json searched_setting_members(const Settings& settings);

/// "--method streambp --chunk 1024 --every 4": the command line of a configuration, without defaults.
std::string settings_flags(const Settings& settings);

/// "keep-attention, every 4": of a record's members (its `settings`) those of its method that are not the
/// default, but for the chunk; "unknown" where another version has written what this one does not know.
std::string own_settings_text(const std::string& method, const nlohmann::json& members);

}  // namespace streambp::bench
