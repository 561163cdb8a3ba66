// The row of the embedding that gets no gradient from the look-up, where a config.json does not say it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "streambp/model/config/config.h"

namespace streambp {

/// The option of `--set` that says it, next to those of the objectives.
constexpr const char* kPadToken = "pad_token_id";

/// What is said in place of a config.json's pad_token_id. Hugging Face's embedding copies the number (its
/// padding_idx) when the model is made. A trainer that sets the config's afterwards, as those of TRL and
/// transformers do, trains the row all the same, and saves a config.json that no longer tells. Where a
/// sequence's score is taken (reward) stays the config's matter.
struct GivenPadToken {
  std::string word;  // none, or the token's number; empty: nothing is said, the config's holds

  bool operator==(const GivenPadToken&) const = default;
};

/// Takes pad_token_id out of `settings`. Throws InputError for what is neither none nor a number from 0.
GivenPadToken take_pad_token(std::map<std::string, std::string>& settings);

/// Puts what was said into `config`. Throws InputError for a token beyond the vocabulary.
void set_pad_token(Config& config, const GivenPadToken& given);

}  // namespace streambp
