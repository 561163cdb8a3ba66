// A tiny model of each family, for the checks by differences.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reference/config.h"

namespace streambp::STREAMBP_REFERENCE {

/// Two layers of sizes that differ from each other, with nothing that only some families have.
ModelConfig tiny_model();

/// Four experts in the `sparse` layers, of which a token has two.
MixtureSettings tiny_experts(std::vector<bool> sparse);

/// A dense layer and one with experts, whose attention is latent.
ModelConfig tiny_deepseek_v3();

/// The same, whose queries have no latent, and all groups of experts are open.
ModelConfig tiny_deepseek_v3_small();

/// Its experts behind attention in which half of a head rotates.
ModelConfig tiny_glm4_moe();

/// tiny_deepseek_v3(), of whose tokens each sees two.
ModelConfig tiny_deepseek_v32();

/// The same, and the second layer sees what the first has picked.
ModelConfig tiny_glm_moe_dsa();

/// Likewise, with two residual streams, sinks and a gate of what attention gives.
ModelConfig tiny_hy_v4();

/// A layer that sees a window alone, one that sees blocks of two tokens too and whose experts are those of a
/// table, and one whose blocks overlap, of which its indexer picks one.
ModelConfig tiny_deepseek_v4();

/// tiny_glm_moe_dsa(), whose positions have trained factors, and one of whose layers does not rotate.
ModelConfig tiny_mistral_large4();
/// tiny_deepseek_v3(), whose queries are scaled by their positions, and whose experts a softmax scores.
ModelConfig tiny_mistral4();

/// A dense layer that sees all tokens, and one with experts that sees two blocks of two.
ModelConfig tiny_minimax_m3();

/// One layer of either kind, in groups of which two heads share B and C.
ModelConfig tiny_granite_hybrid();

/// A layer with a window, which rotates, and one without either.
ModelConfig tiny_cohere2();

/// Norms without weights, and a gate of what attention gives.
ModelConfig tiny_muse_glimmer();

/// More heads in a layer with a window, gates of heads and sigmoid routers.
ModelConfig tiny_step();

/// Norms of heads after their rotation.
ModelConfig tiny_hunyuan();

/// Experts which a softmax and a correction choose, and one that every token has.
ModelConfig tiny_ernie4_5_moe();

/// A convolution, and attention.
ModelConfig tiny_lfm2();

/// The same with experts of sigmoids in the second layer.
ModelConfig tiny_lfm2_moe();

/// A convolution, and attention in a window, with a gate of each head and norms of what either gives.
ModelConfig tiny_lfm3();

/// Gated residual streams, and experts of a narrower one.
ModelConfig tiny_muse_spark();

/// Experts next to the shared MLP in both layers of tiny_granite_hybrid().
ModelConfig tiny_granite_hybrid_moe();

/// A state space next to attention, with factors of what their maps give.
ModelConfig tiny_falcon_h1();

/// A layer of each kind.
ModelConfig tiny_nemotron_h();

/// Two blocks in common before the state space of three of four layers, with adapters.
ModelConfig tiny_zamba2();

/// A rule with a gate for each channel, and latent attention that does not rotate, with experts.
ModelConfig tiny_kimi_linear();

/// The same behind a rule whose decays have a bound, with two residual streams that are mixed and whose mean
/// is read last, and an indexer that picks one group of two tokens.
ModelConfig tiny_glm5_next();

/// Recurrent layers and attention with gates, and experts in both layers.
ModelConfig tiny_qwen3_5_moe();

/// The same with two residual streams, n-grams of two and three tokens in the first layer, and an indexer
/// that picks one group of two tokens in the second.
ModelConfig tiny_qwen4_exp();

/// By the family's name, with settings that act within the few tokens of a tiny batch.
std::vector<std::pair<std::string, ModelConfig>> tiny_families();

}  // namespace streambp::STREAMBP_REFERENCE
