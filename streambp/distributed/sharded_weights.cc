#include "streambp/distributed/sharded_weights.h"

#include <utility>

#include "streambp/distributed/parameter_runs.h"
#include "streambp/distributed/transport/communication_thread.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/layers/value_memory.h"

namespace streambp {

ShardedWeights::ShardedWeights(Communicator& communicator, const Model& model)
    : communicator_(communicator), layers_(model.layers().size()) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope("weights");
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto number = static_cast<int64_t>(layer);
    {
      const LayerWeights weights(model, number);
      // Trained ones by themselves: their runs are those of the gradients.
      std::vector<Parameter*> frozen = model.layer_parameters(number, /*trainable_alone=*/false);
      std::erase_if(frozen, [](const Parameter* parameter) { return parameter->trainable(); });
      std::vector<std::vector<Parameter*>> runs = parameter_runs(model.layer_parameters(number));
      for (std::vector<Parameter*>& run : parameter_runs(frozen)) runs.push_back(std::move(run));
      for (const std::vector<Parameter*>& parameters : runs) {
        Run& run = layers_[layer].emplace_back();
        for (const Parameter* parameter : parameters) run.values.push_back(parameter->value);
        const Concatenation all(run.values);
        const auto [begin, end] = shard_of(all.size(), communicator.rank(), communicator.size());
        run.share = all.read(begin, end).clone();
        shares_[parameters.front()] = run.share;
      }
    }
    remove(number);
  }
}

at::Tensor ShardedWeights::share(const Parameter* first) const {
  const auto found = shares_.find(first);
  return found == shares_.end() ? at::Tensor() : found->second;
}

ShardedWeights::~ShardedWeights() {
  for (const auto& [layer, gathered] : coming_) gathered.wait();
}

void ShardedWeights::begin(int64_t layer) {
  if (communicator_.thread() != nullptr)
    coming_[layer] = communicator_.thread()->start([this, layer] { gather(layer); });
}

void ShardedWeights::bring(int64_t layer) {
  const auto coming = coming_.find(layer);
  if (coming == coming_.end()) return gather(layer);
  const Span span("waiting for the weights of layer {}", layer);
  std::future<void> gathered = std::move(coming->second);
  coming_.erase(coming);
  gathered.get();
}

void ShardedWeights::wait_for(int64_t layer) noexcept {
  const auto coming = coming_.find(layer);
  if (coming == coming_.end()) return;
  coming->second.wait();
  coming_.erase(coming);
}

void ShardedWeights::gather(int64_t layer) {
  const Span span("weights of layer {}", layer);
  const at::NoGradGuard no_grad;
  const MemoryScope scope("weights");
  for (const Run& run : layers_[static_cast<size_t>(layer)]) {
    for (const at::Tensor& value : run.values) allocate_memory(value);
    communicator_.all_gather(run.share, Concatenation(run.values));
  }
}

void ShardedWeights::remove(int64_t layer) noexcept {
  wait_for(layer);
  for (const Run& run : layers_[static_cast<size_t>(layer)]) {
    for (const at::Tensor& value : run.values) free_memory(value);
  }
}

}  // namespace streambp
