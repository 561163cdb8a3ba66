#include "bench/commands/config_file.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <algorithm>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"

namespace streambp::bench {
namespace {

/// What of TOML CLI11 reads as something else: an array without its "]", for which it takes the last
/// character of the file; a key twice, whose values it puts together; a section twice, of which it drops one.
/// Empty: nothing.
std::string misread(const std::string& text) {
  std::istringstream lines(text);
  std::string section;
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    line = CLI::detail::trim_copy(line);
    if (line.starts_with('[')) {
      section = CLI::detail::trim_copy(line.substr(1, line.find(']') - 1));
      if (!seen.insert('[' + section + ']').second) return fmt::format("[{}]: is there twice", section);
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == line.npos || line.find_first_of(";#") < equals) continue;
    std::string key = CLI::detail::trim_copy(line.substr(0, equals));
    CLI::detail::remove_quotes(key);
    if (!seen.insert(section + '.' + key).second) return fmt::format("{}: is there twice", key);
    std::string value = line.substr(equals + 1);
    value = CLI::detail::trim_copy(value.substr(0, value.find('#')));
    if (!value.starts_with('[')) continue;
    for (; !value.ends_with(']') || value.size() == 1; value += CLI::detail::trim_copy(line)) {
      if (!std::getline(lines, line)) return key + ": its array has no ]";
    }
  }
  return {};
}

/// CLI11 ends a value at a "#" between quotes too.
bool is_cut(const std::string& value) {
  return (value.starts_with('"') || value.starts_with('\'')) &&
         (value.size() == 1 || value.back() != value.front());
}

/// TOML as CLI11 reads it, with errors that name file and section, and arrays for flags that take lists.
class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::string text;
    try {
      text.assign(std::istreambuf_iterator<char>(input), {});
    } catch (const std::ios_base::failure&) {
      fail("can be opened and not read; expected a regular file");
    }
    std::istringstream file(text);
    if (const std::string problem = misread(text); !problem.empty()) fail("{}", problem);
    std::vector<CLI::ConfigItem> entries = CLI::ConfigTOML::from_config(file);
    for (CLI::ConfigItem& item : entries) {
      const CLI::App& command = command_of(item);
      // Where a section begins and ends.
      if ((item.name == "++" || item.name == "--") && item.inputs.empty()) continue;
      const CLI::Option* const option = command.get_option_no_throw("--" + item.name);
      if (option == nullptr || !option->get_configurable())
        fail("{}: no flag that a file may hold has this name (see {} --help)", item.fullname(),
             command.get_name());
      if (item.inputs.empty()) fail("{}: no value", item.fullname());
      const bool is_switch = option->get_items_expected_max() == 0;
      if (is_switch && item.inputs != std::vector<std::string>{"true"} &&
          item.inputs != std::vector<std::string>{"false"})
        fail("{} is {}: expected true or false", item.fullname(), fmt::join(item.inputs, ","));
      for (const std::string& value : item.inputs) {
        if (is_cut(value))
          fail("{}: {}: a quote that is not closed; a value can't hold a #, which begins a comment",
               item.fullname(), value);
      }
      if (item.inputs.size() > 1 && option->get_items_expected_max() == 1)
        item.inputs = {fmt::format("{}", fmt::join(item.inputs, ","))};
    }
    return entries;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw CLI::ConfigError(fmt::format("--config {}: {}", app_.get_config_ptr()->as<std::string>(),
                                       fmt::format(format, std::forward<Args>(args)...)),
                           CLI::ExitCodes::ConfigError);
  }

  const CLI::App& command_of(const CLI::ConfigItem& item) const {
    if (item.parents.empty() || item.parents == std::vector<std::string>{"default"}) return app_;
    for (const CLI::App* command : app_.get_subcommands([](const CLI::App*) { return true; })) {
      if (item.parents == std::vector<std::string>{command->get_name()}) return *command;
    }
    fail("[{}]: no command has this name", fmt::join(item.parents, "."));
  }

  const CLI::App& app_;
};

/// CLI11 opens whatever has the name: a pipe is waited for, and /dev/zero has no end.
std::string file_problem(const std::string& path) {
  try {
    read_text_file(path);
    return {};
  } catch (const InputError& error) {
    return error.what();
  }
}

/// CLI11 puts a value between quotes of one kind and knows few escapes: whether `text` says what `command`
/// was given is found out by reading it.
void require_read_back(const CLI::App& command, const std::string& text) {
  std::istringstream file(text);
  std::map<std::string, std::vector<std::string>> read;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) read[item.name] = item.inputs;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || option->empty()) continue;
    const std::vector<std::string> given = option->reduced_results();
    if (read[option->get_single_name()] != given || std::any_of(given.begin(), given.end(), is_cut))
      throw InputError(
          "--write-config: {} is '{}': a file can't hold a value with a #, a \\ before a quote, both kinds "
          "of quotes or a control character",
          option->get_name(), fmt::join(given, ","));
  }
}

}  // namespace

void add_config_flags(CLI::App& app, std::string& write_config) {
  app.fallthrough();
  app.set_config("--config", "", "Flags from a TOML file, those of sweep under [sweep]; what is typed wins")
      ->check(CLI::Validator([](std::string& path) { return file_problem(path); }, ""));
  app.config_formatter(std::make_shared<ConfigFile>(app));
  app.add_option("--write-config", write_config,
                 "Write the flags that were given to a TOML file instead of running")
      ->configurable(false);
}

std::string config_text(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands()) {
    // What CLI11 writes of a command alone has no section.
    const std::string flags = CLI::ConfigTOML().to_config(command, false, false, "");
    require_read_back(*command, flags);
    text += fmt::format("[{}]\n{}", command->get_name(), flags);
  }
  return text;
}

}  // namespace streambp::bench
