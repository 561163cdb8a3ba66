#include "verify/reference_given.h"

#include <utility>
#include <vector>

#include "reference/mixture.h"

namespace streambp::verify {

reference::GivenExperts given_experts(const at::Tensor& experts, const Config& config) {
  reference::GivenExperts given;
  const bool of_all = experts.size(1) == config.num_hidden_layers;
  for (int64_t layer = 0, index = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_sparse(layer)) continue;
    const at::Tensor of_layer = experts.select(1, of_all ? layer : index++);
    reference::ExpertsOfTokens of_tokens;
    for (int64_t t = 0; t < of_layer.size(0); ++t) {
      std::vector<int> of_token;
      for (int64_t i = 0; i < of_layer.size(1); ++i) of_token.push_back(of_layer[t][i].item<int>());
      of_tokens.push_back(of_token.front() < 0 ? std::vector<int>() : of_token);
    }
    given.push_back(std::move(of_tokens));
  }
  return given;
}

reference::GivenPicks given_picks(const at::Tensor& picks, int64_t first, const Config& config) {
  reference::GivenPicks given;
  const bool of_all = picks.size(1) == config.num_hidden_layers;
  for (int64_t layer = 0, index = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.has_indexer(layer)) continue;
    const at::Tensor of_layer = picks.select(1, of_all ? layer : index++);
    std::vector<std::vector<int>> of_tokens;
    for (int64_t t = 0; t < of_layer.size(0); ++t) {
      std::vector<int> of_token;
      for (int64_t i = 0; i < of_layer.size(1); ++i) {
        const auto number = of_layer[t][i].item<int64_t>();
        if (number < 0) continue;
        of_token.push_back(static_cast<int>(config.pick_kind().rate > 1 ? number : number - first));
      }
      of_tokens.push_back(std::move(of_token));
    }
    given.emplace(static_cast<int>(layer), std::move(of_tokens));
  }
  return given;
}

}  // namespace streambp::verify
