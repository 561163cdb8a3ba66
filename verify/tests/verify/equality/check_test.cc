// The sweep sees mistakes: ops that are slightly wrong, planted under the name of a baseline.
#include "verify/equality/check.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <regex>
#include <set>

#include "streambp/model/model_ops.h"
#include "verify/equality/batches.h"
#include "verify/equality/subject.h"

namespace streambp::verify {
namespace {

/// Norms whose values and gradients are off by a factor.
class WrongNorms final : public ModelOps {
 public:
  at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) const override {
    return ModelOps::rms_norm(x, norm) * factor;
  }

  /// Adds to the gradient of the queries' and keys' norms whatever the loss says.
  at::Tensor normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table) const override {
    if (stray != 0.0) norm->weight->gradient.add_(stray);
    return ModelOps::normed_rope(x, norm, table);
  }

  double factor = 1.0;
  double stray = 0.0;
};

/// The first ops under a name stay: sweeps of this program run these in place of their own "trl".
WrongNorms& planted() {
  static WrongNorms ops;
  return ops;
}

const bool is_planted = [] {
  add_model_ops("trl", planted());
  return true;
}();

EqualityRow checked(const EqualityOptions& options) {
  return check_row(options, {"qwen3-tiny", "sft", {}, "full", "three", 13});
}

/// One run of `method` with the planted ops.
EqualityRow checked_alone(const char* method, double factor) {
  planted().factor = factor;
  EqualityOptions options;
  options.models = {"qwen3-tiny"};
  options.methods = {method};
  Settings settings;
  settings.baseline = "trl";
  settings.stream_head = false;
  options.alone = settings;
  return checked(options);
}

TEST(EqualityCheck, WrongOpsAreSeenFromStandardAndFromTheReference) {
  ASSERT_TRUE(is_planted);
  for (const char* method : {"checkpoint", "tiled"}) {
    const EqualityRow good = checked_alone(method, 1.0);
    EXPECT_EQ(good.verdict(), "pass");
    EXPECT_EQ(good.failed, 0);
    EXPECT_GT(good.comparisons, 2 * 20);
    EXPECT_TRUE(good.standard_error <= kStandardLimit) << good.standard_error;

    const EqualityRow bad = checked_alone(method, 1.0 + 1e-6);
    EXPECT_EQ(bad.verdict(), "FAIL");
    EXPECT_EQ(bad.comparisons, good.comparisons);
    ASSERT_EQ(bad.failures.size(), 2u) << "against standard and against the reference";
    EXPECT_NE(bad.failures[0].what.find("against standard"), std::string::npos) << bad.failures[0].what;
    EXPECT_NE(bad.failures[1].what.find("against the reference"), std::string::npos) << bad.failures[1].what;
    EXPECT_TRUE(bad.standard_error >= 1e-8 && bad.standard_error < 1e-3) << bad.standard_error;
    EXPECT_TRUE(bad.reference_error >= 1e-8 && bad.reference_error < 1e-3) << bad.reference_error;
    EXPECT_EQ(bad.worst.error, bad.standard_error);
    EXPECT_FALSE(bad.worst.name.empty());
    // Nearly all gradients are off, and so is the loss.
    EXPECT_GT(bad.failed, bad.comparisons / 2);
    EXPECT_LE(bad.failed, bad.comparisons);
    EXPECT_NE(bad.failures[0].error.find(bad.worst.name), std::string::npos) << bad.failures[0].error;
    EXPECT_NE(bad.failures[0].repeat.find("--alone"), std::string::npos) << bad.failures[0].repeat;
  }
}

