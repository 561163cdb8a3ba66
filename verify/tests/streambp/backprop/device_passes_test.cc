// Whole passes in float32 and bfloat16, on the CPU and on a CUDA device: no method's gradient of any
// parameter is further from the float64 truth than standard back-propagation's in the same precision, by more
// than a quarter.
#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

#include "streambp/error.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/on_host.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/device.h"
#include "verify/equality/subject.h"
#include "verify/precision.h"
#include "verify/tests/streambp/ops/attention/attention_device_testing.h"
#include "verify/tests/streambp/ops/attention/attention_libraries.h"
#include "verify/tests/streambp/ops/serve_cpu.h"
#include "verify/tests/turns.h"

namespace streambp {

using namespace verify;
namespace {

/// A chunk that makes many of a short batch.
constexpr int64_t kMany = 3;

/// Standard first, then every method with few chunks, and streambp with many.
std::vector<Settings> all_methods() {
  std::vector<Settings> all(1);
  all[0].method = Method::kStandard;
  for (const std::string& name : method_names()) {
    Settings settings;
    settings.method = parse_method(name);
    if (settings.method == Method::kStandard) continue;
    if (is_chunked(settings.method)) settings.chunk = 9;
    settings.head_chunk = 7;
    all.push_back(settings);
  }
  Settings many;
  many.chunk = many.head_chunk = kMany;
  all.push_back(many);
  Settings kept;
  kept.chunk = 9;
  kept.keep.attention = kAllLayers;
  kept.every = 2;
  kept.offload = Offload::kHost;
  all.push_back(kept);
  kept.keep = parse_kept_layers("attention,queries,keys-values,attention-half,gate-up");
  kept.every = 1;
  kept.offload_layers = 1;
  all.push_back(kept);
  return all;
}

using Subject = std::tuple<const char*, std::pair<const char*, const char*>>;

class DevicePasses : public testing::TestWithParam<Subject> {};

std::string name_of(const testing::TestParamInfo<Subject>& info) {
  const auto& [device, subject] = info.param;
  std::string name = fmt::format("{}_{}_{}", device, subject.first, subject.second);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

using Pair = std::pair<const char*, const char*>;
const std::vector<Pair> kPairs{{"qwen3-tiny", "sft"},          {"gemma3-tiny", "dpo"},
                               {"qwen3-tiny", "grpo"},         {"llama-tied-tiny", "orpo"},
                               {"gemma2-tiny", "sft"},         {"qwen3-tiny", "dpo"},
                               {"phi3-tiny", "grpo"},          {"mistral-tiny", "kto"},
                               {"qwen2-window-tiny", "simpo"}, {"llama-yarn-tiny", "ppo"}};
size_t first = 0;
/// Four seconds each.
const std::vector<Pair> kHostPairs = in_turns(kPairs, 4, first);
INSTANTIATE_TEST_SUITE_P(Host, DevicePasses,
                         testing::Combine(testing::Values("cpu"), testing::ValuesIn(kHostPairs)), name_of);
INSTANTIATE_TEST_SUITE_P(Device, DevicePasses,
                         testing::Combine(testing::Values("cuda"), testing::ValuesIn(kPairs)), name_of);

/// Parameter by parameter: a large error of one hides no larger one of another.
TEST_P(DevicePasses, AreAsPreciseAsStandardOnes) {
  const auto& [device, pair] = GetParam();
  PrecisionSubject subject;
  std::tie(subject.model, subject.objective) = pair;
  // With fewer batches the errors of a norm of 16 numbers wander by more than a quarter.
  subject.seq_len = 24;
  subject.batches = 24;
  try {
    subject.device = open_device(device);
  } catch (const InputError& error) {
    GTEST_SKIP() << "needs a CUDA device: " << error.what();
  }
  const std::vector<Settings> configurations = all_methods();
  using Dtypes = std::pair<at::ScalarType, at::ScalarType>;
  std::vector<Dtypes> dtypes{
      {at::kFloat, at::kFloat}, {at::kBFloat16, at::kFloat}, {at::kBFloat16, at::kBFloat16}};
  // On a CPU each takes a minute of ten subjects; `streambp-verify precision` measures there too.
  static size_t turn = 0;
  if (subject.device.is_cpu()) dtypes = in_turns(dtypes, 1, turn);
  for (const auto& [dtype, gradient_dtype] : dtypes) {
    subject.dtype = dtype;
    subject.gradient_dtype = subject.head_dtype = gradient_dtype;
    const std::vector<Precision> all = measure_precision(subject, configurations);
    const Precision& own = all.front();
    EXPECT_TRUE(own.worst().second <= (dtype == at::kFloat ? 1e-3 : 0.5)) << own.worst().first;
    // A log-probability is known to no more than a unit in the last place.
    const double unit = dtype == at::kFloat ? 0x1p-23 : 0x1p-7;
    for (size_t i = 1; i < configurations.size(); ++i) {
      const std::string configuration =
          fmt::format("{} chunk {}, {} gradients of {}", method_name(configurations[i].method),
                      configurations[i].chunk, c10::toString(gradient_dtype), c10::toString(dtype));
      const auto [name, times] = times_standard(all[i], own, rounding_of(gradient_dtype));
      EXPECT_TRUE(times <= kPrecisionFactor)
          << configuration << ": " << times << " times standard's error in " << name << ", "
          << all[i].gradients.at(name);
      EXPECT_TRUE(all[i].log_probabilities <= std::max(kPrecisionFactor * own.log_probabilities, unit))
          << configuration;
    }
  }
}

/// All ops of a model through the CUDA kernels' source on the host, in float64.
TEST(CudaKernelsOnHost, GiveAWholePassItsGradients) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "qwen3-moe-tiny", "gpt-oss-tiny"}) {
    EqualitySubject subject = make_subject({name, "sft", {}, "full", "three", 13}, 3);
    const ServeCpu serve(cuda::kernels_on_host());
    Settings settings;
    settings.chunk = 8;
    const EvaluationErrors errors =
        measure(evaluate(subject.model, subject.batch, *subject.objective, settings), subject.reference);
    EXPECT_TRUE(errors.worst() <= 1e-10)
        << name << ": " << errors.worst() << " in " << errors.worst_parameter();
  }
}

