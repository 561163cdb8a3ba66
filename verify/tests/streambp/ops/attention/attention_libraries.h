// FlashAttention and cuDNN as torch calls them, on the CPU: linked into a test program they are the kernels
// that at::_flash_attention_forward, at::_scaled_dot_product_cudnn_attention and their backward passes have
// for CPU tensors, so that library_attention() itself runs without a GPU.
//
// They take what the libraries take and give what those give: dtypes, shapes, strides, layouts of the
// log-sum-exps, which queries see which keys. Read from torch 2.11: transformers/cuda/attention.cu,
// attention_backward.cu, flash_attn/flash_api.cpp and cudnn/MHA.cpp below aten/src/ATen/native. Behind them
// is the formula in float64, rounded to the operands' dtype.
//
// - What a library refuses is a c10::Error here too.
// - What it takes for granted and does not look at, so that a GPU gives wrong numbers or a fault of its
//   memory, is a std::logic_error.
#pragma once

#include <cstdint>

namespace streambp::libraries_on_host {

/// Calls so far, of all threads.
struct Calls {
  int64_t flash_forward = 0, flash_backward = 0, cudnn_forward = 0, cudnn_backward = 0;
};
Calls calls();

}  // namespace streambp::libraries_on_host
