#include "streambp/ops/head/target_softmax.h"

#include "streambp/ops/fused.h"

namespace streambp {
namespace {

/// Calls body(kernels, args, begin, end) for ranges of rows on the CPU, on_cuda(kernels, args) on a GPU.
template <typename Body, typename OnCuda>
void for_rows(const at::Tensor& logits, const at::Tensor& targets, double temperature, const at::Tensor& sums,
              Body body, OnCuda on_cuda) {
  launch_for(logits, [&](auto number) {
    using S = decltype(number);
    const cpu::TargetSoftmax<S> args{.logits = kernel_data<S>(logits),
                                     .size = logits.size(1),
                                     .scale = 1.0 / temperature,
                                     .targets = kernel_data<const int64_t>(targets),
                                     .sums = kernel_data<double>(sums)};
    if (is_for_cuda(logits)) return on_cuda(cuda::kernels()->of<S>().softmax, args);
    at::parallel_for(0, logits.size(0), rows_per_thread(args.size), [&](int64_t begin, int64_t end) {
      body(cpu::kernels().of<S>().elementwise.softmax, args, begin, end);
    });
  });
}

}  // namespace

bool has_target_softmax(c10::Device device) {
  return has_kernels(device);
}

at::Tensor target_log_probabilities(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                    at::Tensor& sums) {
  const auto options = logits.options().dtype(at::kDouble);
  at::Tensor log_probabilities = at::empty({logits.size(0)}, options);
  sums = at::empty({logits.size(0), 2}, options);
  for_rows(
      logits, targets.contiguous(), temperature, sums,
      [&](const auto& kernels, const auto& args, int64_t begin, int64_t end) {
        kernels.forward(args, kernel_data<double>(log_probabilities), begin, end);
      },
      [&](const auto& kernels, const auto& args) {
        expect_launched(
            kernels.forward(cuda_queue(logits), args, kernel_data<double>(log_probabilities), logits.size(0)),
            "log-softmax of targets");
      });
  return log_probabilities;
}

void target_log_probabilities_backward(at::Tensor& logits, const at::Tensor& targets, double temperature,
                                       const at::Tensor& sums, const at::Tensor& d_target) {
  const at::Tensor d = d_target.contiguous();
  for_rows(
      logits, targets.contiguous(), temperature, sums,
      [&](const auto& kernels, const auto& args, int64_t begin, int64_t end) {
        kernels.backward(args, kernel_data<const double>(d), begin, end);
      },
      [&](const auto& kernels, const auto& args) {
        expect_launched(
            kernels.backward(cuda_queue(logits), args, kernel_data<const double>(d), logits.size(0)),
            "gradient of targets' log-softmax");
      });
}

}  // namespace streambp