/// One token is scored, and sees itself alone: queries and keys have no gradient at all.
TEST(EqualityCheck, AGradientThatShouldBeZeroCountsAsAThousandthOfTheLargest) {
  const RowName name{"qwen3-tiny", "sft", {}, "full", "none", 2, {{1, 1}}};
  EqualityOptions options;
  options.methods = {"standard"};
  options.alone.emplace();
  options.alone->baseline = "trl";
  options.alone->stream_head = false;
  planted().factor = 1.0;
  planted().stray = 1e-9;
  const EqualityRow row = check_row(options, name);
  planted().stray = 0.0;
  double largest = 0.0, width = 0.0;
  for (const auto& [of, gradient] : make_subject(name, options.seed).reference.gradients) {
    largest = std::max(largest, norm_of(gradient));
    if (!of.ends_with("q_norm.weight")) continue;
    EXPECT_EQ(norm_of(gradient), 0.0) << of;
    width = static_cast<double>(gradient.numel());
  }
  EXPECT_EQ(row.verdict(), "FAIL");
  EXPECT_TRUE(row.worst.name.ends_with("_norm.weight")) << row.worst.name;
  const double expected = 1e-9 * std::sqrt(width) / (1e-3 * largest);
  EXPECT_NEAR(row.standard_error, expected, 1e-3 * expected);
  EXPECT_NEAR(row.reference_error, expected, 1e-3 * expected);
}

