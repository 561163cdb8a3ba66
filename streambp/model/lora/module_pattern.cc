#include "streambp/model/lora/module_pattern.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {
namespace {

constexpr size_t kLongest = 2000;
/// With counted repetitions written out. The states of a match follow it, and with them time and stack.
constexpr size_t kLongestWrittenOut = 4000;

/// Backtracking takes some patterns, (.*.*)*x, more time than there is. This asks that all states go on at
/// once, which knows no back-references; neither do we.
#ifdef __GLIBCXX__
constexpr auto kSyntax = std::regex_constants::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kSyntax = std::regex_constants::ECMAScript;
#endif

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

/// The first construct that Python and C++ read differently, or that only one of them has; empty if there is
/// none.
std::string foreign_construct(const std::string& pattern) {
  bool in_set = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const auto next = [&](size_t ahead) { return i + ahead < pattern.size() ? pattern[i + ahead] : '\0'; };
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7E)
      return "a character that is not printable ASCII";
    if (c == '\\') {
      const char escaped = next(1);
      const bool known = std::string_view("dDwWsS").find(escaped) != std::string_view::npos ||
                         (!in_set && (escaped == 'b' || escaped == 'B'));
      if (escaped == '\0' || is_digit(escaped) || (is_letter(escaped) && !known))
        return fmt::format("\\{}", escaped);
      ++i;
    } else if (in_set) {
      if (c == '[') return "[ in a set";
      if (c == ']') in_set = false;
    } else if (c == '[') {
      in_set = true;
      if (next(1) == '^') ++i;
      if (next(1) == ']') return "] at the start of a set";
    } else if (c == '(' && next(1) == '?') {
      if (std::string_view(":=!").find(next(2)) == std::string_view::npos || next(2) == '\0')
        return pattern.substr(i, 3);
    } else if (c == '{' && !is_digit(next(1))) {
      return "{ without a number";
    } else if (std::string_view("*+?}").find(c) != std::string_view::npos && next(1) == '+') {
      return pattern.substr(i, 2);
    }
  }
  return {};
}

/// The length of `pattern`, free of foreign constructs, times its counted repetitions, as if all were nested;
/// `kLongestWrittenOut` + 1 where it is more.
size_t length_written_out(const std::string& pattern) {
  size_t length = std::max<size_t>(pattern.size(), 1);
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') ++i;
    if (i >= pattern.size() || pattern[i] != '{') continue;
    size_t count = 1;
    for (size_t number = 0; ++i < pattern.size() && pattern[i] != '}';) {
      number = is_digit(pattern[i])
                   ? std::min(10 * number + static_cast<size_t>(pattern[i] - '0'), kLongestWrittenOut + 1)
                   : 0;
      count = std::max(count, number);
    }
    length = std::min(length * count, kLongestWrittenOut + 1);
  }
  return length;
}

std::regex compiled(const std::string& pattern, const std::string& where) {
  if (pattern.size() > kLongest) throw InputError("{}: longer than {} characters", where, kLongest);
  if (const std::string foreign = foreign_construct(pattern); !foreign.empty())
    throw InputError("{}: {} holds {}, which is not supported here", where, shown(pattern), foreign);
  if (length_written_out(pattern) > kLongestWrittenOut) {
    throw InputError("{}: {} is longer than {} characters with its repetitions written out", where,
                     shown(pattern), kLongestWrittenOut);
  }
  try {
    return std::regex(pattern, kSyntax);
  } catch (const std::regex_error& error) {
    throw InputError("{}: {} is no regular expression: {}", where, shown(pattern), error.what());
  }
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts{""};
  for (const char c : name) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

ModulePattern::ModulePattern(const std::string& pattern, const std::string& where)
    : regex_(compiled(pattern, where)) {}

bool ModulePattern::matches(const std::string& name) const {
  return std::regex_match(name, regex_);
}

bool is_named(std::string_view name, std::string_view end) {
  if (!name.ends_with(end)) return false;
  return name.size() == end.size() || name[name.size() - end.size() - 1] == '.';
}

bool has_part(std::string_view name, std::string_view part) {
  for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

int64_t layer_of_module(const std::string& name, const std::vector<std::string>& patterns) {
  const std::vector<std::string> parts = parts_of(name);
  const auto number_after = [&](const std::string* list) -> int64_t {
    // Without a list's name PEFT wants a module before the one that the number follows.
    for (size_t i = list == nullptr ? 2 : 1; i + 1 < parts.size(); ++i) {
      const bool is_number = !parts[i].empty() && parts[i].size() < 10 &&
                             std::all_of(parts[i].begin(), parts[i].end(), is_digit);
      if (is_number && (list == nullptr || parts[i - 1] == *list)) return std::stoll(parts[i]);
    }
    return -1;
  };
  if (patterns.empty()) return number_after(nullptr);
  for (const std::string& pattern : patterns) {
    if (const int64_t layer = number_after(&pattern); layer >= 0) return layer;
  }
  return -1;
}

}  // namespace streambp
