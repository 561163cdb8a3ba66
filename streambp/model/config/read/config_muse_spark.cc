// Muse Spark's mixture in config.json (transformers, configuration_muse_spark.py).
#include <algorithm>

#include "streambp/model/config/read/config_reader.h"

namespace streambp {

void parse_muse_spark_mixture(const ConfigReader& settings, Config& config) {
  MixtureSettings& mixture = config.mixture;
  const int64_t layers = config.num_hidden_layers;
  mixture.sparse.assign(static_cast<std::size_t>(layers), true);
  if (settings.find("mlp_layer_types") != nullptr) mixture.sparse = sparse_by_types(settings, layers);
  if (std::find(mixture.sparse.begin(), mixture.sparse.end(), true) == mixture.sparse.end()) return;
  mixture.num_experts = settings.size("num_local_experts", kMaxExpertsOfAllLayers / layers, 256);
  mixture.num_experts_per_tok = settings.size("num_experts_per_tok", mixture.num_experts, 8);
  mixture.moe_intermediate_size =
      settings.size("moe_intermediate_size", kMaxIntermediate / mixture.num_experts, 4096);
  mixture.moe_hidden_size = settings.size("moe_hidden_size", kMaxHidden, 4096);
  mixture.sigmoid_scores = mixture.corrected = mixture.norm_topk_prob = mixture.stacked = true;
  mixture.added_to_sum = 1e-15;
  mixture.routed_scaling_factor = settings.positive("routed_scaling_factor", 1.0);
  mixture.router_factor = 1.0 / config.logits_scaling;  // output_multiplier
}

}  // namespace streambp
