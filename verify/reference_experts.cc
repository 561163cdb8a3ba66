#include "verify/reference_experts.h"

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

}  // namespace streambp::verify