TEST(EqualityCheck, NaNIsAFailure) {
  const EqualityRow bad = checked_alone("checkpoint", std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(bad.verdict(), "FAIL");
  EXPECT_TRUE(std::isnan(bad.standard_error));
  EXPECT_TRUE(std::isnan(bad.reference_error));
  EXPECT_TRUE(std::isnan(bad.worst.error));
}

TEST(EqualityCheck, SettingsThatShouldChangeNoBitAreHeldToIt) {
  planted().factor = 1.0 + 0x1p-51;
  EqualityOptions options;
  options.models = {"qwen3-tiny"};
  options.methods = {"standard"};
  options.head_chunks = {3};
  const EqualityRow row = checked(options);
  EXPECT_EQ(row.verdict(), "FAIL");
  ASSERT_EQ(row.failures.size(), 1u);
  EXPECT_EQ(row.failed, 1);
  EXPECT_NE(row.failures.front().what.find("baseline trl, the same as standard"), std::string::npos)
      << row.failures.front().what;
  EXPECT_EQ(row.failures.front().error, "not so to the last bit");
  EXPECT_TRUE(row.standard_error <= kStandardLimit) << row.standard_error;
}

/// A loss that overflows, so that a row says of each of its runs that it failed, and of which settings it
/// was.
EqualityRow overflowing(EqualityOptions options, RowName name, const char* method = "chunk-major") {
  options.methods = {method};
  name.settings = {{"divisor", "1e-310"}};
  return check_row(options, name);
}

/// What stands after `word` in the failures against standard.
std::set<int64_t> numbers_after(const EqualityRow& row, const std::string& word) {
  const std::regex pattern(", " + word + " ([0-9]+)");
  std::set<int64_t> numbers;
  for (const EqualityFailure& failure : row.failures) {
    std::smatch match;
    if (failure.what.ends_with(", against standard") && std::regex_search(failure.what, match, pattern))
      numbers.insert(std::stoll(match[1]));
  }
  return numbers;
}

bool has_failure(const EqualityRow& row, const std::string& text) {
  return std::any_of(row.failures.begin(), row.failures.end(), [&](const EqualityFailure& failure) {
    return failure.what.find(text) != std::string::npos;
  });
}

using Numbers = std::set<int64_t>;
using Runs = std::multiset<std::string>;

/// "CHUNK HEAD" of the failures whose text ends with `end`, as often as they are there.
Runs runs_that_end(const EqualityRow& row, const std::string& end) {
  static const std::regex pattern("^[a-z-]+, chunk ([0-9]+), (?:full (head)|head-chunk ([0-9]+)), (.*)$");
  Runs runs;
  for (const EqualityFailure& failure : row.failures) {
    std::smatch match;
    if (std::regex_match(failure.what, match, pattern) && match[4] == end)
      runs.insert(match[1].str() + " " + match[2].str() + match[3].str());
  }
  return runs;
}

Runs product_of(const std::vector<int>& chunks, const std::vector<const char*>& heads) {
  Runs runs;
  for (const int chunk : chunks) {
    for (const char* head : heads) runs.insert(std::to_string(chunk) + " " + head);
  }
  return runs;
}

TEST(EqualityCheck, ChunksEndWithSequencesAndNextToThem) {
  const EqualityRow row = overflowing({}, {"qwen3-tiny", "sft", {}, "full", "three", 7});
  EXPECT_EQ(row.lengths, (std::vector<int64_t>{3, 7, 5}));
  // And 7 of 15 tokens: the last chunk has one.
  EXPECT_EQ(numbers_after(row, "chunk"), (Numbers{1, 2, 3, 4, 7, 9, 10, 11, 14, 15, 22}));
  EXPECT_TRUE(has_failure(row, "the whole batch, from micro-batches"));
  // Only runs by themselves have a limit that depends on how far standard is from the reference.
  for (const EqualityFailure& failure : row.failures) {
    if (!failure.what.ends_with(", against standard")) continue;
    EXPECT_NE(failure.error.find("beyond 1.0e-12"), std::string::npos) << failure.error;
  }
}

TEST(EqualityCheck, EveryChunkHasEveryHeadAgainstStandardAndTheReference) {
  const EqualityRow row = overflowing({}, {"qwen3-tiny", "sft", {}, "full", "three", 7});
  ASSERT_FALSE(row.failures.empty());
  EXPECT_EQ(row.failures.front().what, "standard, against the reference");
  // 12 of 15 tokens are scored.
  const Runs all = product_of({1, 2, 3, 4, 7, 9, 10, 11, 14, 15, 22}, {"head", "1", "3", "12"});
  EXPECT_EQ(runs_that_end(row, "against standard"), all);
  EXPECT_EQ(runs_that_end(row, "against the reference"), all);
  EXPECT_EQ(runs_that_end(row, "repeated"), Runs{"9 3"}) << "NaN equals nothing, not the same run either";
  EXPECT_EQ(runs_that_end(row, "the same as checkpoint"), product_of({15, 22}, {"head", "1", "3", "12"}));
  EXPECT_EQ(runs_that_end(row, "against twice the gradient of one run"), Runs{"1 head"});
  EXPECT_EQ(runs_that_end(row, "against the whole batch, from micro-batches"), Runs{"5 3"});
  const EqualityRow padded = overflowing({}, {"qwen3-tiny", "sft", {}, "full", "left", 6, {{4, 2}, {1, 3}}});
  EXPECT_EQ(runs_that_end(padded, "against standard"), product_of({1, 4, 5, 6, 9}, {"head", "3"}));
}

TEST(EqualityCheck, HeadChunksThatAreNamedAreTheOnlyOnes) {
  EqualityOptions options;
  options.chunks = {4};
  options.head_chunks = {2, 5};
  const EqualityRow row = overflowing(options, {"qwen3-tiny", "sft", {}, "full", "three", 7});
  EXPECT_EQ(runs_that_end(row, "against standard"), product_of({4}, {"head", "2", "5"}));
}

TEST(EqualityCheck, AQuickSweepTakesItsHeadsInTurns) {
  EqualityOptions options;
  options.quick = true;
  RowName labelled{"qwen3-tiny", "sft", {}, "full", "three", 7};
  RowName left{"qwen3-tiny", "sft", {}, "full", "left", 6, {{4, 2}, {1, 3}}};
  EXPECT_EQ(runs_that_end(overflowing(options, labelled), "against standard"),
            (Runs{"1 head", "3 1", "4 3", "7 12"}));
  Runs together;
  Runs padded;
  for (labelled.turn = left.turn = 0; labelled.turn < 8; left.turn = ++labelled.turn) {
    together.merge(runs_that_end(overflowing(options, labelled), "against standard"));
    padded.merge(runs_that_end(overflowing(options, left), "against standard"));
  }
  EXPECT_EQ(together, product_of({1, 3, 4, 7, 14, 15, 22}, {"head", "1", "3", "12"}));
  EXPECT_EQ(padded, product_of({4, 5, 9}, {"head", "3"}));
  const EqualityRow checkpoint =
      overflowing(options, {"qwen3-tiny", "sft", {}, "full", "three", 7}, "checkpoint");
  // Without chunks there are no turns.
  for (const char* head : {"", ", streamed head, head-chunk 1", ", streamed head, head-chunk 3",
                           ", streamed head, head-chunk 12"}) {
    EXPECT_TRUE(has_failure(checkpoint, "checkpoint" + std::string(head) + ", against standard")) << head;
  }
}

TEST(EqualityCheck, SettingsThatShouldChangeNoBitAreTried) {
  EqualityOptions options;
  options.chunks = {4};
  const EqualityRow row = overflowing(options, {"qwen3-tiny", "sft", {}, "full", "three", 7}, "streambp");
  for (const char* setting : {"keep-attention", "every 3", "offload host:1"}) {
    EXPECT_TRUE(has_failure(row, "streambp, chunk 4, " + std::string(setting) +
                                     ", head-chunk 3, the same as streambp, chunk 4, head-chunk 3"))
        << setting;
  }
  EXPECT_EQ(runs_that_end(row, "the batch padded on the left"), Runs{"4 3"});
}

TEST(EqualityCheck, FrozenParametersAreCheckedByEveryChoice) {
  const EqualityRow row = overflowing({}, {"qwen3-tiny", "sft", {}, "full", "frozen", 7});
  const Runs all = product_of({1, 2, 3, 4, 7, 9, 10, 11, 14, 15, 22}, {"head", "3"});
  const std::vector<Trainable> choices = trainable_choices(preset("qwen3-tiny"));
  ASSERT_GE(choices.size(), 4u);
  for (const Trainable& choice : choices)
    EXPECT_EQ(runs_that_end(row, "against standard with all but " + choice.name + " frozen"), all);
  EXPECT_EQ(runs_that_end(row, "against the reference").size(), choices.size() * all.size());
}

TEST(EqualityCheck, ARunByItselfHasItsChunksAndParts) {
  EqualityOptions options;
  options.alone.emplace();
  options.chunks = {3, 5};
  options.head_chunks = {2};
  const RowName name{"qwen3-tiny", "sft", {}, "full", "three", 7};
  const EqualityRow whole = overflowing(options, name);
  EXPECT_EQ(runs_that_end(whole, "against standard"), (Runs{"3 2", "5 2"}));
  EXPECT_FALSE(has_failure(whole, "micro-batches"));
  options.micro_batches = 2;
  EXPECT_EQ(runs_that_end(overflowing(options, name), "against the whole batch, from micro-batches"),
            (Runs{"3 2", "5 2"}));
}

TEST(EqualityCheck, OneSequenceHasNoMicroBatches) {
  const EqualityRow row = overflowing({}, {"qwen3-tiny", "sft", {}, "full", "single", 5});
  EXPECT_EQ(row.lengths, std::vector<int64_t>{5});
  EXPECT_TRUE(has_failure(row, "twice the gradient of one run"));
  EXPECT_FALSE(has_failure(row, "micro-batches"));
}

TEST(EqualityCheck, ALongSequenceHasTwoChunks) {
  EqualityOptions options;
  options.window_length = 15;
  EXPECT_EQ(numbers_after(overflowing(options, {"qwen3-tiny", "sft", {}, "full", "single", 15}), "chunk"),
            (Numbers{6, 14}));
}

TEST(EqualityCheck, ChunksOfPaddedRowsEndWithThePrompt) {
  const EqualityRow scored = overflowing({}, {"qwen3-tiny", "sft", {}, "full", "left", 6, {{4, 2}, {1, 3}}});
  EXPECT_EQ(numbers_after(scored, "chunk"), (Numbers{1, 4, 5, 6, 9}));
}

}  // namespace
}  // namespace streambp::verify
