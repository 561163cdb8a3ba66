// Whole passes in float32 and bfloat16, on the CPU and on a CUDA device: no method is further from the
// float64 truth than standard back-propagation in the same precision is, by more than a quarter.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <tuple>

#include "streambp/driver/device.h"
#include "streambp/error.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/on_host.h"
#include "verify/equality_subject.h"
#include "verify/ops_testing.h"

namespace streambp {
namespace {

/// A model's values and gradients in double, for comparison.
Evaluation in_double(Evaluation evaluation) {
  for (auto& [name, gradient] : evaluation.gradients) gradient = gradient.to(at::kDouble);
  return evaluation;
}

/// `model` in another precision on `device`, its values first rounded to it, so that both have the same.
Model rounded_twin(Model& model, at::ScalarType dtype, c10::Device device) {
  Model::Placement placement{dtype, device, at::kFloat, {}};
  placement.trainable = [&model](const std::string& name) { return model.parameter(name).trainable(); };
  Model twin = Model::random(model.config(), placement, 0);
  if (model.has_value_head() && !twin.has_value_head())
    twin.attach_value_head(model.value_head().weight->value.to(dtype));
  for (const auto& parameter : model.parameters()) {
    parameter->value.copy_(parameter->value.to(dtype));
    twin.parameter(parameter->name).value.copy_(parameter->value);
  }
  return twin;
}

std::vector<Settings> all_methods() {
  std::vector<Settings> all;
  for (const std::string& name : method_names()) {
    Settings settings;
    settings.method = parse_method(name);
    if (is_chunked(settings.method)) settings.chunk = 9;
    settings.head_chunk = 7;
    all.push_back(settings);
  }
  Settings kept;
  kept.chunk = 9;
  kept.keep_attention = true;
  kept.every = 2;
  kept.offload = Offload::kHost;
  all.push_back(kept);
  return all;
}

using Subject = std::tuple<const char*, at::ScalarType, const char*, const char*>;

class DevicePasses : public testing::TestWithParam<Subject> {};

std::string name_of(const testing::TestParamInfo<Subject>& info) {
  const auto& [device, dtype, model, objective] = info.param;
  const std::string family = std::string(model).substr(0, std::string(model).find('-'));
  return fmt::format("{}_{}_{}_{}", device, c10::toString(dtype), family, objective);
}

INSTANTIATE_TEST_SUITE_P(Devices, DevicePasses,
                         testing::Combine(testing::Values("cpu", "cuda"),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values("qwen3-tiny", "gemma2-tiny", "gemma3-tiny"),
                                          testing::Values("sft", "dpo", "grpo")),
                         name_of);

TEST_P(DevicePasses, AreAsPreciseAsStandardOnes) {
  const auto& [name, dtype, model, objective] = GetParam();
  c10::Device device = at::kCPU;
  try {
    device = open_device(name);
  } catch (const InputError& error) {
    GTEST_SKIP() << "needs a CUDA device: " << error.what();
  }
  EqualitySubject subject = make_subject({model, objective, {}, "full", "left", 37}, 11);
  Model twin = rounded_twin(subject.model, dtype, device);
  Settings standard;
  standard.method = Method::kStandard;
  const Evaluation truth = evaluate(subject.model, subject.batch, *subject.objective, standard);
  const EvaluationErrors own =
      measure(in_double(evaluate(twin, subject.batch, *subject.objective, standard)), truth);
  ASSERT_TRUE(own.worst_gradient() <= (dtype == at::kFloat ? 1e-3 : 0.5))
      << own.worst_gradient() << own.worst_parameter();
  // A log-probability can't be told better than to a unit in the last place.
  const double unit = dtype == at::kFloat ? 0x1p-23 : 0x1p-7;
  for (const Settings& settings : all_methods()) {
    const EvaluationErrors errors =
        measure(in_double(evaluate(twin, subject.batch, *subject.objective, settings)), truth);
    EXPECT_TRUE(errors.worst_gradient() <= 1.25 * own.worst_gradient())
        << method_name(settings.method) << ": " << errors.worst_gradient() << " in "
        << errors.worst_parameter() << ", standard: " << own.worst_gradient() << " in "
        << own.worst_parameter();
    EXPECT_TRUE(errors.log_probabilities <= std::max(1.25 * own.log_probabilities, unit))
        << method_name(settings.method) << ": " << errors.log_probabilities
        << ", standard: " << own.log_probabilities;
  }
}

/// All ops of a model through the CUDA kernels' source on the host, in float64.
TEST(CudaKernelsOnHost, GiveAWholePassItsGradients) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "qwen3-moe-tiny"}) {
    EqualitySubject subject = make_subject({name, "sft", {}, "full", "three", 13}, 3);
    const cuda::ServeCpu serve(cuda::kernels_on_host());
    Settings settings;
    settings.chunk = 8;
    const EvaluationErrors errors =
        measure(evaluate(subject.model, subject.batch, *subject.objective, settings), subject.reference);
    EXPECT_TRUE(errors.worst() <= 1e-10)
        << name << ": " << errors.worst() << " in " << errors.worst_parameter();
  }
}

}  // namespace
}  // namespace streambp
