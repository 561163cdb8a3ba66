// What the library needs of torch that is no public interface of it: the one file that names it
// (check_house.py holds all other files to that), for torch 2.11 to 2.15. Where versions differ, the
// difference ends here.
//
// c10d's ProcessGroupGloo and ProcessGroupNCCL, whose headers take half a minute to compile, have files of
// their own: distributed/transport/process_ranks.cc with gloo_declarations/, and distributed/nccl_library.cc.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace streambp::torch_private {

// Autograd.

/// Gradients of outputs in, gradients of inputs out.
using Backward = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>&&)>;

/// Makes `backward` the gradient function of `outputs`, which have none so far, for those of `inputs` that
/// require a gradient. It is called at most once, and freed with what it holds before it is called; a second
/// call of the graph throws c10::Error.
void set_backward(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                  const char* name, Backward backward);

/// The gradient function of `output`, an op's with one input, which lives without `output`.
std::function<at::Tensor(const at::Tensor&)> backward_of(const at::Tensor& output);

/// While it lives, this thread has no autocast and no hooks on what graphs save.
class WithoutAutocastOrHooks {
 public:
  WithoutAutocastOrHooks();
  ~WithoutAutocastOrHooks();
  WithoutAutocastOrHooks(const WithoutAutocastOrHooks&) = delete;
  WithoutAutocastOrHooks& operator=(const WithoutAutocastOrHooks&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
  at::impl::SavedTensorDefaultHooksTLS hooks_;
};

// Attention; on a GPU in half precision. Log-sum-exps are float32, of float64 float64.

/// A block of FlashAttention: q [B, n, H, E], k and v [B, m, K, E], or several sequences one after another
/// without B, whose beginnings and end are `offsets`, int32 on the device.
struct FlashBlock {
  at::Tensor q, k, v;
  at::Tensor offsets;  // undefined: none
  int64_t longest_queries = 0, longest_keys = 0;
  bool causal = false;  // lower-right
  double scale = 1.0;
  std::optional<int64_t> left, right;  // how many keys before and after its own a query sees; all
};

/// Output like q, and log-sum-exps [B, H, n], or [H, n] with offsets.
std::pair<at::Tensor, at::Tensor> flash_attention(const FlashBlock& block);

/// Gradients of q, k and v.
std::array<at::Tensor, 3> flash_attention_backward(const FlashBlock& block, const at::Tensor& d_output,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp);

/// cuDNN's: q [1, H, n, E], k and v [1, K, m, E], causal from the top left. Output like q, and log-sum-exps
/// of H n numbers.
std::pair<at::Tensor, at::Tensor> cudnn_attention(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, bool causal, double scale);

/// Gradients of q, k and v; log-sum-exps are [1, H, n, 1].
std::array<at::Tensor, 3> cudnn_attention_backward(const at::Tensor& d_output, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp,
                                                   bool causal, double scale);

// Products on the CPU.

/// c [rows, columns] += a [rows, depth] b [depth, columns] by oneDNN's kernel for bfloat16, with so many
/// numbers from a row to the next; b's rows lie interleaved two by two. A thread calls
/// release_bfloat16_product() after its last product.
void add_bfloat16_product(int64_t rows, int64_t columns, int64_t depth, int64_t a_row, int64_t b_row,
                          int64_t c_row, const at::BFloat16* a, const at::BFloat16* b, float* c);
void release_bfloat16_product();

// Streams.

c10::Stream current_stream(c10::Device device);

/// Makes `stream` the current one of its device, and returns what was.
c10::Stream exchange_stream(const c10::Stream& stream);

/// One of the device's other streams, of high priority.
c10::Stream other_stream(c10::Device device);

/// The device's own handle of its current stream, such as a cudaStream_t.
void* stream_handle(c10::Device device);

/// Returns when all work of the device is done.
void synchronize(c10::Device device);

// Memory.

/// Of the CPU and of the meta device, which live from here on.
void set_allocators(c10::Allocator& cpu, c10::Allocator& meta);

/// Calls `heard` for every block of a device that its caching allocator gives (bytes > 0) or takes back (< 0)
/// in this thread, and in those that autograd starts for it, from here on.
void hear_blocks(std::function<void(void* data, int64_t bytes, c10::Device device)> heard);

/// Bytes of a GPU's memory, and of the host's that is page-locked for it.
struct GpuMemory {
  int64_t allocated = 0;
  int64_t allocated_peak = 0;
  int64_t reserved_peak = 0;
  int64_t pinned_peak = 0;
  int64_t free = 0;   // of the device
  int64_t total = 0;  // of the device
};
GpuMemory gpu_memory(c10::Device device);
void reset_gpu_peaks(c10::Device device);

/// Gives back what the caching allocator holds for nobody.
void empty_cache(c10::Device device);

// Failures.

/// Whether a device's allocator says that memory ran out.
bool is_out_of_device_memory(const std::exception& error);

/// Whether a device says that it is in no state to go on, so that nothing more runs on it.
bool is_device_lost(const std::exception& error);

// Dry runs.

/// Whether ATen's op of this name, without "aten::", has no kernel for the meta device: some are torch's
/// Python's.
bool lacks_meta_kernel(const char* op);

}  // namespace streambp::torch_private
