#include "streambp/cli/completion.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "streambp/backprop/method_kind.h"
#include "streambp/backprop/settings.h"
#include "streambp/cli/command_line.h"
#include "streambp/model/config.h"
#include "streambp/objective/objective.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp {
namespace {

const std::vector<std::string> kShells{"bash", "zsh", "fish"};

/// What a menu of completions shows of a description.
constexpr size_t kShownText = 76;

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
  std::string text;
  bool has_value = false;
  std::vector<std::string> values;  // empty: anything, files among it
};

struct Command {
  std::string name;  // empty: the program itself
  std::string text;
  std::vector<Flag> flags;
  std::vector<std::string> values;  // of its arguments without a flag; empty: files
};

/// The beginning of a description, up to where it goes into detail.
std::string short_text(const std::string& text) {
  size_t end = text.size();
  for (const char* mark : {"; ", " (", "\n"}) end = std::min(end, text.find(mark, 8));
  if (end > kShownText) end = std::min(text.rfind(' ', kShownText), kShownText);
  return text.substr(0, end);
}

Command command_of(const CLI::App& app, const FlagValues& values) {
  Command command{
      app.get_parent() == nullptr ? "" : app.get_name(), short_text(app.get_description()), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    const auto values_of = [&](const std::string& name) {
      const auto found = values.find(name);
      return found == values.end() ? std::vector<std::string>() : found->second;
    };
    if (option->get_positional()) command.values = values_of(option->get_single_name());
    for (const std::string& name : option->get_lnames())
      command.flags.push_back({"--" + name, short_text(option->get_description()),
                               option->get_items_expected_max() > 0, values_of("--" + name)});
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

/// `text` in single quotes, where a quote is written as `quote`.
std::string quoted(const std::string& text, const char* quote) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(quote) : std::string(1, c);
  return out + "'";
}

/// `text` with a backslash before each of `marks`.
std::string escaped(const std::string& text, std::string_view marks) {
  std::string out;
  for (const char c : text) {
    if (marks.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
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

std::string zsh_arguments(const Command& command) {
  std::string out;
  for (const Flag& flag : command.flags) {
    std::string spec =
        fmt::format("{}{}[{}]", flag.name, flag.has_value ? "=" : "", escaped(flag.text, "[]:\\"));
    if (flag.has_value)
      spec += fmt::format(":{}:{}", flag.name.substr(2),
                          flag.values.empty() ? "_files"
                                              : fmt::format("{{_sequence compadd - {} || _files}}",
                                                            fmt::join(flag.values, " ")));
    out += fmt::format(" \\\n          {}", quoted(spec, "'\\''"));
  }
  return out;
}

std::string zsh_script(const std::string& program, const std::string& function,
                       const std::vector<Command>& commands) {
  std::string list, cases;
  for (const Command& command : commands) {
    if (command.name.empty()) continue;
    list += fmt::format("    {}\n", quoted(command.name + ":" + command.text, "'\\''"));
    const std::string values =
        command.values.empty() ? "_files" : fmt::format("({})", fmt::join(command.values, " "));
    cases += fmt::format("        {}) _arguments '*: :{}'{} && ret=0 ;;\n", command.name, values,
                         zsh_arguments(command));
  }
  return fmt::format(R"(#compdef {0}
# {0} in zsh: source <({0} completion zsh), or as a file _{0} in a folder of fpath
{1}() {{
  local curcontext=$curcontext state ret=1
  local -a line commands
  commands=(
{2}  )
  _arguments -C '1: :->command' '*:: :->arguments'{4} && ret=0
  case $state in
    command) _describe command commands && ret=0 ;;
    arguments)
      case $line[1] in
{3}      esac
      ;;
  esac
  return ret
}}
if [[ $funcstack[1] == {1} ]]; then {1} "$@"; else compdef {1} {0}; fi
)",
                     program, function, list, cases, zsh_arguments(commands.front()));
}

std::string fish_script(const std::string& program, const std::string& function,
                        const std::vector<Command>& commands) {
  std::string out = fmt::format(
      "# {0} in fish: {0} completion fish | source\n"
      "function {1}_list # of a comma-separated list the last entry\n"
      "    set -l before (commandline -ct | string replace -r '^--[a-z0-9-]+=' '' | string match -r '^.*,')\n"
      "    for word in $argv\n        echo \"$before$word\"\n    end\nend\n",
      program, function);
  for (const Command& command : commands) {
    const std::string when = command.name.empty()
                                 ? "__fish_use_subcommand"
                                 : quoted("__fish_seen_subcommand_from " + command.name, "\\'");
    if (!command.name.empty())
      out += fmt::format("complete -c {} -f -n __fish_use_subcommand -a {} -d {}\n", program, command.name,
                         quoted(command.text, "\\'"));
    if (!command.values.empty())
      out += fmt::format("complete -c {} -f -n {} -a '{}'\n", program, when, fmt::join(command.values, " "));
    for (const Flag& flag : command.flags) {
      std::string values;
      if (!flag.values.empty())
        values = fmt::format(" -a '({}_list {})'", function, fmt::join(flag.values, " "));
      out += fmt::format("complete -c {} -n {} -l {}{}{} -d {}\n", program, when, flag.name.substr(2),
                         flag.has_value ? " -r" : "", values, quoted(flag.text, "\\'"));
    }
  }
  return out;
}

constexpr const char* kExamples = R"(Examples:
  {0} completion bash > ~/.local/share/bash-completion/completions/{0}
  {0} completion zsh > ~/.zfunc/_{0}
  {0} completion fish > ~/.config/fish/completions/{0}.fish

For this shell alone: source <({0} completion bash). Commands, flags and the names of presets, methods and objectives are completed.

Exit codes: 0 printed; 2 bad usage.)";

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const std::vector<Command> commands = commands_of(app);
  const std::string& program = app.get_name();
  std::string function = "_" + program;
  std::replace(function.begin(), function.end(), '-', '_');
  if (shell == "zsh") return zsh_script(program, function, commands);
  return shell == "fish" ? fish_script(program, function, commands)
                         : bash_script(program, function, commands);
}

void add_completion_command(CLI::App& app, std::function<int()>& action) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* const command =
      app.add_subcommand("completion", "A script by which bash, zsh or fish completes this command line");
  command->footer(fmt::format(fmt::runtime(kExamples), app.get_name()));
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(kShells).description(""));
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      fmt::print("{}", completion_script(app, *shell));
      return kExitGood;
    };
  });
}

}  // namespace streambp
