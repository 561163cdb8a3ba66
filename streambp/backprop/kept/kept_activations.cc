#include "streambp/backprop/kept/kept_activations.h"

#include <algorithm>
#include <utility>

#include "streambp/memory/meter.h"

namespace streambp {
namespace {

/// In the order of KeptActivations::Index.
constexpr std::array<const char*, 9> kScopes{
    "attention outputs", "attention outputs",         "attention outputs",
    "projected queries", "projected keys and values", "projected keys and values",
    "attention halves",  "gate and up projections",   "gate and up projections"};

}  // namespace

std::array<at::Tensor*, KeptActivations::kCount> KeptActivations::tensors_of(Activations& activations) {
  return {&activations.attention.output, &activations.attention.log_sum_exp, &activations.attention.remainder,
          &activations.queries,          &activations.projected.keys,        &activations.projected.values,
          &activations.attention_half,   &activations.projections.gate,      &activations.projections.up};
}

KeptActivations::KeptActivations(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < std::min(tensors.size(), buffers_.size()); ++i) {
    if (tensors[i].numel() > 0) buffers_[i] = StreamBuffer(tensors[i]);
  }
}

std::vector<at::Tensor> KeptActivations::tensors() const {
  std::vector<at::Tensor> all;
  for (const StreamBuffer& buffer : buffers_) all.push_back(buffer.defined() ? buffer.all() : at::empty({0}));
  return all;
}

void KeptActivations::store(const Rows& rows, const Activations& activations, int64_t tokens) {
  Activations of_chunk = activations;
  const auto tensors = tensors_of(of_chunk);
  for (size_t i = 0; i < kCount; ++i) {
    const at::Tensor& tensor = *tensors[i];
    if (!tensor.defined()) continue;
    if (!buffers_[i].defined()) {
      const MemoryScope scope(kScopes[i]);
      std::vector<int64_t> shape = tensor.sizes().vec();
      shape.front() = tokens;
      buffers_[i] = StreamBuffer(shape, tensor.options(), copies_);
    }
    buffers_[i].store(rows.begin, tensor);
  }
}

void KeptActivations::expect(const Rows& rows) const {
  for (const StreamBuffer& buffer : buffers_) {
    if (buffer.defined()) buffer.expect(rows.begin, rows.end);
  }
}

void KeptActivations::expect_projected(const Rows& rows) const {
  for (const Index index : {kKeys, kValues}) {
    if (buffers_[index].defined()) buffers_[index].expect(rows.begin, rows.end);
  }
}

at::Tensor KeptActivations::take(Index index, int64_t begin, int64_t end) const {
  return buffers_[index].defined() ? buffers_[index].rows(begin, end) : at::Tensor();
}

Activations KeptActivations::rows(const Rows& rows) const {
  Activations kept;
  const auto tensors = tensors_of(kept);
  for (size_t i = 0; i < kCount; ++i) *tensors[i] = take(static_cast<Index>(i), rows.begin, rows.end);
  return kept;
}

KeysValues KeptActivations::projected(const Rows& rows) const {
  return {take(kKeys, rows.begin, rows.end), take(kValues, rows.begin, rows.end)};
}

Activations KeptActivations::of_heads(const Rows& rows) const {
  Activations kept;
  kept.queries = take(kQueries, rows.begin, rows.end);
  kept.projected = projected(rows);
  return kept;
}

AttentionBlock KeptActivations::attention(int64_t tokens) const {
  return {take(kOutput, 0, tokens), take(kLogSumExp, 0, tokens), take(kRemainder, 0, tokens)};
}

void KeptActivations::reset() {
  for (StreamBuffer& buffer : buffers_) buffer.reset();
}

}  // namespace streambp
