// What a configuration costs in time, estimated: for ranking, not for promises.
#pragma once

#include <functional>
#include <memory>

#include "streambp/backprop/method.h"
#include "streambp/plan/models.h"

namespace streambp::plan {

/// Estimates for one training step.
class CostModel {
 public:
  /// Of `step` on `device` (Workload::device), wherever `models` lie (they may be shapes without storage);
  /// they must outlive it. Throws InputError as make_batch does.
  CostModel(const Models& models, const TrainingStep& step, c10::Device device);

  /// The time of one pass, with 1 for standard back-propagation:
  ///
  ///   (F + m * moved + 2000 * bytes) * (1 + 20 / chunk), relative to the same of standard
  ///
  /// - F: operations of all matrix products that the method executes, recomputation included
  ///   (streambp/plan/flops/hardware_flops.h).
  /// - moved: bytes that tensors too large for a cache of 32 MB pass through memory, with m = 20 operations a
  ///   byte on the CPU and 80 elsewhere. A head that is not streamed writes and reads the log-softmax of all
  ///   logits and its gradient, which the streamed one has in place of the logits. On the CPU layers write
  ///   and read the values between their products, 6 D + 3 F of a token forward and 6 D + 5 F backward, which
  ///   rows that are few enough find in the cache: those of a chunk, or for tiled those of the MLP. What is
  ///   kept in addition to inputs is written once and read once.
  /// - bytes: what goes to the host's memory and comes back, at 2000 operations a byte (a GPU of 400 TFLOP/s
  ///   that reaches half of it, with a link of 100 GB/s in both directions together). An assumption.
  /// - 1 + 20 / chunk: products of few rows are slower, and each chunk reads the weights and adds to their
  ///   gradients again: 31 % at 64 rows, 8 % at 256, 2 % at 1024. Processor times of qwen3-cpu at 2048 tokens
  ///   (one thread, least of three, a busy machine) were 23 % and 9 % above those of 1024 rows; elsewhere an
  ///   assumption.
  double relative(const Settings& settings) const;

  /// Of the batch.
  int64_t tokens() const { return batch_.size(); }

 private:
  double operations(const Settings& settings) const;
  double moved_bytes(const Settings& settings) const;
  double moved_by_layers(const Settings& settings) const;
  double kept_bytes(const Settings& settings) const;
  double host_bytes(const Settings& settings) const;
  /// `width`: how many numbers of a token, of a layer with a backward pass.
  double bytes_of_layers(const Settings& settings,
                         const std::function<int64_t(int64_t layer, int64_t first)>& width) const;
  double element_bytes() const;

  const Models& models_;
  c10::Device device_;
  Batch batch_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace streambp::plan
