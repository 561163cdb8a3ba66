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

  /// Of a stream that is a part of a batch: keys and values of the producer's rows here and elsewhere, in an
  /// order of their own, a forward pass's; and they with their gradient. Undefined: they are not there.
  void keep_all(int64_t producer, const KeysValues& all);
  Prefix all(int64_t producer);

  /// The forward pass is done: from now on reading goes with a gradient where the producer is `lowest` or
  /// above it, the lowest layer with a backward pass.
  void begin_backward(int64_t lowest);

  /// What `layer` reads of rows [begin, end), and where its gradient is added.
  Prefix rows(int64_t layer, int64_t begin, int64_t end);

  /// The gradient that all who read them have left for `producer`'s, in their dtype.
  KeysValues received(int64_t producer, int64_t begin, int64_t end);

  void drop(int64_t producer) {
    of_.erase(producer);
    all_.erase(producer);
  }

 private:
  /// With a gradient, where there is one to be.
  Prefix& with_gradient(int64_t producer, Prefix& held) const;

  Config config_;
  int64_t tokens_;
  bool backward_ = false;
  int64_t lowest_ = 0;
  std::map<int64_t, Prefix> of_;   // [N, K, E], by producers
  std::map<int64_t, Prefix> all_;  // with rows elsewhere
};

}  // namespace streambp
