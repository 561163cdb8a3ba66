#include "streambp/runtime/torch_private.h"

#include <memory>
#include <string>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace streambp::torch_private {
namespace {

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(const char* name, Backward backward, torch::autograd::edge_list&& next_edges)
      : Node(std::move(next_edges)), name_(name), backward_(std::move(backward)) {}

  std::string name() const override { return name_; }
  void release_variables() override { backward_ = nullptr; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(backward_, name_, ": a second backward pass through the same graph");
    // Taken out first, so that what the closure captured is freed with it and not when the graph is.
    const Backward backward = std::exchange(backward_, nullptr);
    return backward(std::move(gradients));
  }

  const char* name_;
  Backward backward_;
};

/// Nodes are held by std::shared_ptr in torch 2.11 and by c10::intrusive_ptr in 2.13 and 2.15.
template <typename Node, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  }
}

class BlockReports final : public c10::MemoryReportingInfoBase {
 public:
  explicit BlockReports(std::function<void(void*, int64_t, c10::Device)> heard) : heard_(std::move(heard)) {}

  void reportMemoryUsage(void* data, int64_t bytes, size_t, size_t, c10::Device device) override {
    heard_(data, bytes, device);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  std::function<void(void*, int64_t, c10::Device)> heard_;
};

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

void set_backward(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                  const char* name, Backward backward) {
  const auto node =
      make_node<ClosureNode>(name, std::move(backward), torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

std::function<at::Tensor(const at::Tensor&)> backward_of(const at::Tensor& output) {
  return [edge = torch::autograd::impl::gradient_edge(output)](const at::Tensor& gradient) {
    return (*edge.function)({gradient}).front();
  };
}

WithoutAutocastOrHooks::WithoutAutocastOrHooks()
    : no_autocast_(c10::autocast_dispatch_keyset), hooks_(at::SavedTensorDefaultHooks::get_tls_state()) {
  at::SavedTensorDefaultHooks::set_tls_state({});
}

WithoutAutocastOrHooks::~WithoutAutocastOrHooks() {
  at::SavedTensorDefaultHooks::set_tls_state(hooks_);
}

std::pair<at::Tensor, at::Tensor> flash_attention(const FlashBlock& block) {
  const auto offsets = block.offsets.defined() ? std::optional(block.offsets) : std::nullopt;
  // From 2.13 on the op takes more at the end, which may be left out.
  const auto result = at::_flash_attention_forward(
      block.q, block.k, block.v, offsets, offsets, block.longest_queries, block.longest_keys,
      /*dropout_p=*/0.0, block.causal, /*return_debug_mask=*/false, block.scale, block.left, block.right);
  return {std::get<0>(result), std::get<1>(result)};
}

std::array<at::Tensor, 3> flash_attention_backward(const FlashBlock& block, const at::Tensor& d_output,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp) {
  // Without dropout the state of the random numbers is not looked at.
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      d_output, block.q, block.k, block.v, output, log_sum_exp, block.offsets, block.offsets,
      block.longest_queries, block.longest_keys, /*dropout_p=*/0.0, block.causal, /*rng_state=*/at::Tensor(),
      /*unused=*/at::Tensor(), block.scale, block.left, block.right);
  return {dq, dk, dv};
}

std::pair<at::Tensor, at::Tensor> cudnn_attention(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, bool causal, double scale) {
  const auto result = at::_scaled_dot_product_cudnn_attention(
      q, k, v, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, causal,
      /*return_debug_mask=*/false, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

std::array<at::Tensor, 3> cudnn_attention_backward(const at::Tensor& d_output, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp,
                                                   bool causal, double scale) {
  const at::Tensor unused = at::empty({}, q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      d_output, q, k, v, output, log_sum_exp, /*philox_seed=*/unused, /*philox_offset=*/unused,
      /*attn_bias=*/at::Tensor(), /*cum_seq_q=*/at::Tensor(), /*cum_seq_k=*/at::Tensor(), q.size(2),
      k.size(2), /*dropout_p=*/0.0, causal, scale);
  return {dq, dk, dv};
}

void add_bfloat16_product(int64_t rows, int64_t columns, int64_t depth, int64_t a_row, int64_t b_row,
                          int64_t c_row, const at::BFloat16* a, const at::BFloat16* b, float* c) {
  at::native::cpublas::brgemm(rows, columns, depth, a_row, b_row, c_row, /*add_C=*/true, a, b, c,
                              /*is_vnni=*/true);
}

void release_bfloat16_product() {
  at::native::cpublas::brgemm_release();
}

c10::Stream current_stream(c10::Device device) {
  return guard_of(device).getStream(device);
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  return guard_of(stream.device()).exchangeStream(stream);
}

c10::Stream other_stream(c10::Device device) {
  return guard_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

void* stream_handle(c10::Device device) {
  return guard_of(device).getStreamNativeHandle(current_stream(device));
}

void synchronize(c10::Device device) {
  guard_of(device).synchronizeDevice(device.index());
}

void set_allocators(c10::Allocator& cpu, c10::Allocator& meta) {
  constexpr uint8_t kBeforeAllOthers = 255;
  c10::SetCPUAllocator(&cpu, kBeforeAllOthers);
  c10::SetAllocator(c10::DeviceType::Meta, &meta, kBeforeAllOthers);
}

void hear_blocks(std::function<void(void* data, int64_t bytes, c10::Device device)> heard) {
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE,
                                   std::make_shared<BlockReports>(std::move(heard)));
}

GpuMemory gpu_memory(c10::Device device) {
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto [free, total] = allocator->getMemoryInfo(device.index());
  return {.allocated = stats.allocated_bytes[kAll].current,
          .allocated_peak = stats.allocated_bytes[kAll].peak,
          .reserved_peak = stats.reserved_bytes[kAll].peak,
          .pinned_peak = at::getHostAllocator(device.type())->get_stats().active_bytes.peak,
          .free = static_cast<int64_t>(free),
          .total = static_cast<int64_t>(total)};
}

void reset_gpu_peaks(c10::Device device) {
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  at::getHostAllocator(device.type())->reset_peak_stats();
}

void empty_cache(c10::Device device) {
  c10::getDeviceAllocator(device.type())->emptyCache();
}

bool is_out_of_device_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
}

bool is_device_lost(const std::exception& error) {
  return dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr;
}

bool lacks_meta_kernel(const char* op) {
  const auto found = c10::Dispatcher::singleton().findSchema({std::string("aten::") + op, ""});
  return found && !found->hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

}  // namespace streambp::torch_private
