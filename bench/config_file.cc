#include "bench/config_file.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <algorithm>
#include <fmt/ranges.h>
#include <memory>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/strict_json.h"

namespace streambp::bench {
namespace {

/// TOML as CLI11 reads it, with errors that name file and section, and arrays for flags that take lists.
class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> entries = CLI::ConfigTOML::from_config(input);
    for (CLI::ConfigItem& item : entries) {
      const CLI::App& command = command_of(item);
      if (item.name == "++" || item.name == "--") continue;  // where a section begins and ends
      const CLI::Option* const option = command.get_option_no_throw("--" + item.name);
      if (option == nullptr || !option->get_configurable())
        fail("{}: no flag that a file may hold has this name (see {} --help)", item.fullname(),
             command.get_name());
      if (item.inputs.empty()) fail("{}: no value", item.fullname());
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

/// CLI11 puts a value between quotes of one kind and knows no escapes.
void require_writable(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable()) continue;
    for (const std::string& value : option->results()) {
      const bool has_both = value.find('"') != std::string::npos && value.find('\'') != std::string::npos;
      if (has_both || std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < ' '; }))
        throw InputError(
            "--write-config: {} is '{}': a file can't hold a value with both kinds of quotes or a control "
            "character",
            option->get_name(), value);
    }
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
    require_writable(*command);
    // What CLI11 writes of a command alone has no section.
    text +=
        fmt::format("[{}]\n{}", command->get_name(), CLI::ConfigTOML().to_config(command, false, false, ""));
  }
  return text;
}

}  // namespace streambp::bench
