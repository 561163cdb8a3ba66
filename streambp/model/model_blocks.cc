// Zamba 2's shared blocks: maps of each layer that runs one, over the same parameters. See model.h.
#include <fmt/format.h>

#include "streambp/model/model.h"

namespace streambp {

SharedBlock Model::make_shared_block(const std::string& prefix, int64_t index,
                                     DecoderLayer::Weights& weights) {
  // Maps have the names of this layer's modules, and adapters of their own, over parameters of the block's
  // owner.
  const std::string own = prefix + "shared_transformer.";
  const std::string owner = fmt::format("model.layers.{}.shared_transformer.", config_.block_owner(index));
  const auto map = [&](const std::string& name, bool bias = false) {
    return add_linear(own + name, owner + name + ".weight", bias ? owner + name + ".bias" : "");
  };
  // The layer has modules of all adapters of its block, and runs its own.
  const auto pair_of = [&](const std::string& list) {
    LinearPair pair;
    for (int64_t user = 0; user < config_.num_hidden_layers; ++user) {
      if (!config_.runs_block(user) || config_.block_owner(user) != config_.block_owner(index)) continue;
      const std::string name = fmt::format("{}.{}.", list, config_.block_use(user));
      const LinearPair of_user{map(name + "0"), map(name + "1")};
      if (user == index) pair = of_user;
    }
    return pair;
  };
  const auto projection = [&](const char* part) {
    Linear* const made = map(fmt::format("self_attn.{}_proj", part));
    if (config_.shared_blocks.attention_adapters)
      made->pair = pair_of(fmt::format("self_attn.linear_{}_adapter_list", part));
    return made;
  };
  weights.q_proj = projection("q");
  weights.k_proj = projection("k");
  weights.v_proj = projection("v");
  SharedBlock block;
  block.input_norm = norm_of(owner + "input_layernorm");
  block.before_mlp = norm_of(owner + "pre_ff_layernorm");
  block.o_proj = map("self_attn.o_proj");
  const LinearPair of_both = pair_of("feed_forward.gate_up_proj_adapter_list");
  const auto half_of = [&](const std::string& name, int64_t which, bool bias = false) {
    const int64_t width = config_.intermediate_size, first = which * width;
    Linear* const made = map(name, bias);
    made->weight = add_rows(*made->weight, first, width);
    made->first_row = first;
    if (made->bias != nullptr) made->bias = add_rows(*made->bias, first, width);
    return made;
  };
  const auto half = [&](int64_t which) {
    Linear* const made = half_of("feed_forward.gate_up_proj", which, config_.mlp_bias);
    made->pair = {of_both.in, half_of(of_both.out->name.substr(own.size()), which)};
    return made;
  };
  Linear *const gate = half(0), *const up = half(1);
  block.mlp = {gate, up, map("feed_forward.down_proj", config_.mlp_bias), config_.hidden_act};
  block.linear = add_map(prefix + "linear", /*bias=*/false);
  return block;
}

}  // namespace streambp
