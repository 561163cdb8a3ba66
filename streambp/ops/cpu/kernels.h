// Our own kernels for the CPU, compiled once for each instruction set and chosen when the program starts.
#pragma once

#include <vector>

#include "streambp/ops/cpu/attention.h"
#include "streambp/ops/cpu/elementwise.h"
#include "streambp/ops/cpu/recurrent/causal_conv.h"
#include "streambp/ops/cpu/recurrent/delta_rule.h"
#include "streambp/ops/cpu/recurrent/gated_norm.h"
#include "streambp/ops/cpu/target_head.h"

namespace streambp::cpu {

/// All of them for numbers stored as S.
template <typename S>
struct KernelSetOf {
  AttentionKernels<S> attention;
  ElementwiseKernels<S> elementwise;
  TargetHeadKernels<Wide<S>> target_head;  // of float and double
  DeltaRuleKernels<S> delta_rule, channel_delta_rule, state_space;
  CausalConvKernels<S> causal_conv;
  GatedNormKernels<S> gated_norm;
};

/// The kernels of one instruction set.
struct KernelSet : ForDtypes<KernelSetOf> {
  const char* instruction_set;  // "avx512", "avx2" or "baseline"
};

/// Those of the widest set that this machine has; the environment variable STREAMBP_ISA names another one
/// that it has, for tests. Throws InputError where it names none.
const KernelSet& kernels();

/// Whether kernels() multiply about as fast as ATen, so that attention and the head are worth taking from it:
/// not those of x86's baseline, 16 bytes a vector, where ATen's libraries choose wider ones themselves.
bool has_fast_products();

/// One for each set that this machine can run, the widest first.
std::vector<KernelSet> available_kernels();

}  // namespace streambp::cpu
