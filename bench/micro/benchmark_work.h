// What an iteration of a benchmark computes, relative to the machine's matrix product.
#pragma once

#include <benchmark/benchmark.h>
#include <cstdint>

#include "bench/sweep/gemm_rate.h"

namespace streambp::bench {

/// Sizes of the CPU's benchmarks: qwen3-cpu's.
inline constexpr int64_t kHidden = 512, kMlp = 1536, kHeads = 8, kHeadSize = 64;

/// Counters FLOPS, and of_gemm: the same as a share of the machine's float32 product on the CPU, which is
/// measured once.
inline void set_flops(benchmark::State& state, double flops) {
  static const double gemm = measure_gemm(at::kFloat).value_or(0.0);
  using benchmark::Counter;
  const double all = flops * static_cast<double>(state.iterations());
  state.counters["FLOPS"] = Counter(all, Counter::kIsRate, Counter::kIs1000);
  if (gemm > 0.0) state.counters["of_gemm"] = Counter(all / gemm, Counter::kIsRate);
}

}  // namespace streambp::bench
