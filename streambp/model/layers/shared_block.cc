#include "streambp/model/layers/shared_block.h"

#include <algorithm>

namespace streambp {

bool SharedBlock::trainable() const {
  if (!is_there()) return false;
  const auto norms = {&input_norm, &before_mlp};
  return o_proj->trainable() || mlp.trainable() || linear->trainable() ||
         std::any_of(norms.begin(), norms.end(),
                     [](const RmsNorm* norm) { return norm->weight->trainable(); });
}

at::Tensor add_block(const at::Tensor& residual, const at::Tensor& attended, const SharedBlock& block) {
  const at::Tensor middle = rms_norm(linear(attended, {block.o_proj}).front(), block.before_mlp);
  return linear_add(residual, gated_mlp({}, middle, block.mlp), *block.linear);
}

}  // namespace streambp
