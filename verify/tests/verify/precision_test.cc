// Errors of lower precisions: units in the last place, histograms of known errors, medians over seeds, and
// the two ends of the curve over the number of chunks.
#include "verify/precision.h"

#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>

#include "bench/baseline/hugging_face.h"
#include "streambp/error.h"
#include "verify/precision_report.h"
#include "verify/tests/turns.h"
#include "verify/ulps.h"

namespace streambp::verify {
namespace {

constexpr double kInfinitelyFar = std::numeric_limits<double>::infinity();

TEST(Ulps, AreTheDistanceOfNeighboursInTheFormat) {
  EXPECT_EQ(unit_in_last_place(1.0, at::kFloat), 0x1p-23);
  EXPECT_EQ(unit_in_last_place(-1.9999, at::kFloat), 0x1p-23);
  EXPECT_EQ(unit_in_last_place(2.0, at::kFloat), 0x1p-22);
  EXPECT_EQ(unit_in_last_place(1.0, at::kBFloat16), 0x1p-7);
  EXPECT_EQ(unit_in_last_place(0.9999999, at::kBFloat16), 0x1p-8);
  EXPECT_EQ(unit_in_last_place(1.0, at::kHalf), 0x1p-10);
  // The least normal number, what is below it, and nothing.
  EXPECT_EQ(unit_in_last_place(0x1p-126, at::kBFloat16), 0x1p-133);
  EXPECT_EQ(unit_in_last_place(0x1p-130, at::kBFloat16), 0x1p-133);
  EXPECT_EQ(unit_in_last_place(0.0, at::kFloat), 0x1p-149);
  EXPECT_TRUE(std::isnan(unit_in_last_place(kNaN, at::kFloat)));
  EXPECT_TRUE(std::isnan(unit_in_last_place(kInfinitelyFar, at::kFloat)));
  EXPECT_THROW(unit_in_last_place(1.0, at::kDouble), InputError);
  float number = 1e-30F;
  for (int i = 0; i < 200; ++i, number *= 2.71F) {
    const double next = static_cast<double>(std::nextafter(number, 1e38F)) - static_cast<double>(number);
    EXPECT_EQ(unit_in_last_place(static_cast<double>(number), at::kFloat), next) << number;
    if (number > 1e30F) break;
  }
}

at::Tensor numbers(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

TEST(Ulps, CountKnownErrorsByPowersOfTwo) {
  const double unit = 0x1p-7;  // of 1 in bfloat16
  EntryErrors errors;
  errors.add(numbers({1.0 + 0.5 * unit, 1.0 - unit, 1.0 + 1.01 * unit, -1.0 + 3.0 * unit, 1.0 + 256.0 * unit,
                      1.0 - 257.0 * unit, 0.0, 1e-9, kNaN, kInfinitelyFar}),
             numbers({1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0}), at::kBFloat16);
  const std::array<int64_t, EntryErrors::kBins> expected{1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 4};
  EXPECT_EQ(errors.ulps, expected);
  EXPECT_EQ(errors.zeros, 1);
  EXPECT_EQ(errors.entries, 10);
  EXPECT_EQ(EntryErrors::bin_name(0), "1/2");
  EXPECT_EQ(EntryErrors::bin_name(9), "256");
  EXPECT_EQ(EntryErrors::bin_name(10), "more");
  EntryErrors twice = errors;
  twice.add(errors);
  EXPECT_EQ(twice.ulps[10], 8);
  EXPECT_DOUBLE_EQ(twice.share(10), 4.0 / 9.0);
  EXPECT_THROW(errors.add(numbers({1.0}), numbers({1.0, 2.0}), at::kFloat), InputError);
}

/// What is rounded is within half a unit, what is cut off within one, and both occur.
TEST(Ulps, TellRoundingFromCuttingOff) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  const at::Tensor truth = at::randn({1000}, generator, at::kDouble);
  EntryErrors rounded, cut;
  rounded.add(truth.to(at::kFloat).to(at::kBFloat16), truth, at::kBFloat16);
  EXPECT_EQ(rounded.ulps[0], 1000);
  at::Tensor shorter = truth.clone();
  for (int64_t i = 0; i < 1000; ++i) {
    const auto x = truth[i].item<double>();
    const double unit = unit_in_last_place(x, at::kBFloat16);
    shorter[i] = std::trunc(x / unit) * unit;
  }
  cut.add(shorter, truth, at::kBFloat16);
  EXPECT_EQ(cut.ulps[0] + cut.ulps[1], 1000);
  EXPECT_GT(cut.ulps[0], 400);
  EXPECT_GT(cut.ulps[1], 400);
  EXPECT_GT(cut.relative(), 1.5 * rounded.relative());
}

Precision with(double error) {
  Precision one;
  one.loss = error;
  one.gradients = {{"a", error}, {"b", 2.0 * error}};
  return one;
}

TEST(PrecisionSeeds, HaveMedians) {
  EXPECT_EQ(median_of({with(3.0)}).gradients.at("b"), 6.0);
  EXPECT_EQ(median_of({with(9.0), with(1.0), with(2.0)}).gradients.at("a"), 2.0);
  EXPECT_EQ(median_of({with(9.0), with(1.0), with(2.0), with(4.0)}).loss, 3.0);
  EXPECT_TRUE(std::isnan(median_of({with(9.0), with(kNaN), with(2.0)}).gradients.at("a")));
}

TEST(PrecisionRows, AreJudgedByTheMedianOfEachParameter) {
  const PrecisionKind& kind = precision_kinds().front();
  const auto row_of = [&](const std::vector<Precision>& of) {
    return precision_row(kind, {}, {}, of, {with(1.0), with(1.0), with(1.0)});
  };
  EXPECT_TRUE(row_of({with(1.0), with(1.25), with(9.0)}).within());
  EXPECT_EQ(row_of({with(1.0), with(1.25), with(9.0)}).most_times, 9.0);
  EXPECT_FALSE(row_of({with(1.0), with(1.26), with(9.0)}).within());
  EXPECT_FALSE(row_of({with(1.0), with(kNaN), with(1.0)}).within());
  // One parameter of two in one seed each: neither's median is beyond.
  Precision first = with(1.0), second = with(1.0);
  first.gradients["a"] = second.gradients["b"] = 50.0;
  EXPECT_TRUE(row_of({first, second, with(1.0)}).within());
  // Below the rounding of its numbers an error is as good as that.
  const Precision tiny = with(1e-12), small = with(1e-9);
  EXPECT_TRUE(precision_row(kind, {}, {}, {small}, {tiny}).within());
}

Settings settings_of(Method method, int64_t chunk, int64_t head_chunk) {
  Settings settings;
  settings.method = method;
  settings.chunk = chunk;
  settings.head_chunk = head_chunk;
  return settings;
}

/// One chunk, for the layers and the head, has the bits of checkpoint with its head streamed as one chunk; as
/// many as tokens have others, and errors of the same kind.
TEST(PrecisionCurve, BeginsWithCheckpointsBitsAndEndsAtAChunkAToken) {
  for (const PrecisionKind& kind : precision_kinds()) {
    PrecisionSubject subject;
    subject.dtype = kind.dtype;
    subject.gradient_dtype = kind.gradient_dtype;
    subject.head_dtype = kind.head_dtype;
    subject.seq_len = 12;
    subject.batches = 4;
    subject.entries = true;
    const int64_t tokens = subject.tokens();
    Settings whole = settings_of(Method::kCheckpoint, 0, tokens);
    whole.stream_head = true;
    const std::vector<Precision> all = measure_precision(
        subject, {settings_of(Method::kStandard, 0, 0), whole, settings_of(Method::kStreambp, tokens, tokens),
                  settings_of(Method::kStreambp, 1, tokens), settings_of(Method::kStreambp, tokens, 1)});
    const Precision& checkpoint = all[1];
    EXPECT_EQ(all[2].gradients, checkpoint.gradients) << kind.name;
    EXPECT_EQ(all[2].loss, checkpoint.loss) << kind.name;
    for (const auto& [name, entries] : checkpoint.entries) {
      EXPECT_EQ(all[2].entries.at(name).ulps, entries.ulps) << kind.name << " " << name;
      EXPECT_GT(entries.entries, 0);
    }
    for (const size_t end : {size_t{3}, size_t{4}}) {
      EXPECT_NE(all[end].gradients, checkpoint.gradients) << kind.name;
      const auto [name, times] = times_standard(all[end], all[0], rounding_of(kind.gradient_dtype));
      EXPECT_TRUE(times <= 3.0) << kind.name << " " << name << ": " << times;  // of four batches they scatter
    }
  }
}

/// Models without a head for values get one for the objectives that score with it.
TEST(PrecisionObjectives, ThatNeedAValueHeadHaveOne) {
  for (const char* objective : {"reward", "ppo"}) {
    PrecisionSubject subject;
    subject.objective = objective;
    subject.dtype = subject.gradient_dtype = at::kFloat;
    subject.seq_len = 12;
    subject.batches = 2;
    const std::vector<Precision> all = measure_precision(
        subject, {settings_of(Method::kStandard, 0, 0), settings_of(Method::kCheckpoint, 0, 0)});
    EXPECT_TRUE(all[0].gradients.at("value_head.weight") < 1e-4) << objective;
    EXPECT_EQ(all[0].gradients, all[1].gradients) << objective;
  }
}

/// The slope of a target that leads is 1 - p, of which a float32 softmax has no digits left beyond 16 nats.
/// What remains is the rounding of the logits, which grow with the lead.
TEST(PrecisionOfConfidentTokens, IsFloat32sOwnAtEveryLead) {
  bench::add_baselines();
  std::vector<Settings> configurations{settings_of(Method::kStandard, 0, 0)};
  for (const MethodKind& kind : method_kinds())
    configurations.push_back(settings_of(kind.method, is_chunked(kind.method) ? 7 : 0, 0));
  Settings by_softmax;
  by_softmax.method = Method::kStandard;
  by_softmax.baseline = "hugging-face";
  configurations.push_back(by_softmax);
  size_t turn = 0;
  for (const double lead : in_turns<double>({20.0, 8.0, 40.0}, 1, turn)) {
    std::vector<std::vector<Precision>> seeds(configurations.size());
    std::vector<std::vector<std::map<std::string, double>>> times(configurations.size());
    for (const uint64_t seed : {0U, 1000U, 2000U, 3000U, 4000U}) {
      PrecisionSubject subject;
      subject.lead = lead;
      subject.seed = seed;
      subject.batches = 12;
      const std::vector<Precision> all = measure_precision(subject, configurations);
      for (size_t i = 0; i < all.size(); ++i) {
        times[i].push_back(times_by_parameter(all[i], all.front(), rounding_of(at::kFloat)));
        seeds[i].push_back(all[i]);
      }
    }
    for (size_t i = 0; i < configurations.size(); ++i) {
      const auto [name, error] = median_of(seeds[i]).worst();
      const double more = worst_of(median_of(times[i])).second;
      const std::string what = fmt::format("lead {}, {}", lead, configuration_text(configurations[i]));
      fmt::print("{}: {:.1e} in {}, {:.2f} x standard\n", what, error, name, more);
      if (configurations[i].baseline != "fair") {
        EXPECT_TRUE(lead < 20.0 || error > 0.1) << "a softmax does not lose what this test is about";
        continue;
      }
      EXPECT_TRUE(error <= 1e-5 * lead) << what << ": " << error << " in " << name;
      EXPECT_TRUE(more <= kPrecisionFactor) << what << ": " << more << " times standard's error";
    }
  }
}

TEST(PrecisionOfConfidentTokens, RefusesOtherObjectivesAndWhatASoftCapBounds) {
  PrecisionSubject subject;
  subject.lead = 12.0;
  subject.objective = "dpo";
  EXPECT_THROW(measure_precision(subject, {settings_of(Method::kStandard, 0, 0)}), InputError);
  subject.objective = "sft";
  subject.model = "gemma2-tiny";
  subject.lead = 90.0;
  EXPECT_THROW(measure_precision(subject, {settings_of(Method::kStandard, 0, 0)}), InputError);
}

/// In as many chunks as tokens: a layer's sums are float32 until it ends, the head's have a remainder.
TEST(PrecisionCurve, OfBfloat16IsFlat) {
  PrecisionSubject subject;
  subject.dtype = subject.gradient_dtype = subject.head_dtype = at::kBFloat16;
  subject.seq_len = 32;
  size_t turn = 0;
  for (const char* model :
       in_turns<const char*>({"qwen3-tiny", "llama-tied-tiny", "gpt-oss-tiny"}, 1, turn)) {
    subject.model = model;
    const std::vector<Settings> configurations{settings_of(Method::kStandard, 0, 0),
                                               settings_of(Method::kStreambp, 1, 1),
                                               settings_of(Method::kTiled, 1, 1)};
    const std::vector<Precision> all = measure_precision(subject, configurations);
    for (size_t i = 1; i < all.size(); ++i) {
      const auto [name, times] = times_standard(all[i], all.front(), rounding_of(at::kBFloat16));
      const std::string what = fmt::format("{}, {}", model, method_name(configurations[i].method));
      EXPECT_TRUE(times <= kPrecisionFactor)
          << what << ": " << times << " times standard's error in " << name;
      fmt::print("{}: {:.3f} in {}\n", what, times, name);
    }
  }
}

}  // namespace
}  // namespace streambp::verify
