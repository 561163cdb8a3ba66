#include "streambp/backprop/head/head_chunk.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/rows/rows.h"

namespace streambp {

HeadChunk::HeadChunk(const HeadPass& pass, const at::Tensor& hidden, int64_t offset, int64_t begin,
                     int64_t end, bool goes_back)
    : pass_(pass), offset_(offset), count_(end - begin) {
  const HeadTargets& scored = pass.scored;
  first_ = scored.indices.const_data_ptr<int64_t>()[begin];
  if (!scored.are_contiguous(begin, end))
    indices_ = scored.indices.narrow(0, begin, count_).to(hidden.device(), /*non_blocking=*/true);
  normed_ = final_rows_forward(pass.model, rows_of(hidden, offset), saved_);
  if (!pass.request.log_probabilities) return;
  const MemoryScope scope("logits");
  const auto rows_of_chunk = [&](const at::Tensor& all) {
    return all.defined() ? all.narrow(0, begin, count_) : all;
  };
  distributions_ = make_distributions({.pass = pass,
                                       .normed = normed_.to(pass.model.head_dtype()),
                                       .targets = rows_of_chunk(scored.targets).unsqueeze(1),
                                       .has_target = rows_of_chunk(scored.has_target),
                                       .teacher_hidden = [&] { return rows_of(pass.teacher.hidden, 0); }},
                                      goes_back);
}

at::Tensor HeadChunk::rows_of(const at::Tensor& hidden, int64_t offset) const {
  // Contiguous rows are a view; others are gathered.
  return indices_.defined() ? gather_rows(hidden, offset == 0 ? indices_ : indices_ - offset)
                            : hidden.narrow(0, first_ - offset, count_);
}

TokenValues HeadChunk::values() {
  TokenValues values;
  if (distributions_ != nullptr) distributions_->values(values);
  if (pass_.request.values)
    values.values = linear_forward(pass_.model.value_head(), normed_).squeeze(1).to(at::kDouble);
  return values;
}

void HeadChunk::backward(const TokenValues& d_values, at::Tensor& hidden) {
  Model& model = pass_.model;
  at::Tensor d_normed;
  if (distributions_ != nullptr) d_normed = distributions_->backward(d_values).to(model.dtype());
  if (d_values.values.defined()) {
    const at::Tensor d = d_values.values.to(model.dtype()).unsqueeze(1);
    linear_accumulate(model.value_head(), normed_, d);
    linear_backward_input(model.value_head(), d, d_normed);
  }
  const at::Tensor d_rows = final_rows_backward(model, d_normed, saved_);
  if (indices_.defined()) {
    hidden.index_copy_(0, offset_ == 0 ? indices_ : indices_ - offset_, d_rows);
  } else {
    hidden.narrow(0, first_ - offset_, count_).copy_(d_rows);
  }
}

}  // namespace streambp
