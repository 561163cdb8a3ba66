// The table of one instruction set's kernels: see kernels.h and vector.h.
#include "streambp/ops/cpu/kernels.h"

#define STREAMBP_TEXT_OF(name) #name
#define STREAMBP_TEXT(name) STREAMBP_TEXT_OF(name)

namespace streambp::cpu::STREAMBP_ISA {

// Each in the file of its op.
template <typename S>
AttentionKernels<S> attention_kernels();
template <typename S>
NormRopeKernels<S> norm_rope_kernels();
template <typename S>
GateKernels<S> gate_kernels();
template <typename S>
SoftmaxKernels<S> softmax_kernels();
template <typename S>
DequantizeKernels<S> dequantize_kernels();
template <typename T>
TargetHeadKernels<T> target_head_kernels();
template <typename S>
DeltaRuleKernels<S> delta_rule_kernels();
template <typename S>
DeltaRuleKernels<S> channel_delta_rule_kernels();
template <typename S>
DeltaRuleKernels<S> state_space_kernels();
template <typename S>
CausalConvKernels<S> causal_conv_kernels();
template <typename S>
GatedNormKernels<S> gated_norm_kernels();

template <typename S>
static KernelSetOf<S> kernels_of() {
  return {attention_kernels<S>(),
          {norm_rope_kernels<S>(), gate_kernels<S>(), softmax_kernels<S>(), dequantize_kernels<S>()},
          target_head_kernels<Wide<S>>(),
          delta_rule_kernels<S>(),
          channel_delta_rule_kernels<S>(),
          state_space_kernels<S>(),
          causal_conv_kernels<S>(),
          gated_norm_kernels<S>()};
}

KernelSet all_kernels();
KernelSet all_kernels() {
  return {{kernels_of<float>(), kernels_of<double>(), kernels_of<Bfloat16>()}, STREAMBP_TEXT(STREAMBP_ISA)};
}

}  // namespace streambp::cpu::STREAMBP_ISA
