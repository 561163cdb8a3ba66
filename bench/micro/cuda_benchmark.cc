// Our CUDA kernels, the libraries' attention and matrix products at the sizes of a chunk of Qwen3-8B in
// bfloat16: time on the GPU's own clock, and the share of what the GPU gives (of_roofline): the larger of the
// bytes over the rate of a copy and the operations over the rate of a matrix product, both measured first.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <functional>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include "bench/sweep/gemm_rate.h"
#include "streambp/error.h"
#include "streambp/model/quantized/quantized.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/head/target_softmax.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/runtime/device.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::bench {
namespace {

constexpr int64_t kCardHidden = 4096;
constexpr int64_t kCardMlp = 12288;
constexpr int64_t kCardVocabulary = 151936;
constexpr int64_t kCardHeads = 32;
constexpr int64_t kCardKeyHeads = 8;
constexpr int64_t kCardHeadSize = 128;

/// Seconds of run() on the GPU.
double gpu_seconds(c10::Device device, const std::function<void()>& run) {
  const c10::Stream stream = torch_private::current_stream(device);
  c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  start.record(stream);
  run();
  end.record(stream);
  end.synchronize();
  return 1e-3 * start.elapsedTime(end);
}

/// The GPU and what it gives; opened once.
struct Gpu {
  c10::Device device = at::kCPU;
  std::string failure;
  double bytes_per_second = 0.0;
  double flops_per_second = 0.0;

  Gpu() {
    try {
      device = open_device("cuda");
      if (cuda::kernels() == nullptr) throw InputError("no CUDA kernels of our own");
    } catch (const InputError& error) {
      failure = error.what();
      return;
    }
    const at::Tensor from = tensor({int64_t{1} << 28}), to = at::empty_like(from);
    double least = 1e30;
    for (int i = 0; i < 10; ++i)
      least = std::min(least, gpu_seconds(device, [&] { at::Tensor(to).copy_(from); }));
    bytes_per_second = 2.0 * static_cast<double>(from.nbytes()) / least;
    flops_per_second = measure_gemm(at::kBFloat16, device).value_or(0.0);
  }

