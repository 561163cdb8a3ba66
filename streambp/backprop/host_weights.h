// Weights that lie in the host's memory, with one layer's on the device and the next one's on its path there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/kept/host_copies.h"
#include "streambp/backprop/streamed/stream_buffer.h"
#include "streambp/model/weight_provider.h"
#include "streambp/ops/parameter.h"

namespace streambp {

/// Keeps the values of all layers' parameters, frozen or trained, in the host's memory (page-locked where the
/// device is a GPU, a ledger of its own on the CPU and the meta device: HostMemoryScope). A layer that is
/// entered is copied to the device, and the next one's copy begins: two layers are there at most, where a
/// method asks for one at a time. What a step has changed is copied back when the layer is left.
///
///     auto host = std::make_shared<HostWeights>(device);
///     placement.filled = [host](Parameter& parameter) { host->take(parameter); };
///     Model model = Model::load(checkpoint, placement);
///     model.provide(host);
///
/// What is no layer's stays on the device: embedding, final norm, heads; and adapters, which are attached
/// later.
class HostWeights final : public LayerByLayer {
 public:
  explicit HostWeights(c10::Device device);

  /// Moves the value of `parameter`, if it is a layer's, to the host's memory. Throws OutOfMemory (or c10's).
  void take(Parameter& parameter);

 protected:
  void begin(int64_t layer) override;
  void bring(int64_t layer) override;
  void remove(int64_t layer) noexcept override;

 private:
  struct Weight {
    at::Tensor value;                 // the parameter's, without memory while the layer is away
    StreamBuffer host;                // its numbers, one after another
    std::optional<uint32_t> version;  // of the value when it came, while it is there: a step counts it up
  };

  std::shared_ptr<HostCopies> copies_;
  std::map<int64_t, std::vector<Weight>> layers_;
};

}  // namespace streambp
