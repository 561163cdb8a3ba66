#include "streambp/distributed/sequence/rows_objective.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "streambp/backprop/head/head.h"
#include "streambp/distributed/data_parallel.h"
#include "streambp/distributed/gathered_rows.h"
#include "streambp/error.h"
#include "streambp/model/scored.h"

namespace streambp {
namespace {

/// Of each rank, which of the whole's scored tokens are among its rows, [m] int64 ascending.
std::vector<at::Tensor> scored_of_ranks(const Batch& whole, const SequenceSplit& split) {
  const at::Tensor indices = scored_indices(whole);
  const int64_t* const first = indices.const_data_ptr<int64_t>();
  const int64_t* const last = first + indices.size(0);
  std::vector<at::Tensor> of_ranks;
  for (int64_t rank = 0; rank < split.ranks(); ++rank) {
    std::vector<at::Tensor> runs{at::empty({0}, at::kLong)};
    for (const Piece& piece : split.pieces(rank)) {
      runs.push_back(at::arange(std::lower_bound(first, last, piece.begin) - first,
                                std::lower_bound(first, last, piece.end) - first, at::kLong));
    }
    of_ranks.push_back(at::cat(runs));
  }
  return of_ranks;
}

/// Of the whole stream's numbers [N] those of the pieces.
at::Tensor own_rows(const at::Tensor& of_whole, const std::vector<Piece>& pieces) {
  std::vector<at::Tensor> runs;
  for (const Piece& piece : pieces) runs.push_back(of_whole.slice(0, piece.begin, piece.end));
  return at::cat(runs);
}

class ObjectiveOfRows final : public Objective {
 public:
  ObjectiveOfRows(Communicator& communicator, std::unique_ptr<Objective> whole, const Batch& scored,
                  const SequenceSplit& split)
      : whole_(std::move(whole)),
        scored_(communicator, scored_of_ranks(scored, split)),
        own_(scored_.of(communicator.rank())) {
    if (whole_->targets().defined()) targets_ = split.batch_of(scored, communicator.rank()).targets;
  }

  std::string name() const override { return whole_->name(); }
  HeadRequest request() const override { return whole_->request(); }
  bool separable() const override { return whole_->separable(); }
  at::Tensor targets() const override { return targets_; }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    if (!separable())
      return scored_.size() == 0 ? at::zeros({}, at::kDouble)
                                 : scored_.loss(*whole_, scored_.assemble(values));
    const int64_t* const own = own_.const_data_ptr<int64_t>();
    at::Tensor sum;
    for (int64_t first = begin; first < end;) {
      // As many as are neighbours in the whole.
      int64_t last = first + 1;
      while (last < end && own[last] == own[last - 1] + 1) ++last;
      const at::Tensor terms =
          whole_->loss(rows_of(values, first - begin, last - begin), own[first], own[first] + last - first);
      sum = sum.defined() ? sum + terms : terms;
      first = last;
    }
    return sum;
  }

 private:
  std::unique_ptr<Objective> whole_;
  GatheredRows scored_;
  at::Tensor own_;      // [m]: this rank's among all scored tokens
  at::Tensor targets_;  // of this rank's rows, where the objective has its own
};

}  // namespace

std::unique_ptr<Objective> objective_of_rows(Communicator& communicator, const std::string& name,
                                             const Batch& whole, const SequenceSplit& split,
                                             const std::map<std::string, std::string>& given) {
  std::unique_ptr<Objective> of_whole = make_objective(name, whole, given);
  if (of_whole->request().pooling != Pooling::kNone)
    throw InputError(
        "{}: compares embeddings of whole sequences, expected ranks to divide sequences, not rows", name);
  Batch scored = whole;
  if (of_whole->targets().defined()) scored.targets = of_whole->targets();
  RouterLoss router_loss = of_whole->router_loss;
  if (router_loss.counted.defined())
    router_loss.counted = own_rows(router_loss.counted, split.pieces(communicator.rank()));
  auto objective = std::make_unique<ObjectiveOfRows>(communicator, std::move(of_whole), scored, split);
  objective->router_loss = router_loss;
  balance_over_ranks(communicator, *objective);
  objective->set_batch(split.batch_of(whole, communicator.rank()));
  return objective;
}

}  // namespace streambp
