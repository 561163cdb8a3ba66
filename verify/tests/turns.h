// Long lists of settings: an ordinary run tries a part of them on each subject, and on the next subject the
// next part; a thorough one, which scripts/nightly.sh asks for, all of them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace streambp::verify {

inline bool is_thorough() {
  return std::getenv("STREAMBP_THOROUGH") != nullptr;
}

/// `count` of `items`, at the next call with this `turn` the next ones.
template <typename T>
std::vector<T> in_turns(const std::vector<T>& items, size_t count, size_t& turn) {
  if (is_thorough()) return items;
  std::vector<T> some;
  for (size_t i = 0; i < count; ++i) some.push_back(items[turn++ % items.size()]);
  return some;
}

/// Of what is asked about one after another, one in `step` is to be tried. A step that has no divisor in
/// common with the length of the list meets all of it in `step` subjects.
class Turns {
 public:
  explicit Turns(size_t step) : step_(is_thorough() ? 1 : step) {}

  bool next() { return turn_++ % step_ == 0; }

 private:
  size_t step_;
  size_t turn_ = 0;
};

}  // namespace streambp::verify
