// Transformer blocks that several layers have in common.
#pragma once

#include <cstdint>
#include <vector>

namespace streambp {

/// Transformer blocks that several layers run, in turn, before their state space (Zamba 2): what a block
/// gives of a layer's input and the embedding side by side is added to what the state space reads. A block's
/// parameters are those of the lowest layer that runs it, but for adapters of rank `adapter_rank`, one for
/// each layer.
struct SharedBlockSettings {
  std::vector<bool> layers;         // of each layer: whether it runs a block. Empty: the model has none
  int64_t count = 1;                // num_mem_blocks
  int64_t adapter_rank = 0;         // of the MLP's gate_up_proj ...
  bool attention_adapters = false;  // ... and of q_proj, k_proj and v_proj: use_shared_attention_adapter

  bool operator==(const SharedBlockSettings&) const = default;
};

}  // namespace streambp
