// Keys and values that several layers read (Gemma 4).
#pragma once

#include <cstdint>
#include <map>

#include "streambp/model/layer.h"

namespace streambp {

/// Of a whole stream: the keys and values of each layer whose own others read too, and the gradient that
/// those leave for them. A pass's own.
class SharedKeysValues {
 public:
  SharedKeysValues(const Config& config, int64_t tokens) : config_(config), tokens_(tokens) {}

  /// Those of rows from `begin` on in the layer `producer`, a forward pass's. Later ones are left out.
  void store(int64_t producer, int64_t begin, const KeysValues& own);

  /// The forward pass is done: from now on reading goes with a gradient where the producer is `lowest` or
  /// above it, the lowest layer with a backward pass.
  void begin_backward(int64_t lowest);

  /// What `layer` reads of rows [begin, end), and where its gradient is added.
  Prefix rows(int64_t layer, int64_t begin, int64_t end);

  /// The gradient that all who read them have left for `producer`'s, in their dtype.
  KeysValues received(int64_t producer, int64_t begin, int64_t end);

  void drop(int64_t producer) { of_.erase(producer); }

 private:
  Prefix& all_of(int64_t producer);

  Config config_;
  int64_t tokens_;
  bool backward_ = false;
  int64_t lowest_ = 0;
  std::map<int64_t, Prefix> of_;  // [N, K, E], by producers
};

}  // namespace streambp
