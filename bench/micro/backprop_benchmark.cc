// Whole passes of each method over the preset qwen3-cpu: time, executed operations per second and their share
// of the machine's matrix product, and the peak of memory beyond weights and gradients.
#include <benchmark/benchmark.h>

#include "bench/micro/benchmark_work.h"
#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "streambp/plan/flops/hardware_flops.h"

namespace streambp::bench {
namespace {

void backprop(benchmark::State& state, Method method) {
  constexpr uint64_t kSeed = 1;
  Model model = Model::random(preset("qwen3-cpu"), {}, kSeed);
  const Batch batch = random_batch({state.range(0)}, model.config().vocab_size, kSeed);
  const auto objective = make_objective("sft", batch);
  Settings settings;
  settings.method = method;
  int64_t peak = 0;
  for (auto _ : state) {
    reset_peak(at::kCPU);
    const int64_t resident = read_meter(at::kCPU).live_bytes;
    benchmark::DoNotOptimize(backpropagate(model, batch, *objective, settings).loss);
    peak = std::max(peak, read_meter(at::kCPU).peak_bytes - resident);
  }
  set_flops(state, plan::hardware_flops(model, batch, *objective, settings));
  state.counters["peak_bytes"] = benchmark::Counter(static_cast<double>(peak));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void lengths(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("tokens")->Arg(512)->Arg(2048)->Unit(benchmark::kMillisecond)->UseRealTime();
}

const bool kRegistered = [] {
  for (const MethodKind& kind : method_kinds())
    benchmark::RegisterBenchmark(("backprop/" + kind.name).c_str(), backprop, kind.method)->Apply(lengths);
  return true;
}();

}  // namespace
}  // namespace streambp::bench
