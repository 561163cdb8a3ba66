// The table of all kernels: see kernels.h.
#pragma once

#include "streambp/ops/cuda/dequantize.cuh"
#include "streambp/ops/cuda/gate.cuh"
#include "streambp/ops/cuda/merge.cuh"
#include "streambp/ops/cuda/norm_rope.cuh"
#include "streambp/ops/cuda/rows.cuh"
#include "streambp/ops/cuda/softmax.cuh"

namespace streambp::cuda {

template <typename S>
KernelTableOf<S> kernels_of() {
  return {
      {normed_rope<S>, normed_rope_backward<S>},       {gated_product<S>, gated_backward<S>},
      {target_softmax<S>, target_softmax_gradient<S>}, {merged<S, S>, merged<Wide<S>, S>, merged<S, Wide<S>>},
      {add_rows<S, S>, add_rows<S, Wide<S>>},          {dequantized<S>}};
}

inline KernelTable all_kernels() {
  return {kernels_of<float>(), kernels_of<double>(), kernels_of<Bfloat16>()};
}

}  // namespace streambp::cuda
