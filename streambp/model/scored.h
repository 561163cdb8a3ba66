// Scored tokens: those of a batch that reach the head.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"

namespace streambp {

/// The tokens that reach the head, [M] int64 ascending, on the CPU: those with a target, and those asked for
/// a value.
at::Tensor scored_indices(const Batch& batch);

/// The scored tokens of a stream with what the head needs of them.
struct HeadTargets {
  at::Tensor indices;     // [M] int64 ascending, on the CPU: into the stream
  at::Tensor targets;     // [M] int64, on the model's device; 0 where a token is scored for its value alone
  at::Tensor has_target;  // [M] bool, on the model's device; undefined where all have one
  std::vector<int64_t> offsets = {};  // of the stream's sequences, as Batch's

  int64_t size() const { return indices.size(0); }

  /// Which of them, [first, last), are tokens [begin, end) of the stream.
  std::pair<int64_t, int64_t> within(int64_t begin, int64_t end) const;

  /// Whether [begin, end) of them are contiguous in the stream.
  bool are_contiguous(int64_t begin, int64_t end) const;
};

HeadTargets head_targets(const Batch& batch, c10::Device device);

/// The scored tokens' numbers [M] in the stream of `tokens` tokens, [N], 0 elsewhere; undefined stays
/// undefined.
at::Tensor in_stream(const at::Tensor& of_scored, const HeadTargets& scored, int64_t tokens);

}  // namespace streambp
