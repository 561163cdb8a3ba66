#include "streambp/runtime/device.h"

#include <charconv>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <limits>
#include <string_view>

#include <ATen/Context.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/gpu.h"
#include "streambp/runtime/wheel_libraries.h"

namespace streambp {
namespace {

void make_deterministic() {
  // cuBLAS takes its workspace at its first product: after that it is too late.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // nobody reads it
}

/// Configures the caching allocators, before their library is loaded; a user's own settings go before ours.
/// Segments that grow leave fewer holes behind when lengths change. The host's memory is pinned where it
/// lies, by eight threads: cudaHostAlloc, the default, takes tens of seconds for what --offload host keeps.
void configure_allocator(const std::string& name, int index, std::optional<int64_t> memory_limit) {
  constexpr const char* kVariable = "PYTORCH_CUDA_ALLOC_CONF";
  const char* const given = std::getenv(kVariable);
  std::string settings = given != nullptr && *given != '\0'
                             ? given
                             : "expandable_segments:True,pinned_use_cuda_host_register:True,"
                               "pinned_num_register_threads:8";
  if (memory_limit) {
    const std::optional<int64_t> memory = gpu_memory(index);
    if (!memory) throw InputError("device '{}': no GPU {} found", name, index);
    if (*memory_limit > *memory)
      throw InputError("--memory-limit {}: device '{}' has {} bytes", *memory_limit, name, *memory);
    settings += fmt::format(",per_process_memory_fraction:{:.12f}",
                            static_cast<double>(*memory_limit) / static_cast<double>(*memory));
  }
  setenv(kVariable, settings.c_str(), /*replace=*/1);
}

/// Sums of products in float32, as records and tests promise: by default cuBLAS may add up the parts of a sum
/// that it splits in the operands' half precision.
void sum_in_float() {
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
}

void count_as(c10::DeviceType device) {
  const bool for_cuda = device == c10::DeviceType::CUDA;
  set_backend(c10::DeviceType::Meta, for_cuda ? Backend::kCuda : Backend::kCpu);
  set_meta_block_bytes(for_cuda ? cuda::kBlockBytes : 1);
}

[[noreturn]] void refuse_name(const std::string& name) {
  throw InputError("device '{}': expected cpu, cuda, cuda:N (N-th GPU, from 0), meta or meta:cuda", name);
}

/// Of `cuda` or `cuda:N`.
c10::DeviceIndex cuda_index(const std::string& name) {
  constexpr std::string_view kFirst = "cuda", kNumbered = "cuda:";
  if (name == kFirst) return 0;
  int index = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kNumbered.size(), end, index);
  const bool number = error == std::errc() && last == end && index >= 0;
  if (!number || index > std::numeric_limits<c10::DeviceIndex>::max()) refuse_name(name);
  return static_cast<c10::DeviceIndex>(index);
}

c10::Device open_cuda(const std::string& name, const DeviceOptions& options) {
  const c10::Device device(c10::DeviceType::CUDA, cuda_index(name));
  configure_allocator(name, device.index(), options.memory_limit);
  if (options.deterministic) make_deterministic();
  sum_in_float();
  // An experimental setting under which cuDNN's attention wants log-sum-exps in another layout.
  unsetenv("TORCH_CUDNN_SDPA_AVOID_RECOMPILE");
  open_nvrtc(folder_of_library("libtorch_cpu.so"));
  // Its kernels register themselves when the library is loaded; nothing of it is linked, so that a machine
  // without CUDA runs too.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw InputError("device '{}': torch's CUDA library can't be loaded ({})", name, dlerror());
  }
  if (!at::globalContext().hasCUDA()) throw InputError("device '{}': no CUDA device found", name);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  install_cuda_meter();
  // Ours are in the program's folder. Without them ATen's own ops serve, slower.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  if (const auto limits = gpu_limits(device.index())) cuda::set_card(*limits);
  const std::string failure =
      cuda::load_kernels(program.parent_path() / "libstreambp_cuda.so", device.index());
  if (!failure.empty())
    fmt::print(stderr, "warning: no CUDA kernels of our own, ATen's serve: {}\n", failure);
  return device;
}

}  // namespace

MetaStandIn::MetaStandIn(c10::DeviceType device)
    : before_(is_for_cuda(at::kMeta) ? c10::DeviceType::CUDA : c10::DeviceType::CPU) {
  count_as(device);
  if (device != c10::DeviceType::CUDA || before_ == device) return;
  const MemoryScope scope("kernel workspace");
  blas_workspace_ =
      at::empty({cuda::blas_workspace_bytes()}, at::TensorOptions().device(at::kMeta).dtype(at::kByte));
}

MetaStandIn::~MetaStandIn() {
  count_as(before_);
}

c10::Device open_device(const std::string& name, const DeviceOptions& options) {
  if (name == "meta" || name == "meta:cuda") {
    const bool for_cuda = name == "meta:cuda";
    if (options.deterministic && !for_cuda)
      throw InputError(
          "--deterministic: a setting of cuda and meta:cuda; other passes repeat to the bit anyway");
    if (options.deterministic) make_deterministic();
    static std::optional<MetaStandIn> stand_in;  // until the next one is opened
    stand_in.emplace(for_cuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
    return at::kMeta;
  }
  if (name == "cpu") {
    if (options.deterministic)
      throw InputError(
          "--deterministic: a setting of cuda and meta:cuda; the CPU's passes repeat to the bit anyway");
    return at::kCPU;
  }
  if (name != "cuda" && !name.starts_with("cuda:")) refuse_name(name);
  return open_cuda(name, options);
}

}  // namespace streambp
