// The ops of one layer and the head, at the sizes of the preset qwen3-cpu, in float32 on all threads of
// LibTorch.
#include <benchmark/benchmark.h>

#include <torch/csrc/autograd/autograd.h>

#include "bench/micro/benchmark_work.h"
#include "streambp/backprop/head/head.h"
#include "streambp/ops/attention/attention.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rms_norm.h"

namespace streambp::bench {
namespace {

constexpr int64_t kKeyValueHeads = 4;
constexpr double kScale = 0.125;
constexpr double kEps = 1e-6;

Parameter random_parameter(const std::vector<int64_t>& shape) {
  const at::Tensor value = at::randn(shape) * 0.02;
  return {"weight", value, at::zeros_like(value)};
}

void set_tokens(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// Queries, keys and values of `rows` tokens that follow `prefix` others of their sequence.
struct AttentionCase {
  at::Tensor q, k, v;
  Prefix prefix;
  std::vector<int64_t> offsets;

  AttentionCase(int64_t rows, int64_t earlier, int64_t key_heads = kKeyValueHeads) : offsets{0, rows} {
    q = at::randn({rows, kHeads, kHeadSize});
    k = at::randn({rows, key_heads, kHeadSize});
    v = at::randn({rows, key_heads, kHeadSize});
    const std::vector<int64_t> shape{earlier, key_heads, kHeadSize};
    if (earlier > 0) prefix = {at::randn(shape), at::randn(shape), at::zeros(shape), at::zeros(shape)};
  }
  /// Of one product of queries and keys.
  double product_flops() const {
    const auto rows = static_cast<double>(q.size(0));
    const double earlier = prefix.keys.defined() ? static_cast<double>(prefix.keys.size(0)) : 0.0;
    return 2.0 * kHeads * kHeadSize * rows * (earlier + (rows + 1.0) / 2.0);
  }
  at::Tensor run(int64_t window = 0) const {
    AttentionBlock none;
    return run(none, window);
  }
  at::Tensor run(AttentionBlock& known, int64_t window = 0) const {
    return attention(q, k, v, offsets, prefix, {{kScale}, window}, known);
  }
};

void attention_forward(benchmark::State& state) {
  const AttentionCase inputs(state.range(0), state.range(1));
  const at::NoGradGuard no_grad;
  for (auto _ : state) benchmark::DoNotOptimize(inputs.run());
  set_flops(state, 2.0 * inputs.product_flops());
  set_tokens(state);
}

void attention_forward_backward(benchmark::State& state) {
  AttentionCase inputs(state.range(0), state.range(1));
  for (at::Tensor* leaf : {&inputs.q, &inputs.k, &inputs.v}) leaf->requires_grad_();
  const at::Tensor cotangent = at::randn({state.range(0), kHeads, kHeadSize});
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        torch::autograd::grad({inputs.run()}, {inputs.q, inputs.k, inputs.v}, {cotangent}));
  }
  set_flops(state, 7.0 * inputs.product_flops());
  set_tokens(state);
}

/// The backward pass alone, of 8 query heads that share 1, 2 or 8 key heads.
void attention_backward(benchmark::State& state) {
  const int64_t rows = state.range(0), earlier = state.range(1), key_heads = state.range(2);
  AttentionCase inputs(rows, earlier, key_heads);
  for (at::Tensor* leaf : {&inputs.q, &inputs.k, &inputs.v}) leaf->requires_grad_();
  const at::Tensor cotangent = at::randn({rows, kHeads, kHeadSize});
  AttentionBlock known;
  inputs.run(known);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        torch::autograd::grad({inputs.run(known)}, {inputs.q, inputs.k, inputs.v}, {cotangent}));
  }
  set_flops(state, 5.0 * inputs.product_flops());
  set_tokens(state);
}
BENCHMARK(attention_backward)
    ->ArgNames({"rows", "prefix", "key_heads"})
    ->ArgsProduct({{512, 2048}, {0, 7168}, {1, 2, kHeads}})
    ->UseRealTime();

