// Data-parallel training: each layer's gradients summed over ranks once a pass, after the layer's last chunk,
// and what ZeRO (Rajbhandari et al., 2020, arXiv 1910.02054) divides among the ranks.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/gradient_groups.h"
#include "streambp/distributed/sharded_weights.h"
#include "streambp/distributed/transport/communicator.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp {

/// What a rank holds of all ranks' sums. Weights are whole on every rank but with kWeights.
enum class ZeroStage {
  kNone,       // gradients and optimizer states of all parameters: plain data parallelism
  kOptimizer,  // ZeRO-1: the optimizer states of its shard; its own gradients whole, until they are reduced
  kGradients,  // ZeRO-2: of the gradients, too, only its shard: a layer's end when they have been reduced
  kWeights,    // ZeRO-3: of the layers' weights, too, only its shard: they are gathered when a layer is run
};

/// Whether a layer's gradients end when they have been reduced.
inline bool frees_gradients(ZeroStage stage) {
  return stage == ZeroStage::kGradients || stage == ZeroStage::kWeights;
}

/// Takes a pass's gradients (Settings::consumer), sums them over ranks and steps. A group of parameters that
/// are final together is one run of numbers, the group's parameters one after another, of which rank r has
/// the share that shard_of gives: whoever steps on its share needs nothing of the others. A group's gradients
/// of n numbers cost a rank the message bytes of Communicator::reduce_scatter, or of all_reduce in stage
/// kNone, once for each pass that reduces, whatever the chunks; its step those of all_gather, or none where
/// the weights are divided too: what is gathered then is a layer, whenever it is run (ShardedWeights).
class ReducedGradients final : public GradientConsumer {
 public:
  /// All ranks' `model` have the same parameters and values. Model and communicator outlive this. In stage
  /// kWeights the model's layers are divided, and stay so: no adapter may be attached any more.
  ReducedGradients(Communicator& communicator, Model& model, ZeroStage stage);

  ~ReducedGradients() override { wait_for_sums(); }
  ReducedGradients(const ReducedGradients&) = delete;
  ReducedGradients& operator=(const ReducedGradients&) = delete;

  bool frees() const override { return frees_gradients(stage_); }
  void use(const std::vector<Parameter*>& group) override;
  void finish() override;

  /// From now on the sums of a group are taken by the communicator's thread while the pass goes on with the
  /// next one; a group waits for the one before it, so that no more than two are alive. Throws InputError
  /// where the communicator has no thread.
  void overlap();

  /// Whether passes from now on are followed by others before the next step. Their gradients stay with the
  /// rank, and are reduced with the last pass's; where they are freed each pass's are reduced and added to
  /// the shard, since there is no room for more.
  void accumulate(bool more_to_come) { more_to_come_ = more_to_come; }

  /// Makes the optimizer's states of this rank's shards, so that they are there before the first pass. Throws
  /// InputError for galore and natural-galore with shards: they need whole matrices.
  void prepare(Optimizer& optimizer);

  /// One step of all parameters with the sums over ranks, which end with it: the model's gradients are zero,
  /// or deferred, afterwards. Throws InputError unless all groups have been reduced since the last step.
  void step(Optimizer& optimizer);

  /// Drops all sums, and sets the model's gradients to zero: for passes that no step follows.
  void forget();

  /// The sums over ranks by parameter, gathered where they are divided: on every rank all of them, for checks
  /// and for clipping by norms. All ranks call it.
  std::map<std::string, at::Tensor> gathered();

 private:
  /// Parameters of one group whose gradients have one dtype; of most models, the group.
  struct Run {
    std::vector<Parameter*> parameters;
    Parameter shard;  // this rank's share: values while it steps, and the sums over ranks
    bool is_reduced = false;
  };

  bool is_sharded() const { return stage_ != ZeroStage::kNone; }
  void reduce(Run& run, const Concatenation& gradients);
  /// Returns when all sums have been taken.
  void wait_for_sums() noexcept {
    if (unfinished_.valid()) unfinished_.wait();
  }
  void step(Run& run, Optimizer& optimizer);
  Concatenation values(const Run& run) const;
  static Concatenation gradients(const Run& run);
  /// This rank's share of the run's values: the numbers themselves where they lie together, else a copy.
  at::Tensor own_values(const Run& run) const;

  Communicator& communicator_;
  Model& model_;
  ZeroStage stage_;
  std::shared_ptr<ShardedWeights> weights_;  // null: they are whole
  bool more_to_come_ = false;
  bool overlaps_ = false;
  std::future<void> unfinished_;  // the sums of the latest group
  std::vector<Run> runs_;
  std::map<const Parameter*, std::vector<size_t>> runs_of_;  // by a group's first parameter
};

}  // namespace streambp
