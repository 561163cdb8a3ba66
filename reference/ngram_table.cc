#include "reference/ngram_table.h"

#include <cstddef>

namespace streambp::STREAMBP_REFERENCE {
namespace {

bool is_prime(std::int64_t n) {
  for (std::int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

/// The next number of SplitMix64.
std::uint64_t next(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

}  // namespace

NgramTable ngram_table(const NgramSettings& settings, int module, int vocab_size) {
  const int heads = (settings.size - 1) * settings.heads_per_ngram;
  NgramTable table;
  std::int64_t prime = settings.vocab_base;
  for (int i = 0; i < (module + 1) * heads; ++i, ++prime) {
    while (!is_prime(prime)) ++prime;
    if (i < module * heads) continue;
    table.heads.push_back(prime);
    table.rows += static_cast<Index>(prime);
  }
  while (table.rows % settings.divisor != 0) ++table.rows;
  const std::uint64_t largest = (std::uint64_t{1} << 63U) - 1;
  const std::uint64_t half = largest / static_cast<std::uint64_t>(vocab_size) / 2;
  std::uint64_t state =
      static_cast<std::uint64_t>(settings.seed) + 10007U * static_cast<std::uint64_t>(module);
  next(state);  // is not used
  for (int i = 0; i < settings.size; ++i)
    table.multipliers.push_back(static_cast<std::int64_t>(2 * (next(state) % half) + 1));
  return table;
}

std::vector<int> ngram_rows(const NgramSettings& settings, const NgramTable& table, int head,
                            const std::vector<int>& tokens) {
  std::int64_t first = 0;
  for (int before = 0; before < head; ++before) first += table.heads[static_cast<std::size_t>(before)];
  const int length = 2 + head / settings.heads_per_ngram;
  std::vector<int> rows;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::int64_t mixed = tokens[t] * table.multipliers[0];
    bool is_over = false;
    for (int s = 1; s < length; ++s) {
      const auto back = static_cast<std::size_t>(s);
      is_over = is_over || t < back || tokens[t - back] == settings.boundary;
      mixed ^= (is_over ? settings.boundary : tokens[t - back]) * table.multipliers[back];
    }
    rows.push_back(static_cast<int>(first + mixed % table.heads[static_cast<std::size_t>(head)]));
  }
  return rows;
}

}  // namespace streambp::STREAMBP_REFERENCE
