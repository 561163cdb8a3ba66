#include "verify/diagnose/parts/scored_inputs.h"

#include "streambp/model/scored.h"

namespace streambp::verify {

std::vector<at::Tensor> scored_of_sequences(const Batch& batch) {
  const at::Tensor scored = scored_indices(batch);
  std::vector<at::Tensor> own;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    own.push_back(
        scored.ge(batch.offsets[i]).logical_and(scored.lt(batch.offsets[i + 1])).nonzero().squeeze(1));
  return own;
}

at::Tensor scored_lengths(const Batch& batch) {
  at::Tensor lengths = at::ones({scored_indices(batch).size(0)}, at::kDouble);
  for (const at::Tensor& own : scored_of_sequences(batch))
    lengths.index_fill_(0, own, static_cast<double>(own.numel()));
  return lengths;
}

at::Tensor scored_input(const Batch& batch, const char* name) {
  const auto found = batch.token_inputs.find(name);
  return found == batch.token_inputs.end()
             ? at::Tensor()
             : found->second.index_select(0, scored_indices(batch)).to(at::kDouble);
}

}  // namespace streambp::verify
