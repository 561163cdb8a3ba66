// Which activations of which layers a streamed forward pass keeps for the backward pass, in addition to layer
// inputs.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace streambp {

inline constexpr int64_t kAllLayers = std::numeric_limits<int64_t>::max();

/// Of how many layers, counted from the highest, each kind of activation is kept; 0: of none. The last layer
/// needs nothing where it goes through the head chunk by chunk (joins_head).
struct KeptLayers {
  int64_t attention = 0;       // attention's output and log-sum-exps: attention runs forward once
  int64_t queries = 0;         // queries as projected: their projection runs once
  int64_t keys_values = 0;     // keys and values as projected: their projections run once
  int64_t attention_half = 0;  // what the first half gives: the output projection runs forward once
  int64_t gate_up = 0;         // the MLP's gate and up projections, of dense layers: they run forward once

  bool any() const {
    return attention > 0 || queries > 0 || keys_values > 0 || attention_half > 0 || gate_up > 0;
  }

  friend bool operator==(const KeptLayers&, const KeptLayers&) = default;
};

/// Whether `count` of `layers` layers, from the highest, include `layer`.
inline bool keeps_of(int64_t count, int64_t layer, int64_t layers) {
  return count >= layers - layer;
}

/// "attention:3,keys-values,gate-up:12", with a number where not all layers are meant; "none".
std::string kept_layers_text(const KeptLayers& kept);

/// The reverse, in any order. Throws InputError that names the kinds.
KeptLayers parse_kept_layers(const std::string& text);

}  // namespace streambp
