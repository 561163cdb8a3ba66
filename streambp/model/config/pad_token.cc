#include "streambp/model/config/pad_token.h"

#include <algorithm>
#include <charconv>

#include "streambp/error.h"
#include "streambp/printable.h"

namespace streambp {
namespace {

/// Nothing for what is no number from 0.
std::optional<int64_t> number_of(const std::string& word) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

GivenPadToken take_pad_token(std::map<std::string, std::string>& settings) {
  const auto found = settings.find(kPadToken);
  if (found == settings.end()) return {};
  const std::string word = found->second;
  if (word != "none" && !number_of(word)) {
    throw InputError("--set {}='{}': expected none (the embedding has no padding_idx) or the token's number",
                     kPadToken, printable(word));
  }
  settings.erase(found);
  return {word};
}

void set_pad_token(Config& config, const GivenPadToken& given) {
  if (given.word.empty()) return;
  const std::optional<int64_t> token = number_of(given.word);
  if (token && *token >= config.vocab_size)
    throw InputError("--set {}={}: the vocabulary has {} tokens", kPadToken, given.word, config.vocab_size);
  config.pad_token_id = token;
}

}  // namespace streambp
