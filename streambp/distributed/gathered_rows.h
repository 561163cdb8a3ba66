// What ranks know of their rows of one batch, put together: for losses that are no sums over rows.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/distributed/transport/communicator.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// Which rows of a whole batch (scored tokens, or sequences) each rank has. The communicator outlives it.
class GatheredRows {
 public:
  /// `indices`: of each rank, [n] int64 into the whole's rows; each row is one rank's.
  GatheredRows(Communicator& communicator, std::vector<at::Tensor> indices);

  /// Of all ranks.
  int64_t size() const { return size_; }
  const at::Tensor& of(int64_t rank) const { return indices_[static_cast<size_t>(rank)]; }

  /// [size(), ...] of every rank's `own` [n, ...]; gradients go back to this rank's rows alone. All ranks
  /// call it.
  at::Tensor assemble(const at::Tensor& own) const;

  /// The same of what the head says of scored tokens, in one message; without embeddings.
  TokenValues assemble(const TokenValues& own) const;

  /// The loss of `whole` on all rows as a function of this rank's. Its value is the first rank's; the others'
  /// is 0.
  at::Tensor loss(const Objective& whole, const TokenValues& all) const;

 private:
  Communicator& communicator_;
  std::vector<at::Tensor> indices_;
  int64_t size_ = 0;
  int64_t most_ = 0;  // of one rank
};

}  // namespace streambp
