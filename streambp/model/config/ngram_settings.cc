#include "streambp/model/config/ngram_settings.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

namespace streambp {
namespace {

bool is_prime(int64_t number) {
  if (number < 4) return number > 1;
  if (number % 2 == 0) return false;
  for (int64_t divisor = 3; divisor * divisor <= number; divisor += 2) {
    if (number % divisor == 0) return false;
  }
  return true;
}

// SplitMix64 (Steele, Lea and Flood, 2014).
constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;

uint64_t split_mix(uint64_t value) {
  value += kGamma;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

std::vector<int64_t> ngram_head_rows(const NgramSettings& settings, int64_t module) {
  // Those found for a base: every module asks for those of the modules before it too.
  static std::mutex mutex;
  static std::pair<int64_t, std::vector<int64_t>> found{0, {}};
  const int64_t heads = settings.heads();
  const std::scoped_lock lock(mutex);
  auto& [base, primes] = found;
  if (base != settings.vocab_base) found = {settings.vocab_base, {}};
  while (static_cast<int64_t>(primes.size()) < (module + 1) * heads) {
    int64_t prime = primes.empty() ? base : primes.back() + 1;
    while (!is_prime(prime)) ++prime;
    primes.push_back(prime);
  }
  return {primes.begin() + module * heads, primes.begin() + (module + 1) * heads};
}

int64_t ngram_table_rows(const NgramSettings& settings, int64_t module) {
  const std::vector<int64_t> heads = ngram_head_rows(settings, module);
  const int64_t rows = std::accumulate(heads.begin(), heads.end(), int64_t{0});
  return (rows + settings.divisor - 1) / settings.divisor * settings.divisor;
}

std::vector<int64_t> ngram_multipliers(const NgramSettings& settings, int64_t module, int64_t vocab_size) {
  constexpr uint64_t kOfModule = 10007;
  const int64_t most = std::numeric_limits<int64_t>::max() / std::max<int64_t>(vocab_size, 1);
  const auto half = static_cast<uint64_t>(std::max<int64_t>(most / 2, 1));
  const uint64_t seed = static_cast<uint64_t>(settings.seed) + kOfModule * static_cast<uint64_t>(module);
  std::vector<int64_t> multipliers;
  for (int64_t i = 1; i <= settings.size; ++i)
    multipliers.push_back(
        static_cast<int64_t>(2 * (split_mix(seed + kGamma * static_cast<uint64_t>(i)) % half) + 1));
  return multipliers;
}

}  // namespace streambp
