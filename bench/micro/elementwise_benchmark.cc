// The elementwise parts of a layer and the head at the sizes of the preset qwen3-cpu, fused (fused:1) and op
// by op in ATen (fused:0), in float32; bytes are those that a single pass has to read and write. For
// comparison what the machine reaches: a copy of memory, and a product of matrices.
#include <benchmark/benchmark.h>

#include <ATen/ATen.h>

#include "bench/micro/benchmark_work.h"
#include "streambp/model/quantized/quantized.h"
#include "streambp/ops/head/target_softmax.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/norm_rope.h"

namespace streambp::bench {
namespace {

constexpr int64_t kVocabulary = 32000;
constexpr int64_t kBytes = 4;

/// Bytes and floating-point operations of one iteration; an exponential counts as one.
void set_work(benchmark::State& state, int64_t numbers_moved, int64_t operations) {
  state.SetBytesProcessed(state.iterations() * numbers_moved * kBytes);
  state.counters["FLOPS"] = benchmark::Counter(static_cast<double>(operations * state.iterations()),
                                               benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void fused_or_not(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "fused"})->ArgsProduct({{512, 1024, 2048}, {0, 1}})->UseRealTime();
}

Parameter ones(int64_t size) {
  const at::Tensor value = at::ones({size});
  return {"weight", value, at::zeros_like(value)};
}

void copy_rate(benchmark::State& state) {
  const at::Tensor from = at::randn({state.range(0) / kBytes});
  at::Tensor to = at::empty_like(from);
  for (auto _ : state) benchmark::DoNotOptimize(to.copy_(from).data_ptr());
  set_work(state, 2 * from.numel(), 0);
}
BENCHMARK(copy_rate)->ArgName("bytes")->Arg(1 << 20)->Arg(1 << 23)->Arg(1 << 26)->UseRealTime();

void product_rate(benchmark::State& state) {
  const at::Tensor x = at::randn({state.range(0), kHidden}), weight = at::randn({kMlp, kHidden});
  for (auto _ : state) benchmark::DoNotOptimize(at::mm(x, weight.t()).data_ptr());
  set_work(state, state.range(0) * (kHidden + kMlp) + kHidden * kMlp, 2 * state.range(0) * kHidden * kMlp);
}
BENCHMARK(product_rate)->ArgName("rows")->Arg(512)->Arg(2048)->UseRealTime();

void norm_forward(benchmark::State& state) {
  Parameter weight = ones(kHidden);
  const RmsNorm norm{&weight, 1e-6};
  const at::Tensor x = at::randn({state.range(0), kHidden});
  const auto forward = state.range(1) != 0 ? rms_norm_forward : rms_norm_forward_plain;
  for (auto _ : state) {
    RmsNormSaved saved;
    benchmark::DoNotOptimize(forward(x, norm, saved).data_ptr());
  }
  set_work(state, 2 * x.numel(), 4 * x.numel());
}
BENCHMARK(norm_forward)->Apply(fused_or_not);

void norm_backward(benchmark::State& state) {
  Parameter weight = ones(kHidden);
  const RmsNorm norm{&weight, 1e-6};
  const at::Tensor x = at::randn({state.range(0), kHidden}), dy = at::randn({state.range(0), kHidden});
  RmsNormSaved saved;
  rms_norm_forward(x, norm, saved);
  const auto backward = state.range(1) != 0 ? rms_norm_backward : rms_norm_backward_plain;
  for (auto _ : state) benchmark::DoNotOptimize(backward(dy, saved, norm).data_ptr());
  set_work(state, 3 * x.numel(), 10 * x.numel());
}
BENCHMARK(norm_backward)->Apply(fused_or_not);

/// Norm and rotation of the query heads.
struct HeadsCase {
  Parameter weight = ones(kHeadSize);
  RmsNorm norm{&weight, 1e-6};
  at::Tensor x, dy;
  RopeTable table;

