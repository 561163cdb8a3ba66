#include "streambp/distributed/gathered_rows.h"

#include <algorithm>
#include <utility>

#include "streambp/backprop/head/head.h"

namespace streambp {

GatheredRows::GatheredRows(Communicator& communicator, std::vector<at::Tensor> indices)
    : communicator_(communicator), indices_(std::move(indices)) {
  for (const at::Tensor& of_rank : indices_) {
    size_ += of_rank.size(0);
    most_ = std::max(most_, of_rank.size(0));
  }
}

at::Tensor GatheredRows::assemble(const at::Tensor& own) const {
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = most_;
  at::Tensor of_ranks;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor padded = at::zeros(shape, own.options());
    padded.narrow(0, 0, own.size(0)).copy_(own);
    of_ranks = communicator_.all_gather(padded);
  }
  shape[0] = size_;
  at::Tensor all = at::zeros(shape, own.options());
  for (int64_t rank = 0; rank < communicator_.size(); ++rank) {
    const at::Tensor indices = of(rank).to(own.device());
    const bool is_own = rank == communicator_.rank();
    all = all.index_copy(0, indices, is_own ? own : of_ranks[rank].narrow(0, 0, indices.size(0)));
  }
  return all;
}

TokenValues GatheredRows::assemble(const TokenValues& own) const {
  Columns columns = to_columns(own);
  std::vector<at::Tensor> defined;
  for (const at::Tensor& column : columns) {
    if (column.defined()) defined.push_back(column);
  }
  if (defined.empty()) return {};
  const std::vector<at::Tensor> all = assemble(at::stack(defined, /*dim=*/1)).unbind(1);
  auto next = all.begin();
  for (at::Tensor& column : columns) {
    if (column.defined()) column = *next++;
  }
  return to_values(columns);
}

at::Tensor GatheredRows::loss(const Objective& whole, const TokenValues& all) const {
  const at::Tensor loss = whole.loss(all, 0, size_);
  return communicator_.rank() == 0 ? loss : loss - loss.detach();
}

}  // namespace streambp
