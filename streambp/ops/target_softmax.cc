#include "streambp/ops/target_softmax.h"

#include "streambp/ops/fused.h"

namespace streambp {
namespace {

/// Calls body(kernels, told, begin, end) for ranges of rows on the CPU, on_cuda(kernels, told) on a GPU.
template <typename Body, typename OnCuda>
void for_rows(const at::Tensor& logits, const at::Tensor& targets, double temperature, const at::Tensor& sums,
              Body body, OnCuda on_cuda) {
  with_kernel_dtype(logits.scalar_type(), [&](auto number) {
    using T = cpu::Wide<decltype(number)>;
    const cpu::TargetSoftmax<T> told{kernel_data<T>(logits), logits.size(1), 1.0 / temperature,
                                     targets.const_data_ptr<int64_t>(), kernel_data<double>(sums)};
    if (is_for_cuda(logits)) return on_cuda(cuda::kernels()->of<T>().softmax, told);
    at::parallel_for(0, logits.size(0), rows_per_thread(told.size), [&](int64_t begin, int64_t end) {
      body(cpu::kernels().of<T>().elementwise.softmax, told, begin, end);
    });
  });
}

}  // namespace

bool has_target_softmax(c10::Device device) {
  return device.is_cpu() || device.is_meta() || (device.is_cuda() && cuda::kernels() != nullptr);
}

at::Tensor target_log_probabilities(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                    at::Tensor& sums) {
  const auto options = logits.options().dtype(at::kDouble);
  at::Tensor log_probabilities = at::empty({logits.size(0)}, options);
  sums = at::empty({logits.size(0), 2}, options);
  if (logits.is_meta()) return log_probabilities;
  for_rows(
      logits, targets.contiguous(), temperature, sums,
      [&](const auto& kernels, const auto& told, int64_t begin, int64_t end) {
        kernels.forward(told, kernel_data<double>(log_probabilities), begin, end);
      },
      [&](const auto& kernels, const auto& told) {
        expect_launched(
            kernels.forward(cuda_queue(logits), told, kernel_data<double>(log_probabilities), logits.size(0)),
            "log-softmax of targets");
      });
  return log_probabilities;
}

void target_log_probabilities_backward(at::Tensor& logits, const at::Tensor& targets, double temperature,
                                       const at::Tensor& sums, const at::Tensor& d_target) {
  if (logits.is_meta()) return;
  const at::Tensor d = d_target.contiguous();
  for_rows(
      logits, targets.contiguous(), temperature, sums,
      [&](const auto& kernels, const auto& told, int64_t begin, int64_t end) {
        kernels.backward(told, kernel_data<const double>(d), begin, end);
      },
      [&](const auto& kernels, const auto& told) {
        expect_launched(
            kernels.backward(cuda_queue(logits), told, kernel_data<const double>(d), logits.size(0)),
            "gradient of targets' log-softmax");
      });
}

}  // namespace streambp
