#include "streambp/cli/command_line.h"

#include <CLI/Error.hpp>
#include <charconv>
#include <cmath>
#include <new>
#include <sstream>

#include <c10/util/Exception.h>

#include "streambp/error.h"
#include "streambp/runtime/failure.h"
#include "streambp/runtime/processor.h"

namespace streambp {
namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

void print_error(const CLI::App& app, const std::string& message) {
  fmt::print(stderr, "{}: {}\n", app.get_name(), first_line(message));
}

int64_t parse_integer(const std::string& text, const std::string& what, int64_t least) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw InputError("{} '{}': expected a whole number from {} up", what, text, least);
  }
  return value;
}

}  // namespace

int run_command_line(CLI::App& app, int argc, const char* const* argv, const std::function<int()>& action) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    print_error(app, fmt::format("{} (see --help)", error.what()));
    return kExitBadInput;
  }
  avoid_refused_instructions();
  try {
    return action();
  } catch (const std::exception& error) {
    print_error(app, error.what());
    if (is_out_of_memory(error)) return kExitOutOfMemory;
    return dynamic_cast<const InputError*>(&error) != nullptr ? kExitBadInput : kExitCheckFailed;
  }
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
    settings[word.substr(0, equals)] = word.substr(equals + 1);
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
  const std::string unit(end, text.data() + text.size());
  constexpr std::pair<const char*, double> kUnits[] = {
      {"", 1.0},    {"B", 1.0},      {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  for (const auto& [name, scale] : kUnits) {
    const double bytes = value * scale;
    if (error == std::errc() && unit == name && bytes >= 1.0 && bytes < 0x1p62) return std::llround(bytes);
  }
  throw InputError("{} '{}': expected a size such as 80GB or 512MiB (KB, MB, GB, TB, KiB, MiB, GiB, TiB)",
                   what, text);
}

}  // namespace streambp
