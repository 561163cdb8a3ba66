// Weights that ranks divide among them (ZeRO-3, Rajbhandari et al., 2020, arXiv 1910.02054).
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/distributed/transport/communicator.h"
#include "streambp/model/model.h"
#include "streambp/model/weight_provider.h"

namespace streambp {

/// Has this rank's share of the values of each layer's parameters, frozen or trained, and gathers a layer
/// from all ranks when it is entered: one layer is there, where a method asks for one at a time, and a layer
/// that is next once more stays. Where the communicator has a thread (Communicator::send_from) it gathers the
/// next layer while one is run, and two are there. A layer of n bytes costs a rank the message bytes of
/// Communicator::all_gather whenever it is brought, whatever the chunks. What is no layer's stays whole:
/// embedding, final norm, heads.
class ShardedWeights final : public LayerByLayer {
 public:
  /// Takes the shares out of `model`, of which all ranks have the same values, maybe brought by an earlier
  /// provider, and frees the layers' memory. To be given to Model::provide then. No messages.
  ShardedWeights(Communicator& communicator, const Model& model);
  ~ShardedWeights() override;
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  /// This rank's share [n] of the values of the run (parameter_runs) that begins with `first`, which a step
  /// may change while no layer is there; undefined where they are whole on every rank.
  at::Tensor share(const Parameter* first) const;

 protected:
  void begin(int64_t layer) override;
  void bring(int64_t layer) override;
  void remove(int64_t layer) noexcept override;

 private:
  struct Run {
    std::vector<at::Tensor> values;  // the parameters', without memory while the layer is away
    at::Tensor share;
  };

  void gather(int64_t layer);
  /// Returns when the layer, if the thread gathers it, is there.
  void wait_for(int64_t layer) noexcept;

  Communicator& communicator_;
  std::map<int64_t, std::future<void>> coming_;  // layers that the thread gathers
  std::vector<std::vector<Run>> layers_;
  std::map<const Parameter*, at::Tensor> shares_;  // by a run's first parameter
};

}  // namespace streambp
