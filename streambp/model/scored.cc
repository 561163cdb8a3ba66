#include "streambp/model/scored.h"

#include <algorithm>

namespace streambp {

at::Tensor scored_indices(const Batch& batch) {
  at::Tensor scored = batch.targets.to(at::kCPU).ne(kNoTarget);
  if (batch.value_mask.defined()) scored.logical_or_(batch.value_mask.to(at::kCPU));
  return scored.nonzero().squeeze(1);
}

std::pair<int64_t, int64_t> HeadTargets::within(int64_t begin, int64_t end) const {
  const int64_t* const first = indices.const_data_ptr<int64_t>();
  const int64_t* const last = first + indices.size(0);
  return {std::lower_bound(first, last, begin) - first, std::lower_bound(first, last, end) - first};
}

bool HeadTargets::are_contiguous(int64_t begin, int64_t end) const {
  const int64_t* const index = indices.const_data_ptr<int64_t>();
  return begin == end || index[end - 1] - index[begin] == end - 1 - begin;
}

HeadTargets head_targets(const Batch& batch, c10::Device device) {
  const at::Tensor indices = scored_indices(batch);
  at::Tensor targets = batch.targets.to(at::kCPU).index_select(0, indices);
  at::Tensor has_target = targets.ne(kNoTarget);
  if (has_target.all().item<bool>()) {
    has_target.reset();
  } else {
    targets = targets.clamp_min(0);
    has_target = has_target.to(device);
  }
  return {indices, targets.to(device), has_target, batch.offsets};
}

at::Tensor in_stream(const at::Tensor& of_scored, const HeadTargets& scored, int64_t tokens) {
  if (!of_scored.defined()) return {};
  return at::zeros({tokens}, of_scored.options())
      .index_copy_(0, scored.indices.to(of_scored.device()), of_scored);
}

}  // namespace streambp
