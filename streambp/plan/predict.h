// What a pass would take on a device that is not there: the real engine on the meta device, where tensors
// have shapes and no storage, under the same meter as a measured run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "streambp/backprop/method.h"
#include "streambp/plan/models.h"
#include "streambp/runtime/device.h"

namespace streambp::plan {

/// The peak of one back-propagation and what it is made of, in bytes.
struct Prediction {
  int64_t seq_len = 0;
  int64_t tokens = 0;      // of the whole batch
  int64_t chunk = 0;       // as run; 0: the method has none
  int64_t head_chunk = 0;  // as run; 0: the head was not streamed
  int64_t peak_bytes = 0;
  int64_t resident_bytes = 0;                // alive before the pass: weights, gradients, optimizer states
  std::map<std::string, int64_t> breakdown;  // of the peak, by scope
  int64_t host_peak_bytes = 0;               // in the host's memory, of what is offloaded
  double model_flops = 0.0;                  // that the pass asks for
  double hardware_flops = 0.0;               // that the pass executes
};

/// "33.1 GB: weights 16.4 GB, gradients 16.4 GB, ...", the largest first.
std::string describe(const std::map<std::string, int64_t>& breakdown);

/// The process as dry runs for `device` need it, while this lives: meters are installed, the meta device
/// stands for `device` (unless that is meta) and has no memory limit, and LibTorch has one thread, as nothing
/// is computed.
class DryRunScope {
 public:
  explicit DryRunScope(c10::Device device);
  ~DryRunScope();
  DryRunScope(const DryRunScope&) = delete;
  DryRunScope& operator=(const DryRunScope&) = delete;

 private:
  int threads_;
  int64_t memory_limit_;
  std::optional<MetaStandIn> stand_in_;
};

/// Predicts step after step with models that are made once. Everything that lies on the meta device is
/// counted, another predictor's models too.
class Predictor {
 public:
  /// `device`: Workload::device. Throws as open_models does.
  Predictor(const ModelSetup& setup, c10::Device device);

  /// From now on each prediction begins with a call that is given how many there were, for progress of long
  /// searches.
  void watch(std::function<void(int64_t done)> watcher) { watcher_ = std::move(watcher); }

  /// Throws InputError with what the pass threw.
  Prediction predict(const TrainingStep& step, const Settings& settings);

  /// What is alive without any pass: weights, gradients, optimizer states, by scope.
  Prediction floor() const;

  /// Shapes without storage.
  const Models& models() const { return models_; }
  c10::Device device() const { return device_; }

 private:
  c10::Device device_;
  DryRunScope scope_;
  Models models_;
  std::function<void(int64_t done)> watcher_;
  int64_t done_ = 0;
};

/// Of one workload by one method; models are made for it and dropped, the value head among them where the
/// objective needs one. Throws as Predictor and its predict() do.
Prediction predict(const Workload& workload, const Settings& settings);

/// `setup` with a value head where the step's objective needs one.
ModelSetup complete_setup(const Workload& workload);

}  // namespace streambp::plan
