// The table of one instruction set's kernels: see kernels.h and vector.h.
#include "streambp/ops/cpu/kernels.h"

#define STREAMBP_TEXT_OF(name) #name
#define STREAMBP_TEXT(name) STREAMBP_TEXT_OF(name)

namespace streambp::cpu::STREAMBP_ISA {

// Each in the file of its op.
AttentionKernels<float> attention_float();
AttentionKernels<double> attention_double();
AttentionKernels<Bfloat16> attention_bfloat16();

Kernels all_kernels();
Kernels all_kernels() {
  return {STREAMBP_TEXT(STREAMBP_ISA), attention_float(), attention_double(), attention_bfloat16()};
}

}  // namespace streambp::cpu::STREAMBP_ISA
