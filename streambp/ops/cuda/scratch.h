// Memory that torch's CUDA kernels take in addition to their operands, for dry runs: the Meta implementations
// count it.
//
// Read from the sources of torch 2.11; `scripts/gpu.sh` holds the sum against the allocator on an H200, and
// what it finds is corrected here and nowhere else.
#pragma once

#include <cstdint>

#include "streambp/runtime/gpu.h"

namespace streambp::cuda {

/// The caching allocator gives blocks of whole multiples.
inline constexpr int64_t kBlockBytes = 512;

/// The GPU that work is for: the one that was opened, or that the meta device stands for.
const GpuLimits& card();
void set_card(const GpuLimits& limits);

/// cuBLAS's workspaces: one for each thread that multiplies on the stream, the caller's and the one that runs
/// backward passes. Taken at the first product, kept.
inline int64_t blas_workspace_bytes() {
  const int64_t each =
      card().capability >= 90 ? int64_t{32} << 20 : 2 * (int64_t{4} << 20) + 16 * (int64_t{8} << 10);
  return 2 * each;
}

/// What a product of `groups` takes in bfloat16 on Hopper and Blackwell (GroupMM.cu): of each group three
/// pointers, three strides and three sizes, and descriptors of 128 bytes for each multiprocessor, two of
/// operands and at most three of the result.
inline int64_t grouped_product_bytes(int64_t groups) {
  return groups * (3 * 8 + 3 * 8 + 3 * 4) + 5 * 128 * card().multiprocessors;
}

inline constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Rows and head sizes as FlashAttention's backward pass rounds them for its float32 sums.
inline constexpr int64_t flash_rows(int64_t rows) {
  return round_up(rows, 128);
}
/// The same of several sequences in one call.
inline constexpr int64_t flash_packed_rows(int64_t rows, int64_t sequences) {
  return rows + 128 * sequences;
}
inline constexpr int64_t flash_head_size(int64_t size) {
  return round_up(size, size <= 128 ? 32 : 64);
}

/// In how many parts FlashAttention's forward pass takes the keys where queries alone don't fill the GPU:
/// each part has an output and log-sum-exps in float32. (num_splits_heuristic of flash_api.cpp.)
int64_t flash_splits(int64_t heads, int64_t queries, int64_t keys, int64_t head_size);

/// Sums of query gradients that FlashAttention's backward pass keeps apart in deterministic mode.
inline int64_t flash_deterministic_sums(int64_t heads) {
  return (card().multiprocessors + heads - 1) / heads;
}

/// Whether FlashAttention and cuDNN have kernels for heads of this size on the card, backward ones too: from
/// compute capability 8.0 on; those of 200 to 224 take more shared memory than the smaller cards have.
inline bool has_library_attention(int64_t head_size) {
  constexpr int64_t kSharedBytes = 160 * 1024;
  const bool needs_much = head_size > 192 && head_size <= 224;
  return card().capability >= 80 && head_size % 8 == 0 && head_size <= 256 &&
         (!needs_much || card().shared_bytes >= kSharedBytes);
}

}  // namespace streambp::cuda
