#include "bench/cli/command_line.h"

#include <CLI/Error.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fmt/ranges.h>
#include <limits>
#include <sstream>
#include <sys/resource.h>

#include "bench/cli/print.h"
#include "streambp/error.h"
#include "streambp/near_names.h"
#include "streambp/ops/cpu/kernels.h"
#include "streambp/runtime/failure.h"
#include "streambp/runtime/processor.h"

namespace streambp {
namespace {

/// What there is to say of `error`. LibTorch's messages go on with a trace of the stack.
std::string message_of(const std::exception& error) {
  if (const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return fmt::format("{}: {}", file->path1().string(), file->code().message());
  const std::string what = error.what();
  if (what == "std::bad_alloc") return "out of memory";
  return what.substr(0, what.find('\n'));
}

int exit_code_of(const std::exception& error) {
  if (is_out_of_memory(error)) return kExitOutOfMemory;
  const bool bad_input = dynamic_cast<const InputError*>(&error) != nullptr ||
                         dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr;
  return bad_input ? kExitBadInput : kExitCheckFailed;
}

/// What CLI11 says of a command line, or, where a command or a flag is not known, which one may be meant.
std::string usage_problem(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::vector<std::string> known;
  for (const CLI::App* command : commands) {
    if (!command->get_name().empty()) known.push_back(command->get_name());
  }
  const auto chosen = std::find_if(commands.begin(), commands.end(),
                                   [](const CLI::App* command) { return command->parsed(); });
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  if (left.empty() || (chosen == commands.end() && left.front().starts_with('-'))) {
    const std::string text = error.what();
    const size_t twice = text.find(": At Most 1 required but received");
    return twice == std::string::npos ? text : text.substr(0, twice) + ": given more than once";
  }
  if (chosen == commands.end())
    return fmt::format("{}: no command{}", left.front(), did_you_mean(left.front(), known));
  std::vector<std::string> flags;
  for (const CLI::Option* option : (*chosen)->get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  const std::string flag = left.front().substr(0, left.front().find('='));
  return fmt::format("{} takes no {}{}", (*chosen)->get_name(), fmt::join(left, " "),
                     did_you_mean(flag, flags));
}

/// Whether `text` is a number of 64 bits without a sign; an error's text otherwise.
std::string seed_problem(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return fmt::format("'{}': expected a whole number from 0 to {}", text,
                     std::numeric_limits<uint64_t>::max());
}

int64_t parse_integer(const std::string& text, const std::string& what, int64_t least) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw InputError("{} '{}': expected a whole number from {} up", what, text, least);
  }
  return value;
}

/// A stack that is too small ends a process by a signal.
void require_stack() {
  constexpr rlim_t kLeast = rlim_t{1} << 19;
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeast) return;
  throw InputError("the stack may have {} bytes, expected {} or more (ulimit -s)", limit.rlim_cur, kLeast);
}

}  // namespace

int run_command_line(CLI::App& app, int argc, const char* const* argv, const std::function<int()>& action) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    print_line(stderr, "{}: {} (see --help)", app.get_name(), printable(usage_problem(app, error)));
    return kExitBadInput;
  }
  avoid_refused_instructions();
  try {
    require_stack();
    cpu::kernels();  // STREAMBP_ISA is read here: a wrong one is bad usage, not a failure of what asks first
    return action();
  } catch (const std::exception& error) {
    print_line(stderr, "{}: {}", app.get_name(), message_of(error));
    return exit_code_of(error);
  }
}

void add_seed_flag(CLI::App& command, const std::string& flag, uint64_t& seed, const std::string& help) {
  command.add_option(flag, seed, help)
      ->capture_default_str()
      ->check(CLI::Validator([](std::string& text) { return seed_problem(text); }, ""));
}

std::vector<std::string> parse_words(const std::string& list, const std::string& what) {
  std::vector<std::string> words;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) {
    if (word.empty()) throw InputError("{} '{}': an entry of the list is empty", what, list);
    words.push_back(word);
  }
  if (words.empty() || list.back() == ',')
    throw InputError("{} '{}': expected a comma-separated list", what, list);
  return words;
}

std::vector<int64_t> parse_integers(const std::string& list, const std::string& what, int64_t least) {
  std::vector<int64_t> numbers;
  for (const std::string& word : parse_words(list, what)) numbers.push_back(parse_integer(word, what, least));
  return numbers;
}

std::map<std::string, std::string> parse_settings(const std::string& list, const std::string& what) {
  std::map<std::string, std::string> settings;
  if (list.empty()) return settings;
  for (const std::string& word : parse_words(list, what)) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError("{} '{}': expected name=value", what, word);
    }
    const std::string name = word.substr(0, equals);
    if (!settings.emplace(name, word.substr(equals + 1)).second)
      throw InputError("{} '{}': {} is given twice, expected once", what, list, name);
  }
  return settings;
}

std::vector<int64_t> parse_chunks(const std::string& list, const std::string& what) {
  std::vector<int64_t> chunks;
  for (const std::string& word : parse_words(list, what)) {
    if (word == "auto") {
      chunks.push_back(0);
      continue;
    }
    try {
      chunks.push_back(parse_integer(word, what, 1));
    } catch (const InputError&) {
      throw InputError("{} '{}': expected a whole number from 1 up, or auto", what, word);
    }
  }
  return chunks;
}

int64_t parse_bytes(const std::string& text, const std::string& what) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (unit.size() == 1 && unit != "B") unit += 'B';
  constexpr std::pair<const char*, double> kUnits[] = {{"B", 1.0},      {"KB", 1e3},     {"MB", 1e6},
                                                       {"GB", 1e9},     {"TB", 1e12},    {"KIB", 0x1p10},
                                                       {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
  // 24 might be meant as gigabytes: taken for bytes it would fit nothing.
  if (error == std::errc() && unit.empty())
    throw InputError("{} {}: of what? Expected a unit, as in {}GB, {}GiB or {}B", what, text, text, text,
                     text);
  for (const auto& [name, scale] : kUnits) {
    const double bytes = value * scale;
    if (error == std::errc() && unit == name && bytes >= 1.0 && bytes < 0x1p62) return std::llround(bytes);
  }
  throw InputError("{} '{}': expected a size such as 80GB or 512MiB (KB, MB, GB, TB, KiB, MiB, GiB, TiB)",
                   what, text);
}

}  // namespace streambp
