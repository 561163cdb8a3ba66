// Memory that torch's CUDA kernels take in addition to their operands, for dry runs: the Meta implementations
// count it.
//
// Read from the sources of torch 2.11 for a Hopper GPU of 132 multiprocessors; `scripts/gpu.sh` holds the sum
// against the allocator on a GPU, and what it finds is corrected here and nowhere else.
#pragma once

#include <cstdint>

namespace streambp::cuda {

/// The caching allocator gives blocks of whole multiples.
inline constexpr int64_t kBlockBytes = 512;

/// cuBLAS's workspaces on Hopper: one for each thread that multiplies on the stream, the caller's and the one
/// that runs backward passes. Taken at the first product, kept.
inline constexpr int64_t kBlasWorkspaceBytes = 2 * (int64_t{32} << 20);

inline constexpr int64_t kMultiprocessors = 132;

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
inline constexpr int64_t flash_deterministic_sums(int64_t heads) {
  return (kMultiprocessors + heads - 1) / heads;
}

}  // namespace streambp::cuda
