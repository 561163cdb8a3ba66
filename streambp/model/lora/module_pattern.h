// Choosing modules of a model by name, as PEFT's LoraConfig does.
#pragma once

#include <cstdint>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace streambp {

/// A regular expression of Python's `re`, of which what C++ (ECMAScript) understands alike is taken:
/// literals,
/// `.`, sets, groups, alternatives, look-aheads, the usual repetitions, \d \w \s \b and escaped punctuation.
class ModulePattern {
 public:
  /// Throws InputError that begins with `where` for anything else.
  ModulePattern(const std::string& pattern, const std::string& where);

  /// re.fullmatch.
  bool matches(const std::string& name) const;

 private:
  std::regex regex_;
};

/// Whether `name` is `end`, or ends with it after a dot.
bool is_named(std::string_view name, std::string_view end);

/// Whether `name` is `part`, or holds it between dots or an end of the name.
bool has_part(std::string_view name, std::string_view part);

/// The number of the layer that module `name` belongs to: the first number among its parts after any module,
/// or, where `patterns` name the list of layers, after the first of these that is there. -1 if there is none.
int64_t layer_of_module(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace streambp
