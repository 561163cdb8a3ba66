// Whole passes on 1, 2 and 8 threads, which are more than most machines that run this have cores for it.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/objective/objective.h"
#include "verify/equality/batches.h"
#include "verify/equality/equality.h"
#include "verify/evaluation.h"
#include "verify/precision.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/backprop/every_method.h"
#include "verify/tests/turns.h"

namespace streambp::verify {
namespace {

/// The presets.
class Threads : public testing::TestWithParam<std::string> {};

// A dense model, one with windows and one with experts.
INSTANTIATE_TEST_SUITE_P(Models, Threads, testing::Values("qwen3-tiny", "gemma3-tiny", "qwen3-moe-tiny"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// In chunks of no multiple of a kernel's tile.
std::vector<Settings> all_methods() {
  Settings asked;
  asked.chunk = 130;
  return every_method(asked);
}

/// sft on three sequences of at most 310 tokens.
struct ThreadCase {
  Batch batch;
  std::unique_ptr<Objective> objective;

  explicit ThreadCase(const std::string& model)
      : batch(equality_batch("three", 310, preset(model).vocab_size, 5)),
        objective(make_objective("sft", batch)) {}

  Evaluation run(Model& model, const Settings& settings, int threads) const {
    return on_threads(threads, [&] { return evaluate(model, batch, *objective, settings); });
  }
};

TEST_P(Threads, EveryMethodIsExactOnAnyNumberOfThem) {
  const ThreadCase one(GetParam());
  Model model = equality_model(GetParam(), 3);
  Settings standard;
  standard.method = Method::kStandard;
  const Evaluation truth = one.run(model, standard, 1);
  static size_t models = 0;
  size_t turn = models++;  // a method has another number of threads in the next model
  for (const Settings& settings : all_methods()) {
    for (const int threads : in_turns<int>({1, 2, 8}, 1, turn)) {
      const double error = measure(one.run(model, settings, threads), truth).worst();
      EXPECT_TRUE(error <= kStandardLimit)
          << configuration_text(settings) << " on " << threads << " threads: error " << error;
    }
  }
}

TEST_P(Threads, TheSamePassGivesTheSameBits) {
  const ThreadCase one(GetParam());
  Model model = Model::random(preset(GetParam()), {at::kFloat, at::kCPU, at::kFloat, {}}, 3);
  static size_t models = 0;
  size_t turn = models++;
  for (const Settings& settings : all_methods()) {
    for (const int threads : in_turns<int>({2, 8}, 1, turn)) {
      const Evaluation first = one.run(model, settings, threads);
      EXPECT_TRUE(bit_equal(one.run(model, settings, threads), first))
          << configuration_text(settings) << " on " << threads << " threads";
    }
  }
}

TEST_P(Threads, LowerPrecisionIsAsPreciseAsStandardsOnOne) {
  static size_t turn = 0;
  for (const auto dtype : in_turns<at::ScalarType>({at::kFloat, at::kBFloat16}, 1, turn)) {
    const PrecisionSubject subject{.model = GetParam(), .dtype = dtype, .sequences = 1, .seq_len = 130};
    Settings standard;
    standard.method = Method::kStandard;
    const Precision alone = on_threads(1, [&] { return measure_precision(subject, {standard}); }).front();
    const std::vector<Settings> configurations = all_methods();
    const auto all = on_threads(8, [&] { return measure_precision(subject, configurations); });
    for (size_t i = 0; i < all.size(); ++i) {
      const auto [parameter, times] = times_standard(all[i], alone, rounding_of(at::kFloat));
      EXPECT_TRUE(times <= kPrecisionFactor)
          << at::toString(dtype) << ", " << configuration_text(configurations[i]) << ": " << parameter << " "
          << times << " times standard's error";
    }
  }
}

}  // namespace
}  // namespace streambp::verify