/// Every method as it runs on a GPU: the calls of library_attention() answered by attention_libraries.h,
/// cuDNN's wherever it serves, and once our kernels from their source as well.
TEST(LibrariesOnHost, GiveAWholePassItsGradients) {
  for (const auto& [model, objective] : {Pair{"qwen3-tiny", "sft"}, Pair{"gemma3-tiny", "dpo"},
                                         Pair{"qwen2-window-tiny", "sft"}, Pair{"llama-tied-tiny", "orpo"}}) {
    std::optional<ServeCpu> kernels;
    if (model == std::string("qwen3-tiny")) kernels.emplace(cuda::kernels_on_host());
    std::vector<DeviceAttention> libraries = library_attention();
    libraries.front() = slow(libraries.front(), 1e-3);
    const ServeAttention attention(std::move(libraries), Served::kAsOnGpus);
    const libraries_on_host::Calls before = libraries_on_host::calls();
    PrecisionSubject subject;
    subject.model = model;
    subject.objective = objective;
    subject.dtype = subject.head_dtype = at::kBFloat16;
    subject.seq_len = 24;
    subject.batches = kernels ? 1 : 2;  // fibers are slow
    const std::vector<Settings> configurations = all_methods();
    const std::vector<Precision> all = measure_precision(subject, configurations);
    EXPECT_TRUE(all.front().worst().second <= 0.5) << model << " " << all.front().worst().first;
    for (size_t i = 1; i < configurations.size(); ++i) {
      const auto [name, times] = times_standard(all[i], all.front(), rounding_of(at::kBFloat16));
      // Of two batches errors scatter; a wrong mask or layout gives a gradient that has nothing of the right
      // one.
      EXPECT_TRUE(times <= 3.0) << model << " " << objective << " " << method_name(configurations[i].method)
                                << " chunk " << configurations[i].chunk << ": " << times
                                << " times standard's error in " << name;
    }
    const libraries_on_host::Calls after = libraries_on_host::calls();
    EXPECT_GT(after.flash_backward, before.flash_backward) << model;
    EXPECT_GT(after.cudnn_backward, before.cudnn_backward) << model;
  }
}

std::atomic<int64_t> grouped_products = 0;  // a backward pass has a thread of its own

class GroupedExpertsPasses : public testing::TestWithParam<const char*> {};

const auto kNameOfPlace = [](const auto& where) { return std::string(where.param); };
INSTANTIATE_TEST_SUITE_P(Host, GroupedExpertsPasses, testing::Values("host"), kNameOfPlace);
INSTANTIATE_TEST_SUITE_P(Device, GroupedExpertsPasses, testing::Values("device"), kNameOfPlace);

/// A mixture in bfloat16, its experts together, against experts one after another: with our kernels and the
/// calls of the libraries on the host, or on a GPU.
TEST_P(GroupedExpertsPasses, AreAsPreciseAsOneAfterAnother) {
  EqualitySubject subject = make_subject(
      {"qwen3-moe-tiny", "sft", {}, "full", "three", 13, {}, R"({"moe_intermediate_size": 24})"}, 3);
  const auto narrowed = [&](c10::Device device) {
    Model narrow = Model::random(subject.model.config(), {.dtype = at::kBFloat16, .device = device}, 1);
    for (size_t i = 0; i < narrow.parameters().size(); ++i) {
      const at::Tensor value = subject.model.parameters()[i]->value;
      value.copy_(narrow.parameters()[i]->value.copy_(value));
    }
    return narrow;
  };
  Model narrow = narrowed(at::kCPU);
  Settings settings;
  settings.method = Method::kStandard;
  const Evaluation truth = evaluate(subject.model, subject.batch, *subject.objective, settings);
  const double own = measure(evaluate(narrow, subject.batch, *subject.objective, settings), truth).worst();
  std::optional<ServeCpu> kernels;
  std::optional<ServeAttention> attention;
  const bool on_host = GetParam() == std::string("host");
  if (on_host) {
    kernels.emplace(cuda::kernels_on_host());
    attention.emplace(library_attention(), Served::kAsOnGpus);
  } else {
    try {
      narrow = narrowed(open_device("cuda"));
    } catch (const InputError& error) {
      GTEST_SKIP() << "needs a CUDA device: " << error.what();
    }
  }
  const int generation = cuda::card().capability / 10;
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                              if (function.name() == std::string("aten::_grouped_mm")) ++grouped_products;
                              return std::unique_ptr<at::ObserverContext>();
                            }).scopes({at::RecordScope::FUNCTION}));
  settings.method = Method::kStreambp;
  for (const int64_t chunk : {5, 13, 64}) {
    settings.chunk = chunk;
    const EvaluationErrors errors =
        measure(evaluate(narrow, subject.batch, *subject.objective, settings), truth);
    EXPECT_EQ(grouped_products.exchange(0) > 0, generation == 9 || generation == 10);
    // A GPU's other kernels round otherwise too.
    EXPECT_TRUE(errors.worst() <= (on_host ? kPrecisionFactor : 2.0) * own)
        << errors.worst() << " in " << errors.worst_parameter() << ", one by one " << own;
  }
  at::removeCallback(handle);
}

}  // namespace
}  // namespace streambp
