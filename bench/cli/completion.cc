#include "bench/cli/completion.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <vector>

#include "bench/cli/command_line.h"
#include "streambp/backprop/method_kind.h"
#include "streambp/backprop/settings.h"
#include "streambp/model/config/config.h"
#include "streambp/objective/objective.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp {
namespace {

const std::vector<std::string> kShells{"bash"};

/// What the values of a flag ("--method") or an argument ("shell") are chosen from, alone or in a
/// comma-separated list.
using FlagValues = std::map<std::string, std::vector<std::string>>;

FlagValues known_values() {
  FlagValues values{{"shell", kShells}, {"--method", method_names()}, {"--objective", objective_names()}};
  for (const char* flag : {"--model", "--reference", "--teacher"}) values[flag] = preset_names();
  for (const char* flag : {"--optimizer", "--fuse-optimizer"}) values[flag] = optimizer_names();
  for (const SettingKind& kind : setting_kinds()) {
    std::vector<std::string> words = kind.choices;
    words.insert(words.end(), kind.examples.begin(), kind.examples.end());
    if (!words.empty()) values[kind.flag] = words;
  }
  return values;
}

struct Flag {
  std::string name;  // with its dashes
  bool has_value = false;
  std::vector<std::string> values;  // empty: anything, files among it
};

struct Command {
  std::string name;  // empty: the program itself
  std::vector<Flag> flags;
  std::vector<std::string> values;  // of its arguments without a flag; empty: files
};

Command command_of(const CLI::App& app, const FlagValues& values) {
  Command command{app.get_parent() == nullptr ? "" : app.get_name(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    const auto values_of = [&](const std::string& name) {
      const auto found = values.find(name);
      return found == values.end() ? std::vector<std::string>() : found->second;
    };
    if (option->get_positional()) command.values = values_of(option->get_single_name());
    for (const std::string& name : option->get_lnames())
      command.flags.push_back({"--" + name, option->get_items_expected_max() > 0, values_of("--" + name)});
  }
  return command;
}

/// The program itself, then its subcommands.
std::vector<Command> commands_of(const CLI::App& app) {
  const FlagValues values = known_values();
  std::vector<Command> commands{command_of(app, values)};
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(command_of(*one, values));
  return commands;
}

std::vector<std::string> names_of(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (!command.name.empty()) names.push_back(command.name);
  }
  return names;
}

std::string bash_case(const Command& command, const std::vector<std::string>& subcommands) {
  std::vector<std::string> words = command.name.empty() ? subcommands : command.values, valued;
  std::map<std::string, std::vector<std::string>> by_values;
  for (const Flag& flag : command.flags) {
    words.push_back(flag.name);
    if (!flag.has_value) continue;
    valued.push_back(flag.name);
    if (!flag.values.empty()) by_values[fmt::format("{}", fmt::join(flag.values, " "))].push_back(flag.name);
  }
  std::string out = fmt::format("    {})\n      words='{}'\n      case $flag in\n",
                                command.name.empty() ? "''" : command.name, fmt::join(words, " "));
  for (const auto& [values, flags] : by_values)
    out += fmt::format("        {}) values='{}' ;;\n", fmt::join(flags, "|"), values);
  if (!valued.empty())
    out +=
        fmt::format("      esac\n      case $flag in\n        {}) has_value=1 ;;\n", fmt::join(valued, "|"));
  return out + "      esac\n      ;;\n";
}

std::string bash_script(const std::string& program, const std::string& function,
                        const std::vector<Command>& commands) {
  const std::vector<std::string> names = names_of(commands);
  std::string cases;
  for (const Command& command : commands) cases += bash_case(command, names);
  return fmt::format(R"(# {0} in bash: source <({0} completion bash)
{1}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD - 1]}} command='' words='' values='' has_value='' i
  # Bash takes --flag=value for three words.
  if [[ $cur == '=' ]]; then cur=''; elif [[ $flag == '=' ]]; then flag=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      {2}) command=${{COMP_WORDS[i]}} && break ;;
    esac
  done
  case $command in
{3}  esac
  COMPREPLY=()
  if [[ -n $values ]]; then # of a comma-separated list the last entry
    mapfile -t COMPREPLY < <(compgen -P "${{cur%"${{cur##*,}}"}}" -W "$values" -- "${{cur##*,}}")
  elif [[ -z $has_value ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  fi
}}
complete -o bashdefault -o default -F {1} {0}
)",
                     program, function, fmt::join(names, "|"), cases);
}

constexpr const char* kExamples = R"(Examples:
  {0} completion bash > ~/.local/share/bash-completion/completions/{0}

For this shell alone: source <({0} completion bash). Commands, flags and the names of presets, methods and objectives are completed.

Exit codes: 0 printed; 2 bad usage.)";

}  // namespace

std::string completion_script(const CLI::App& app) {
  const std::string& program = app.get_name();
  std::string function = "_" + program;
  std::replace(function.begin(), function.end(), '-', '_');
  return bash_script(program, function, commands_of(app));
}

void add_completion_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* const command =
      app.add_subcommand("completion", "A script by which bash completes this command line");
  command->footer(fmt::format(fmt::runtime(kExamples), app.get_name()));
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash")->required()->check(CLI::IsMember(kShells).description(""));
  command->callback([shell, &app, &action] {  // the option refers to `shell`
    action = [&app] {
      fmt::print("{}", completion_script(app));
      return kExitGood;
    };
  });
}

}  // namespace streambp
