// Rounding errors of another library, for who measures what correct gradients of it are off by.
#pragma once

#include <cstdint>
#include <optional>

namespace streambp {

/// While one is alive on a thread, models below float64 round as transformers does:
/// - tables of rotary embeddings have their frequencies, angles, cosines and sines computed in float32,
/// rather than in double: at position 2,048
///   an angle is off by 1e-4 then, which is most of what correct float32 gradients of transformers are off by
/// - gradients of a delta rule's decays are off by what is lost where a row's own share is added and taken
/// away again (delta_rule.cc)
class TransformersRounding {
 public:
  /// seed: of the signs of what is lost
  explicit TransformersRounding(uint64_t seed = 0) : before_(wanted()) { wanted() = seed; }
  ~TransformersRounding() { wanted() = before_; }
  TransformersRounding(const TransformersRounding&) = delete;
  TransformersRounding& operator=(const TransformersRounding&) = delete;

  /// The seed, while one is alive.
  static std::optional<uint64_t>& wanted() {
    static thread_local std::optional<uint64_t> wanted;
    return wanted;
  }

 private:
  std::optional<uint64_t> before_;
};

}  // namespace streambp
