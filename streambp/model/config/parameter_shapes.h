// Names, shapes and order of a decoder's parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace streambp {

struct Config;

/// What a parameter is in its model.
enum class ParameterRole {
  kEmbedding,    // model.embed_tokens.weight, the head too where they are tied
  kTable,        // model.embed_tokens_per_layer.weight, or a layer's rows for n-grams
  kNorm,         // [size]
  kWeight,       // of a linear map, [out, in]
  kBias,         // [out]; of all experts of a layer [experts, out]
  kExperts,      // of the linear maps of all experts of a layer, [experts, in, out] or [experts, out, in]
  kConvolution,  // [channels, 1, tokens]
  kPerHead,      // [heads], or of each channel of them: sinks of attention, decays
  kCorrection,   // [experts]: of a router's choice; never trained, float32 or wider in every model
  kHash,         // [tokens, k]: the experts of each token; never trained, float32 or wider in every model
  kScalar,       // [1]: of a layer's output; never trained
  kHyper,        // of a hyper-connection's gates, or of one stream's; float32 or wider in every model
  kIndexer,      // of an indexer's maps and norm: never trained
  kHead,         // lm_head.weight or score.weight
};

/// Name and shape of one parameter, under Hugging Face's name.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
  ParameterRole role = ParameterRole::kWeight;
  bool of_expert = false;  // of a mixture's
};

/// The parameters of `config` in the order of the model: embedding, layers, norm, head. Linear weights are
/// [out, in]. A tied head is not listed: it is the embedding.
std::vector<ParameterShape> parameter_shapes(const Config& config);

/// Number of parameters (a tied embedding counts once).
int64_t parameter_count(const Config& config);

}  // namespace streambp
