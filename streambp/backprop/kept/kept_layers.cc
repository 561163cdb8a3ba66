#include "streambp/backprop/kept/kept_layers.h"

#include <array>
#include <charconv>
#include <fmt/ranges.h>
#include <set>
#include <vector>

#include "streambp/error.h"

namespace streambp {
namespace {

struct KeptKind {
  const char* name;
  int64_t KeptLayers::*count;
};

constexpr std::array<KeptKind, 5> kKinds{{{"attention", &KeptLayers::attention},
                                          {"queries", &KeptLayers::queries},
                                          {"keys-values", &KeptLayers::keys_values},
                                          {"attention-half", &KeptLayers::attention_half},
                                          {"gate-up", &KeptLayers::gate_up}}};

[[noreturn]] void refuse(const std::string& text) {
  std::vector<std::string> names;
  for (const KeptKind& kind : kKinds) names.emplace_back(kind.name);
  throw InputError(
      "--keep '{}': expected none, or some of {}, each with :LAYERS where only that many of the highest "
      "layers are meant",
      text, fmt::join(names, ", "));
}

}  // namespace

std::string kept_layers_text(const KeptLayers& kept) {
  std::vector<std::string> words;
  for (const KeptKind& kind : kKinds) {
    const int64_t count = kept.*kind.count;
    if (count == kAllLayers) words.emplace_back(kind.name);
    if (count > 0 && count < kAllLayers) words.push_back(fmt::format("{}:{}", kind.name, count));
  }
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ","));
}

KeptLayers parse_kept_layers(const std::string& text) {
  KeptLayers kept;
  if (text == "none") return kept;
  std::set<std::string> seen;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const size_t colon = word.find(':');
    int64_t count = kAllLayers;
    if (colon != std::string::npos) {
      const char* const last = word.data() + word.size();
      const auto [stopped, problem] = std::from_chars(word.data() + colon + 1, last, count);
      if (problem != std::errc() || stopped != last || count < 1) refuse(text);
    }
    const KeptKind* found = nullptr;
    for (const KeptKind& kind : kKinds) {
      if (word.substr(0, colon) == kind.name) found = &kind;
    }
    if (found == nullptr || !seen.insert(found->name).second) refuse(text);
    kept.*found->count = count;
    begin = end + 1;
  }
  return kept;
}

}  // namespace streambp
