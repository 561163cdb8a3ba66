// What the methods share, inside the library only.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/head.h"
#include "streambp/backprop/method.h"

namespace streambp {

/// One pass: the model, its stream and what is asked of them.
struct Pass {
  Model& model;
  const Stream& stream;
  const Scored& scored;
  const Objective& objective;
  int64_t chunk;       // resolved
  int64_t head_chunk;  // resolved
  bool stream_head;
};

HeadOutcome run_standard(const Pass& pass);
HeadOutcome run_checkpoint(const Pass& pass);
HeadOutcome run_streambp(const Pass& pass);

/// The gradient of hidden states [N, D], for a method that has left them without a graph: streamed in their
/// own place, or through the logits in full. `hidden` is used up.
at::Tensor head_gradient(const Pass& pass, at::Tensor hidden, HeadOutcome& outcome);

}  // namespace streambp