/// A layer with a window over a whole stream: time in proportion to the stream.
void window_attention_forward_backward(benchmark::State& state) {
  AttentionCase inputs(state.range(0), 0);
  for (at::Tensor* leaf : {&inputs.q, &inputs.k, &inputs.v}) leaf->requires_grad_();
  const at::Tensor cotangent = at::randn({state.range(0), kHeads, kHeadSize});
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        torch::autograd::grad({inputs.run(state.range(1))}, {inputs.q, inputs.k, inputs.v}, {cotangent}));
  }
  set_tokens(state);
}
BENCHMARK(window_attention_forward_backward)
    ->ArgNames({"rows", "window"})
    ->ArgsProduct({{4096, 8192, 16384}, {512, 1024}})
    ->UseRealTime();

BENCHMARK(attention_forward)
    ->ArgNames({"rows", "prefix"})
    ->ArgsProduct({{512, 1024}, {0, 1024, 7168}})
    ->UseRealTime();
BENCHMARK(attention_forward_backward)
    ->ArgNames({"rows", "prefix"})
    ->ArgsProduct({{512, 1024}, {0, 1024, 7168}})
    ->UseRealTime();

void linear_accumulation(benchmark::State& state) {
  Parameter weight = random_parameter({kMlp, kHidden});
  const at::Tensor x = at::randn({state.range(0), kHidden});
  const at::Tensor dy = at::randn({state.range(0), kMlp});
  const at::NoGradGuard no_grad;
  const Linear map{"map", &weight};
  for (auto _ : state) linear_accumulate(map, x, dy);
  set_tokens(state);
}
BENCHMARK(linear_accumulation)->ArgName("rows")->Arg(128)->Arg(512)->Arg(2048)->UseRealTime();

void rms_norm_forward_backward(benchmark::State& state) {
  Parameter weight = random_parameter({kHidden});
  const at::Tensor x = at::randn({state.range(0), kHidden});
  const at::Tensor dy = at::randn({state.range(0), kHidden});
  const at::NoGradGuard no_grad;
  const RmsNorm norm{&weight, kEps};
  for (auto _ : state) {
    RmsNormSaved saved;
    benchmark::DoNotOptimize(rms_norm_forward(x, norm, saved));
    benchmark::DoNotOptimize(rms_norm_backward(dy, saved, norm));
  }
  set_tokens(state);
}
BENCHMARK(rms_norm_forward_backward)->ArgName("rows")->Arg(512)->Arg(2048)->UseRealTime();

void gated_mlp_forward_backward(benchmark::State& state) {
  Parameter gate = random_parameter({kMlp, kHidden});
  Parameter up = random_parameter({kMlp, kHidden});
  Parameter down = random_parameter({kHidden, kMlp});
  const Linear gate_map{"gate", &gate}, up_map{"up", &up}, down_map{"down", &down};
  const GatedMlp mlp{&gate_map, &up_map, &down_map};
  const at::Tensor residual = at::randn({state.range(0), kHidden}).requires_grad_();
  const at::Tensor x = at::randn({state.range(0), kHidden}).requires_grad_();
  const at::Tensor dy = at::randn({state.range(0), kHidden});
  for (auto _ : state) {
    const at::Tensor y = gated_mlp(residual, x, mlp);
    benchmark::DoNotOptimize(torch::autograd::grad({y}, {residual, x}, {dy}));
  }
  set_tokens(state);
}
BENCHMARK(gated_mlp_forward_backward)->ArgName("rows")->Arg(512)->Arg(2048)->UseRealTime();

void streamed_head_by_chunk(benchmark::State& state) {
  constexpr uint64_t kSeed = 1;
  Model model = Model::random(preset("qwen3-cpu"), {}, kSeed);
  const Batch batch = random_batch({state.range(0)}, model.config().vocab_size, kSeed);
  const HeadTargets scored = head_targets(batch, at::kCPU);
  const auto objective = make_objective("sft", batch);
  const HeadPass pass{model, scored, objective->request(), {}};
  const at::Tensor hidden = at::randn({state.range(0), model.config().hidden_size});
  for (auto _ : state) {
    at::Tensor overwritten = hidden.clone();
    StreamedHead head(pass, *objective, state.range(1));
    head.run(0, overwritten);
    benchmark::DoNotOptimize(head.outcome().loss);
  }
  set_flops(state, 6.0 * static_cast<double>(state.range(0) * model.head().weight->value.numel()));
  set_tokens(state);
}
BENCHMARK(streamed_head_by_chunk)
    ->ArgNames({"rows", "chunk"})
    ->ArgsProduct({{2048}, {128, 192, 256, 512, 1024}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace streambp::bench
