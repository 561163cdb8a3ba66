#include "streambp/distributed/reduced_gradients.h"

#include <utility>

#include "streambp/distributed/parameter_runs.h"
#include "streambp/distributed/transport/communication_thread.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {

ReducedGradients::ReducedGradients(Communicator& communicator, Model& model, ZeroStage stage)
    : communicator_(communicator), model_(model), stage_(stage) {
  if (stage == ZeroStage::kWeights) {
    weights_ = std::make_shared<ShardedWeights>(communicator, model);
    model.provide(weights_);
  }
  for (const std::vector<Parameter*>& group : gradient_groups(model)) {
    for (std::vector<Parameter*>& parameters : parameter_runs(group)) {
      runs_of_[group.front()].push_back(runs_.size());
      Run& run = runs_.emplace_back();
      run.parameters = std::move(parameters);
      run.shard.name = "shard of " + run.parameters.front()->name;
    }
  }
}

Concatenation ReducedGradients::values(const Run& run) const {
  std::vector<at::Tensor> tensors;
  for (const Parameter* parameter : run.parameters) tensors.push_back(parameter->value);
  return Concatenation(tensors);
}

Concatenation ReducedGradients::gradients(const Run& run) {
  std::vector<at::Tensor> tensors;
  for (const Parameter* parameter : run.parameters) tensors.push_back(parameter->gradient);
  return Concatenation(tensors);
}

at::Tensor ReducedGradients::own_values(const Run& run) const {
  if (weights_ != nullptr) {
    const at::Tensor share = weights_->share(run.parameters.front());
    if (share.defined()) return share;
  }
  const MemoryScope scope("optimizer step");
  const Concatenation all = values(run);
  const auto [begin, end] = shard_of(all.size(), communicator_.rank(), communicator_.size());
  return all.read(begin, end);
}

void ReducedGradients::use(const std::vector<Parameter*>& group) {
  if (more_to_come_ && !frees()) return;
  const auto found = runs_of_.find(group.front());
  if (found == runs_of_.end())
    throw InputError("gradients of '{}' and others: not a group of the model that is reduced",
                     group.front()->name);
  std::vector<std::pair<size_t, Concatenation>>
      own;  // alive until they are summed, whoever frees them meanwhile
  for (const size_t i : found->second) own.emplace_back(i, gradients(runs_[i]));
  const auto reduce_all = [this, own = std::move(own)] {
    const Span span("sums over ranks");
    for (const auto& [i, gradients] : own) reduce(runs_[i], gradients);
  };
  if (!overlaps_) return reduce_all();
  finish();
  unfinished_ = communicator_.thread()->start(reduce_all);
}

void ReducedGradients::finish() {
  if (!unfinished_.valid()) return;
  const Span span("waiting for sums over ranks");
  unfinished_.get();
}

void ReducedGradients::overlap() {
  if (communicator_.thread() == nullptr)
    throw InputError("overlap: the communicator has no thread of its own, expected send_from() before");
  overlaps_ = true;
}

void ReducedGradients::reduce(Run& run, const Concatenation& gradients) {
  if (!is_sharded()) {
    if (run.is_reduced)
      throw InputError(
          "the gradients of '{}' and others are the sums over ranks already, expected a step or accumulation "
          "before another pass",
          run.parameters.front()->name);
    communicator_.all_reduce(gradients);
  } else {
    const MemoryScope scope("gradients");
    const at::Tensor sums = communicator_.reduce_scatter(gradients);
    // Whole gradients of earlier passes are in the sums already.
    if (frees() && run.shard.gradient.defined()) {
      run.shard.gradient.add_(sums);
    } else {
      run.shard.gradient = sums;
    }
  }
  run.is_reduced = true;
}

void ReducedGradients::prepare(Optimizer& optimizer) {
  if (is_sharded() && optimizer.needs_matrices())
    throw InputError("optimizer: its states are of whole matrices, expected sgd or adamw with ZeRO");
  for (const Run& run : runs_) {
    if (!is_sharded()) {
      for (const Parameter* parameter : run.parameters) optimizer.prepare(*parameter);
      continue;
    }
    Parameter shard;
    shard.name = run.shard.name;
    shard.value = own_values(run);
    optimizer.prepare(shard);
  }
}

void ReducedGradients::step(Run& run, Optimizer& optimizer) {
  if (!std::exchange(run.is_reduced, false))
    throw InputError(
        "the gradients of '{}' and others are not reduced, expected a pass that ends accumulation",
        run.parameters.front()->name);
  if (!is_sharded()) {
    // A step may take the gradient with it; the model's buffer stays.
    for (Parameter* parameter : run.parameters) {
      const at::Tensor gradient = parameter->gradient;
      optimizer.step(*parameter);
      parameter->gradient = gradient.zero_();
    }
    return;
  }
  if (weights_ != nullptr) run.shard.value = weights_->share(run.parameters.front());
  if (run.shard.value.defined()) {
    if (run.shard.value.numel() > 0) optimizer.step(run.shard);
    run.shard.value.reset();
    return run.shard.gradient.reset();
  }
  {
    const MemoryScope scope("optimizer step");
    run.shard.value = own_values(run).clone();
  }
  if (run.shard.value.numel() > 0) optimizer.step(run.shard);
  run.shard.gradient.reset();
  communicator_.all_gather(std::exchange(run.shard.value, {}), values(run));
  if (frees()) return;
  for (Parameter* parameter : run.parameters) parameter->gradient.zero_();
}

void ReducedGradients::step(Optimizer& optimizer) {
  if (is_sharded() && optimizer.needs_matrices())
    throw InputError("optimizer: its states are of whole matrices, expected sgd or adamw with ZeRO");
  const at::NoGradGuard no_grad;
  for (Run& run : runs_) step(run, optimizer);
}

void ReducedGradients::forget() {
  for (Run& run : runs_) {
    run.is_reduced = false;
    run.shard.gradient.reset();
  }
  model_.zero_gradients();
}

std::map<std::string, at::Tensor> ReducedGradients::gathered() {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> all;
  for (const Run& run : runs_) {
    if (!run.is_reduced)
      throw InputError("the gradients of '{}' and others are not reduced yet", run.parameters.front()->name);
    std::vector<at::Tensor> whole;
    for (const Parameter* parameter : run.parameters) {
      whole.push_back(is_sharded() ? at::empty(parameter->value.sizes(), run.shard.gradient.options())
                                   : parameter->gradient);
      all[parameter->name] = whole.back();
    }
    if (is_sharded()) communicator_.all_gather(run.shard.gradient, Concatenation(whole));
  }
  return all;
}

}  // namespace streambp
