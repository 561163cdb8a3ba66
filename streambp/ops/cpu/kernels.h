// Our own kernels for the CPU, compiled once for each instruction set and chosen when the program starts.
#pragma once

#include <vector>

#include "streambp/ops/cpu/attention.h"

namespace streambp::cpu {

/// The kernels of one instruction set.
struct Kernels {
  const char* instruction_set;  // "avx512", "avx2" or "baseline"
  AttentionKernels<float> attention_float;
  AttentionKernels<double> attention_double;
  AttentionKernels<Bfloat16> attention_bfloat16;

  template <typename T>
  const AttentionKernels<T>& attention() const;
};

template <>
inline const AttentionKernels<float>& Kernels::attention<float>() const {
  return attention_float;
}
template <>
inline const AttentionKernels<double>& Kernels::attention<double>() const {
  return attention_double;
}
template <>
inline const AttentionKernels<Bfloat16>& Kernels::attention<Bfloat16>() const {
  return attention_bfloat16;
}

/// Those of the widest set that this machine has; the environment variable STREAMBP_ISA names another one
/// that it has, for tests. Throws InputError where it names none.
const Kernels& kernels();

/// One for each set that this machine can run, the widest first.
std::vector<Kernels> available_kernels();

}  // namespace streambp::cpu