  at::Tensor tensor(at::IntArrayRef shape, at::ScalarType dtype = at::kBFloat16) const {
    return at::randn(shape, at::TensorOptions().device(device).dtype(dtype));
  }
};

const Gpu& gpu() {
  static const Gpu one;
  return one;
}

/// Runs an op that moves `bytes` and does `flops`, after `prepare`, which is not timed.
void measure(
    benchmark::State& state, double bytes, double flops, const std::function<void()>& run,
    const std::function<void()>& prepare = [] {}) {
  prepare();
  run();  // plans and code that are made at the first call
  double total = 0.0;
  for (auto _ : state) {
    prepare();
    const double seconds = gpu_seconds(gpu().device, run);
    state.SetIterationTime(seconds);
    total += seconds;
  }
  const double floor = std::max(bytes / gpu().bytes_per_second, flops / gpu().flops_per_second);
  state.counters["of_roofline"] = floor * static_cast<double>(state.iterations()) / total;
  state.counters["bytes_per_s"] = bytes * static_cast<double>(state.iterations()) / total;
  state.counters["flops"] = flops * static_cast<double>(state.iterations()) / total;
}

/// Whether there is a GPU; says what is missing where there is none.
bool has_gpu(benchmark::State& state) {
  if (gpu().failure.empty()) return true;
  state.SkipWithError(("needs a CUDA device: " + gpu().failure).c_str());
  return false;
}

double bytes_of(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0.0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

void rows(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("rows")->Arg(2048)->Arg(8192)->UseManualTime();
}

Parameter weight(int64_t size) {
  return {"weight", gpu().tensor({size}), gpu().tensor({size}, at::kFloat)};
}

void cuda_norm(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Parameter w = weight(kCardHidden);
  const RmsNorm norm{&w, 1e-6};
  const at::Tensor x = gpu().tensor({state.range(0), kCardHidden}), dy = at::randn_like(x);
  RmsNormSaved saved;
  rms_norm_forward(x, norm, saved);
  if (state.range(1) == 0) {
    measure(state, bytes_of({x, x}), 0.0, [&] { rms_norm_forward(x, norm, saved); });
  } else {
    measure(state, bytes_of({x, x, x}), 0.0, [&] { rms_norm_backward(dy, saved, norm); });
  }
}
BENCHMARK(cuda_norm)->ArgNames({"rows", "backward"})->ArgsProduct({{2048, 8192}, {0, 1}})->UseManualTime();

void cuda_normed_rope(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Parameter w = weight(kCardHeadSize);
  const RmsNorm norm{&w, 1e-6};
  const at::Tensor x = gpu().tensor({state.range(0), kCardHeads, kCardHeadSize}), dy = at::randn_like(x);
  const RopeTable table{gpu().tensor({state.range(0), kCardHeadSize / 2}),
                        gpu().tensor({state.range(0), kCardHeadSize / 2})};
  at::Tensor rstd;
  norm_rope_forward(x, {&norm, &table}, {}, rstd);
  if (state.range(1) == 0) {
    measure(state, bytes_of({x, x}), 0.0, [&] { norm_rope_forward(x, {&norm, &table}, {}, rstd); });
  } else {
    measure(state, bytes_of({x, x, x}), 0.0, [&] { norm_rope_backward(dy, {&norm, &table}, x, rstd); });
  }
}
BENCHMARK(cuda_normed_rope)
    ->ArgNames({"rows", "backward"})
    ->ArgsProduct({{2048, 8192}, {0, 1}})
    ->UseManualTime();

/// The rotation alone, as models without norms of queries and keys have it: forward and backward are the same
/// kernel.
void cuda_rope(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const at::Tensor x = gpu().tensor({state.range(0), kCardHeads, kCardHeadSize});
  const RopeTable table{gpu().tensor({state.range(0), kCardHeadSize / 2}),
                        gpu().tensor({state.range(0), kCardHeadSize / 2})};
  at::Tensor rstd;
  measure(state, bytes_of({x, x}), 0.0, [&] {
    norm_rope_forward(x, {nullptr, &table}, {}, rstd, /*overwrite=*/true);
  });
}
BENCHMARK(cuda_rope)->Apply(rows);

void cuda_gate(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const at::Tensor gate_proj = gpu().tensor({state.range(0), kCardMlp}), up_proj = at::randn_like(gate_proj);
  if (state.range(1) == 0) {
    measure(state, bytes_of({gate_proj, gate_proj, gate_proj}), 0.0,
            [&] { gate(Activation::kSilu, gate_proj, up_proj); });
    return;
  }
  at::Tensor g, r, d;
  measure(
      state, 2 * bytes_of({gate_proj, gate_proj, gate_proj}), 0.0,
      [&] { gate_backward(Activation::kSilu, g, r, d, /*wants_product=*/true); },
      [&] {
        g = gate_proj.clone();
        r = up_proj.clone();
        d = up_proj.clone();
      });
}
BENCHMARK(cuda_gate)->ArgNames({"rows", "backward"})->ArgsProduct({{2048, 8192}, {0, 1}})->UseManualTime();

/// Of a mixture's expert, whose rows have weights.
void cuda_weighted_gate(benchmark::State& state) {
  if (!has_gpu(state)) return;
  constexpr int64_t kExpert = 768;
  const at::Tensor gate_proj = gpu().tensor({state.range(0), kExpert}),
                   weights = gpu().tensor({state.range(0), 1});
  at::Tensor g, r, d, d_weights;
  measure(
      state, 2 * bytes_of({gate_proj, gate_proj, gate_proj}), 0.0,
      [&] { gate_backward(Activation::kSilu, g, r, d, /*wants_product=*/true, weights, &d_weights); },
      [&] {
        g = gate_proj.clone();
        r = gate_proj.clone();
        d = gate_proj.clone();
      });
}
BENCHMARK(cuda_weighted_gate)->Apply(rows);

void cuda_target_softmax(benchmark::State& state) {
  if (!has_gpu(state)) return;
  at::Tensor logits = gpu().tensor({state.range(0), kCardVocabulary}, at::kFloat), sums;
  const at::Tensor targets =
      at::randint(kCardVocabulary, {state.range(0)}, logits.options().dtype(at::kLong));
  const at::Tensor d = gpu().tensor({state.range(0)}, at::kDouble);
  measure(state, 3 * bytes_of({logits}), 0.0, [&] {
    target_log_probabilities(logits, targets, 1.0, sums);
    target_log_probabilities_backward(logits, targets, 1.0, sums, d);
  });
}
BENCHMARK(cuda_target_softmax)->ArgName("rows")->Arg(256)->Arg(1024)->UseManualTime();

/// Into bfloat16 (wide:0), or a part into a wide sum (wide:1).
void cuda_merge(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const auto block = [&](at::ScalarType dtype) {
    return AttentionBlock{gpu().tensor({state.range(0), kCardHeads, kCardHeadSize}, dtype),
                          gpu().tensor({kCardHeads, state.range(0)}, at::kFloat).t()};
  };
  AttentionBlock all = block(state.range(1) != 0 ? at::kFloat : at::kBFloat16);
  const AttentionBlock other = block(at::kBFloat16);
  measure(state, bytes_of({all.output, all.output, other.output}), 0.0, [&] { merge(all, other); });
}
BENCHMARK(cuda_merge)->ArgNames({"rows", "wide"})->ArgsProduct({{2048, 8192}, {0, 1}})->UseManualTime();

void cuda_embedding_gradient(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const at::Tensor dx = gpu().tensor({state.range(0), kCardHidden});
  const at::Tensor indices = at::randint(kCardVocabulary, {state.range(0)}, dx.options().dtype(at::kLong));
  Parameter table{"embedding", gpu().tensor({kCardVocabulary, 1}),
                  gpu().tensor({kCardVocabulary, kCardHidden}, at::kFloat)};
  measure(state, 5 * bytes_of({dx}), 0.0, [&] { accumulate_rows(table, indices, dx); });
}
BENCHMARK(cuda_embedding_gradient)->Apply(rows);

/// An expert's rows, an eighth of the tokens, added to where they came from.
void cuda_expert_rows(benchmark::State& state) {
  if (!has_gpu(state)) return;
  at::Tensor sum = gpu().tensor({8 * state.range(0), kCardHidden});
  const at::Tensor added = gpu().tensor({state.range(0), kCardHidden});
  const at::Tensor indices = at::arange(0, 8 * state.range(0), 8, added.options().dtype(at::kLong));
  measure(state, 3 * bytes_of({added}), 0.0, [&] { add_sorted_rows(sum, indices, added); });
}
BENCHMARK(cuda_expert_rows)->Apply(rows);

/// A matrix of an MLP in NF4, its maxima in 8 bits (bits:4), or in rows of int8.
void cuda_dequantize(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const at::Tensor into = gpu().tensor({kCardMlp, kCardHidden});
  const bool in_4_bits = state.range(0) == 4;
  const QuantizedTensor quantized =
      quantize(into, {in_4_bits ? QuantType::kNf4 : QuantType::kInt8, /*double_quant=*/in_4_bits});
  measure(state, static_cast<double>(quantized.bytes()) + bytes_of({into}), 0.0,
          [&] { dequantize_into(quantized, into); });
}
BENCHMARK(cuda_dequantize)->ArgName("bits")->Arg(4)->Arg(8)->UseManualTime();

/// Short sequences side by side in one call: `rows` of 256 tokens each.
void cuda_packed_attention(benchmark::State& state) {
  if (!has_gpu(state)) return;
  constexpr int64_t kSequence = 256;
  AttentionOperands x{gpu().tensor({state.range(0), kCardHeads, kCardHeadSize}),
                      gpu().tensor({state.range(0), kCardKeyHeads, kCardHeadSize}),
                      gpu().tensor({state.range(0), kCardKeyHeads, kCardHeadSize}),
                      true,
                      0,
                      0.0883883476};
  for (int64_t begin = 0; begin <= state.range(0); begin += kSequence) x.offsets.push_back(begin);
  const double pairs = 0.5 * static_cast<double>(state.range(0)) * kSequence;
  const double product = 2.0 * pairs * kCardHeads * kCardHeadSize;
  const AttentionBlock block = device_attend(x);
  const at::Tensor d = at::randn_like(x.q);
  if (state.range(1) == 0) {
    measure(state, bytes_of({x.q, x.k, x.v, x.q}), 2.0 * product, [&] { device_attend(x); });
  } else {
    measure(state, 2 * bytes_of({x.q, x.k, x.v, x.q}), 5.0 * product,
            [&] { device_attend_backward(x, d, block); });
  }
}
BENCHMARK(cuda_packed_attention)
    ->ArgNames({"rows", "backward"})
    ->ArgsProduct({{8192}, {0, 1}})
    ->UseManualTime();

/// A weight's gradient: a product of bfloat16 added to float32 (wide:1) or bfloat16.
void cuda_weight_gradient(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const at::Tensor x = gpu().tensor({state.range(0), kCardHidden}),
                   dy = gpu().tensor({state.range(0), kCardMlp});
  const at::ScalarType dtype = state.range(1) != 0 ? at::kFloat : at::kBFloat16;
  Parameter w{"w", gpu().tensor({1, 1}), gpu().tensor({kCardMlp, kCardHidden}, dtype)};
  measure(state, bytes_of({x, dy, w.gradient, w.gradient}),
          2.0 * static_cast<double>(x.numel()) * static_cast<double>(kCardMlp),
          [&] { accumulate_product(w, dy, x); });
}
BENCHMARK(cuda_weight_gradient)
    ->ArgNames({"rows", "wide"})
    ->ArgsProduct({{2048, 8192}, {0, 1}})
    ->UseManualTime();

/// A chunk's rows against as many keys causally (keys:0), or against earlier keys.
void cuda_attention(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const int64_t queries = state.range(0), earlier = state.range(1), keys = earlier == 0 ? queries : earlier;
  const AttentionOperands x{gpu().tensor({queries, kCardHeads, kCardHeadSize}),
                            gpu().tensor({keys, kCardKeyHeads, kCardHeadSize}),
                            gpu().tensor({keys, kCardKeyHeads, kCardHeadSize}),
                            earlier == 0,
                            0,
                            0.0883883476};
  const double pairs = static_cast<double>(queries) * static_cast<double>(keys) * (earlier == 0 ? 0.5 : 1.0);
  const double product = 2.0 * pairs * kCardHeads * kCardHeadSize;
  for (int i = 0; i < 2; ++i) device_attend(x);  // the second meeting chooses
  const AttentionBlock block = device_attend(x);
  const at::Tensor d = at::randn_like(x.q);
  if (state.range(2) == 0) {
    measure(state, 0.0, 2.0 * product, [&] { device_attend(x); });
  } else {
    for (int i = 0; i < 2; ++i) device_attend_backward(x, d, block);
    measure(state, 0.0, 5.0 * product, [&] { device_attend_backward(x, d, block); });
  }
  const std::vector<std::string> choices = attention_choices();
  for (const std::string& choice : choices) {
    if (choice.find(x.shape()) != std::string::npos) state.SetLabel(choice);
  }
}
BENCHMARK(cuda_attention)
    ->ArgNames({"queries", "earlier", "backward"})
    ->ArgsProduct({{2048, 8192}, {0, 8192, 32768}, {0, 1}})
    ->Args({32768, 0, 0})
    ->Args({32768, 0, 1})
    ->UseManualTime();

}  // namespace
}  // namespace streambp::bench
