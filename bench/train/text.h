// Text as training data: its bytes are the tokens, so that no tokenizer is needed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "streambp/model/batch.h"
#include "streambp/objective/objective.h"

namespace streambp::bench {

/// Files one after another as a row of tokens. A vocabulary of 256 and more takes bytes as they are; one of
/// 97 and more printable characters, the end of a line, and one token for everything else.
class TrainingText {
 public:
  /// Throws InputError: a file that can't be read, a vocabulary below 97, less than `least` bytes in all.
  TrainingText(const std::vector<std::filesystem::path>& files, int64_t vocab_size, int64_t least);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

  /// `sequences` windows of `seq_len` tokens from where `seed` and `step` say: the same in every run,
  /// whatever came before. Of a layout in pairs (Layout::kPairs) a window is prompt and chosen completion,
  /// and the rejected completion is the text's from somewhere else; completions are scored, seq_len is one
  /// sequence's. `prompt`: tokens before a completion; 0: a quarter.
  Batch batch(Layout layout, int64_t sequences, int64_t seq_len, int64_t prompt, uint64_t seed,
              int64_t step) const;

 private:
  std::vector<int64_t> tokens_;
  int64_t vocab_size_;
};

}  // namespace streambp::bench
