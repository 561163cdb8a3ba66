#include "bench/train/text.h"

#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "streambp/error.h"
#include "streambp/printable.h"

namespace streambp::bench {
namespace {

constexpr int64_t kBytes = 256;
constexpr int64_t kFirstPrintable = 32, kPrintable = 95;
constexpr int64_t kEndOfLine = kPrintable, kOther = kPrintable + 1;

int64_t token_of(unsigned char byte, bool whole_bytes) {
  if (whole_bytes) return byte;
  if (byte >= kFirstPrintable && byte < kFirstPrintable + kPrintable) return byte - kFirstPrintable;
  return byte == '\n' ? kEndOfLine : kOther;
}

}  // namespace

TrainingText::TrainingText(const std::vector<std::filesystem::path>& files, int64_t vocab_size, int64_t least)
    : vocab_size_(vocab_size) {
  if (vocab_size <= kOther)
    throw InputError("--text: the model's vocabulary has {} tokens, expected at least {} for characters",
                     vocab_size, kOther + 1);
  for (const auto& path : files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      throw InputError("--text {}: {}", printable(path.string()),
                       error ? error.message() : "not a regular file, expected one of text");
    }
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file || bytes.empty())
      throw InputError("--text {}: can't be read, or is empty", printable(path.string()));
    for (const char byte : bytes)
      tokens_.push_back(token_of(static_cast<unsigned char>(byte), vocab_size >= kBytes));
  }
  if (size() < least)
    throw InputError("--text: {} bytes in all, expected at least {} for --seq-len", size(), least);
}

Batch TrainingText::batch(Layout layout, int64_t sequences, int64_t seq_len, int64_t prompt, uint64_t seed,
                          int64_t step) const {
  std::seed_seq numbers{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                        static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
  std::mt19937_64 random(numbers);
  // Not a distribution of the standard library: these differ from one library to the next.
  const auto begin_of = [&](int64_t length) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(size() - length + 1));
  };
  const bool pairs = has_pairs(layout);
  const int64_t unscored = pairs ? std::min(prompt > 0 ? prompt : seq_len / 4, seq_len / 2) : 0;
  const int64_t rows = pairs ? 2 * sequences : sequences;
  at::Tensor ids = at::empty({rows, seq_len}, at::kLong);
  auto id = ids.accessor<int64_t, 2>();
  for (int64_t row = 0; row < sequences; ++row) {
    const int64_t begin = begin_of(seq_len);
    for (int64_t i = 0; i < seq_len; ++i) id[row][i] = tokens_[static_cast<size_t>(begin + i)];
    if (!pairs) continue;
    for (int64_t i = 0; i < seq_len; ++i) id[row + sequences][i] = id[row][i];
    for (int64_t i = seq_len - 1; i > unscored; --i) {
      const auto j = unscored + static_cast<int64_t>(random() % static_cast<uint64_t>(i - unscored + 1));
      std::swap(id[row + sequences][i], id[row + sequences][j]);
    }
  }
  at::Tensor labels;
  if (pairs) {
    labels = ids.clone();
    labels.narrow(1, 0, unscored).fill_(kNoTarget);
  }
  return pack(ids, /*attention_mask=*/{}, labels, /*position_ids=*/{}, vocab_size_);
}

}  // namespace streambp::bench