  explicit HeadsCase(int64_t rows)
      : x(at::randn({rows, kHeads, kHeadSize})),
        dy(at::randn({rows, kHeads, kHeadSize})),
        table{at::randn({rows, kHeadSize / 2}), at::randn({rows, kHeadSize / 2})} {}
};

void normed_rope_forward(benchmark::State& state) {
  const HeadsCase of(state.range(0));
  for (auto _ : state) {
    RmsNormSaved saved;
    if (state.range(1) != 0) {
      benchmark::DoNotOptimize(norm_rope_forward(of.x, {&of.norm, &of.table}, {}, saved.rstd).data_ptr());
    } else {
      benchmark::DoNotOptimize(
          rope_plain(rms_norm_forward_plain(of.x, of.norm, saved), of.table, 1.0).data_ptr());
    }
  }
  set_work(state, 2 * of.x.numel(), 7 * of.x.numel());
}
BENCHMARK(normed_rope_forward)->Apply(fused_or_not);

void normed_rope_backward(benchmark::State& state) {
  const HeadsCase of(state.range(0));
  RmsNormSaved saved;
  rms_norm_forward(of.x, of.norm, saved);
  for (auto _ : state) {
    if (state.range(1) != 0) {
      benchmark::DoNotOptimize(norm_rope_backward(of.dy, {&of.norm, &of.table}, of.x, saved.rstd).data_ptr());
    } else {
      benchmark::DoNotOptimize(
          rms_norm_backward_plain(rope_plain(of.dy, of.table, -1.0), saved, of.norm).data_ptr());
    }
  }
  set_work(state, 3 * of.x.numel(), 13 * of.x.numel());
}
BENCHMARK(normed_rope_backward)->Apply(fused_or_not);

void gate_forward(benchmark::State& state) {
  const at::Tensor gate_proj = at::randn({state.range(0), kMlp}), up_proj = at::randn({state.range(0), kMlp});
  for (auto _ : state) {
    benchmark::DoNotOptimize((state.range(1) != 0 ? gate(Activation::kSilu, gate_proj, up_proj)
                                                  : gate_plain(Activation::kSilu, gate_proj, up_proj))
                                 .data_ptr());
  }
  set_work(state, 3 * gate_proj.numel(), 4 * gate_proj.numel());
}
BENCHMARK(gate_forward)->Apply(fused_or_not);

void gate_backward_with_product(benchmark::State& state) {
  const at::Tensor source = at::randn({3, state.range(0), kMlp});
  const at::Tensor worked_on = at::empty_like(source);
  const auto backward = state.range(1) != 0 ? gate_backward : gate_backward_plain;
  for (auto _ : state) {
    // What it leaves is no input for the next time: numbers would leave the normal range, and slow it down.
    state.PauseTiming();
    worked_on.copy_(source);
    at::Tensor gate_proj = worked_on[0], up_proj = worked_on[1], d = worked_on[2];
    state.ResumeTiming();
    backward(Activation::kSilu, gate_proj, up_proj, d, /*wants_product=*/true, {}, nullptr);
    benchmark::ClobberMemory();
  }
  set_work(state, 2 * source.numel(), 4 * source.numel());
}
BENCHMARK(gate_backward_with_product)->Apply(fused_or_not);

/// A chunk of logits to log-probabilities of targets, and to the gradient in place.
void target_softmax(benchmark::State& state) {
  const at::Tensor source = at::randn({state.range(0), kVocabulary});
  const at::Tensor targets = at::randint(kVocabulary, {state.range(0), 1}, at::kLong);
  const at::Tensor d = at::randn({state.range(0)}, at::kDouble), d_column = d.to(at::kFloat).unsqueeze(1);
  at::Tensor logits = source.clone(), sums;
  for (auto _ : state) {
    if (state.range(1) != 0) {
      benchmark::DoNotOptimize(target_log_probabilities(logits, targets, 1.0, sums).data_ptr());
      target_log_probabilities_backward(logits, targets, 1.0, sums, d);
    } else {
      at::_log_softmax_out(logits, logits, -1, false);
      benchmark::DoNotOptimize(logits.gather(1, targets).data_ptr());
      logits.exp_().mul_(-d_column).scatter_add_(1, targets, d_column);
    }
  }
  set_work(state, 3 * logits.numel(), 6 * logits.numel());
}
BENCHMARK(target_softmax)->ArgNames({"rows", "fused"})->ArgsProduct({{64, 128, 512}, {0, 1}})->UseRealTime();

/// A matrix of 8 billion parameters' size in NF4, its maxima in 8 bits (nested:1), to float32 or bfloat16.
void dequantize(benchmark::State& state) {
  const QuantizedTensor quantized =
      quantize(at::randn({4096, 4096}), {QuantType::kNf4, /*double_quant=*/state.range(0) != 0});
  const at::Tensor into = at::empty(quantized.shape, state.range(1) != 0 ? at::kBFloat16 : at::kFloat);
  const auto run = state.range(2) != 0 ? dequantize_into : dequantize_plain;
  for (auto _ : state) {
    run(quantized, into);
    benchmark::DoNotOptimize(into.data_ptr());
  }
  state.SetBytesProcessed(state.iterations() * (quantized.bytes() + static_cast<int64_t>(into.nbytes())));
}
BENCHMARK(dequantize)
    ->ArgNames({"nested", "bfloat16", "fused"})
    ->ArgsProduct({{0, 1}, {0, 1}, {0, 1}})
    ->UseRealTime();

}  // namespace
}  // namespace streambp::bench
