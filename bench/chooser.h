// Choosing for the cells of a sweep: the budget of its run, and dry runs beside it.
#pragma once

#include <optional>

#include "bench/choice.h"

namespace streambp::bench {

/// Of `bytes` that are free, the part that tensors may take: past it a run ends in an exception, and before
/// the kernel ends the process.
int64_t usable_part(int64_t bytes);

/// What --method auto has to fit: --budget, else --memory-limit, else what the device has free (on the CPU
/// the limit that is set for it). With CUDA the host's free memory is there for offloading. Throws InputError
/// for the meta device, which has none.
Budget budget_of(const Bench& bench);

/// Makes the choices. While it lives, the meta device has no memory limit and one thread serves all; no other
/// model may be there, which would count.
class Chooser {
 public:
  /// `bench` must outlive it. Throws as budget_of and Predictor do.
  explicit Chooser(const Bench& bench);
  ~Chooser();
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;

  Choice choose(const Cell& asked);

 private:
  const Bench& bench_;
  Bench dry_;  // the same on shapes without storage
  Budget budget_;
  int threads_;
  int64_t meta_limit_;
  std::optional<Predictor> predictor_;
};

}  // namespace streambp::bench
