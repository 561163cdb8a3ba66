// Objectives: gradients against differences, and what streaming, micro-batches and dry runs rely on.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <set>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/tests/streambp/model/file_testing.h"
#include "verify/tests/streambp/objective/objective_testing.h"

namespace streambp {
namespace {

constexpr int64_t kVocabulary = 13;

/// Six-point differences of the loss for every entry of every column, [5, m].
at::Tensor differences(const Objective& objective, const TokenValues& values) {
  const double h = 1e-3;
  std::vector<at::Tensor> all;
  for (const at::Tensor& each : columns(values)) all.push_back(each.detach().clone());
  const int64_t size = all[0].size(0);
  at::Tensor result = at::zeros({5, size}, at::kDouble);
  for (int64_t column = 0; column < 5; ++column) {
    double* const entries = all[static_cast<size_t>(column)].mutable_data_ptr<double>();
    for (int64_t i = 0; i < size; ++i) {
      const double kept = entries[i];
      const auto at_step = [&](double step) {
        entries[i] = kept + step * h;
        const double loss = whole_loss(objective, from_columns(all)).item<double>();
        entries[i] = kept;
        return loss;
      };
      result[column][i] =
          (45 * (at_step(1) - at_step(-1)) - 9 * (at_step(2) - at_step(-2)) + at_step(3) - at_step(-3)) /
          (60 * h);
    }
  }
  return result;
}

/// A batch with every input of a variant, its objective, and values of its scored tokens.
struct Case {
  Batch batch;
  std::unique_ptr<Objective> objective;
  TokenValues values;
};

/// `unequal`: the last targets of some sequences are left out, so that their tokens have other weights.
Case make_case(const Variant& variant, int64_t sequences = 5, int64_t length = 11, bool unequal = false) {
  const ObjectiveKind& kind = objective_kind(variant.name);
  const Options options = complete_options(kind, variant.options);
  Case made;
  made.batch = synthetic_batch(kind, options, sequences, length, kVocabulary, 3);
  if (unequal && (kind.layout == Layout::kCompletions || kind.layout == Layout::kLabels)) {
    for (int64_t i = 1; i < sequences; ++i) {
      const int64_t end = made.batch.offsets[static_cast<size_t>(i) + 1];
      made.batch.targets.slice(0, end - 1 - i, end).fill_(kNoTarget);
    }
  }
  if (kind.layout == Layout::kCompletions) {
    at::Generator generator = at::detail::createCPUGenerator(7);
    const auto around = [&](double deviation) {
      return at::randn({made.batch.size()}, generator, at::kDouble) * deviation;
    };
    auto& given = made.batch.token_inputs;
    given[inputs::kImportanceSamplingRatio] = around(0.4).exp();
    given[inputs::kSamplingLogProbabilities] = given.at(inputs::kOldLogProbabilities) + around(0.3);
  }
  made.objective = make_objective(variant.name, made.batch, variant.options);
  made.values = random_values(ScoredTokens(variant.name, made.batch).has_target(), -std::log(kVocabulary), 4);
  return made;
}

TEST(ObjectiveKinds, AreComplete) {
  std::set<std::string> names;
  for (const ObjectiveKind& kind : objective_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_FALSE(kind.summary.empty() || kind.source.empty() || !kind.make) << kind.name;
    std::set<std::string> options;
    for (const Option& option : kind.options) {
      EXPECT_TRUE(options.insert(option.name).second) << kind.name << " " << option.name;
      EXPECT_FALSE(option.help.empty()) << kind.name << " " << option.name;
    }
    // Losses of scores and embeddings leave the routers' loss out, whatever the model's config.json says.
    MixtureSettings mixture;
    mixture.num_experts = 4;
    mixture.router_aux_loss_coef = 0.02;
    mixture.output_router_logits = true;
    const double coefficient = router_loss(kind, complete_options(kind, {})).of(mixture);
    const bool scores = kind.name == "reward" || kind.name == "infonce";
    EXPECT_EQ(coefficient, scores ? 0.0 : 0.02) << kind.name;
  }
}

TEST(Options, SayWhichNumbersTheyTake) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const auto refusal = [](const std::string& text, double least, double most) -> std::string {
    try {
      return fmt::format("{}", Options({{"x", text}}, "sft").number("x", least, most));
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal("q", -kAny, kAny), "sft: x is 'q', expected a number");
  EXPECT_EQ(refusal("-1", 0, kAny), "sft: x is '-1', expected a number from 0");
  EXPECT_EQ(refusal("3", -kAny, 2), "sft: x is '3', expected a number up to 2");
  EXPECT_EQ(refusal("3", 0.5, 2), "sft: x is '3', expected a number from 0.5 to 2");
  EXPECT_EQ(refusal("nan", -kAny, kAny), "sft: x is 'nan', expected a number");
  EXPECT_EQ(refusal("inf", -kAny, kAny), "sft: x is 'inf', expected a number");
  for (const char* within : {"0.5", "2"}) EXPECT_EQ(refusal(within, 0.5, 2), within) << "its ends are in it";
}

TEST(Counts, AreOfTargetsValuesAndTheFirstHalf) {
  Batch batch = random_batch({1, 4, 2, 3}, kVocabulary, 1);
  batch.value_mask = at::zeros({10}, at::kBool);
  batch.value_mask.narrow(0, 3, 4).fill_(true);
  // The last token of a sequence has no target, and none follows it.
  EXPECT_EQ(count(batch), (Counts{.scored = 6, .valued = 4, .sequences = 4, .chosen = 3, .chosen_next = 3}));
  batch.targets[2] = kNoTarget;
  EXPECT_EQ(count(batch), (Counts{.scored = 5, .valued = 4, .sequences = 4, .chosen = 2, .chosen_next = 3}));
}

/// What has no parts: a batch's rows are compared with one another.
TEST(ObjectiveKinds, SayWhichCompareRows) {
  const std::vector<std::pair<Variant, bool>> cases{{{"sft", {}}, false},
                                                    {{"dpo", {}}, false},
                                                    {{"dpo", {{"loss_type", "aot"}}}, true},
                                                    {{"dpo", {{"loss_type", "sigmoid+aot_unpaired"}}}, true},
                                                    {{"dpo", {{"loss_type", "sigmoid+sft"}}}, false},
                                                    {{"cpo", {}}, false},
                                                    {{"grpo", {}}, false},
                                                    {{"grpo", {{"top_entropy_quantile", "0.3"}}}, true},
                                                    {{"infonce", {}}, true},
                                                    {{"reward", {}}, false},
                                                    {{"ppo", {}}, false}};
  for (const auto& [variant, compares] : cases) {
    const ObjectiveKind& kind = objective_kind(variant.name);
    const Options options = complete_options(kind, variant.options);
    const bool says = kind.compares_rows && kind.compares_rows({}, options);
    EXPECT_EQ(says, compares) << variant.text();
  }
  // KTO does where rows are there for its estimate.
  const ObjectiveKind& kto = objective_kind("kto");
  Batch batch;
  EXPECT_FALSE(kto.compares_rows(batch, complete_options(kto, {})));
  batch.sequence_inputs[inputs::kRole] = doubles({1, 0, 1});
  EXPECT_FALSE(kto.compares_rows(batch, complete_options(kto, {})));
  batch.sequence_inputs[inputs::kRole] = doubles({1, 0, 2});
  EXPECT_TRUE(kto.compares_rows(batch, complete_options(kto, {})));
}

TEST(Objective, GradientsAreThoseOfDifferences) {
  for (const Variant& variant : all_variants()) {
    if (holds_values_constant(variant)) continue;
    Case made = make_case(variant);
    // The KL estimate's rows are held constant where the differences move them: below the reference they
    // count as 0.
    if (variant.name == "kto") made.batch.token_inputs[inputs::kReferenceLogProbabilities].add_(1.5);
    const auto objective = make_objective(variant.name, made.batch, variant.options);
    expect_near(gradients(whole_loss(*objective, made.values), made.values),
                differences(*objective, made.values), variant.text(), 1e-10);
  }
}

TEST(Objective, ChunksOfASeparableOneSumToTheWhole) {
  int checked = 0;
  for (const Variant& variant : all_variants()) {
    const Case made = make_case(variant, 5, 11, /*unequal=*/true);
    if (!made.objective->separable()) continue;
    const at::Tensor whole = whole_loss(*made.objective, made.values);
    const int64_t size = made.values.log_probabilities.size(0);
    for (const int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{7}, size - 1, size + 1}) {
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (int64_t begin = 0; begin < size; begin += chunk) {
        const int64_t end = std::min(begin + chunk, size);
        sum = sum + made.objective->loss(slice(made.values, begin, end), begin, end);
      }
      expect_near(sum.item<double>(), whole.item<double>(), variant.text());
      expect_near(gradients(sum, made.values), gradients(whole, made.values), variant.text());
    }
    ++checked;
  }
  EXPECT_GE(checked, 11);
}

/// Values of every token of the stream, as leaves that go with their tokens into parts of the batch.
std::vector<at::Tensor> attach_values(Batch& batch) {
  at::Tensor has_target = batch.targets.ne(kNoTarget).to(at::kDouble);
  const std::vector<at::Tensor> leaves = columns(random_values(has_target, -2.0, 5));
  for (size_t i = 0; i < leaves.size(); ++i) batch.token_inputs[fmt::format("column {}", i)] = leaves[i];
  return leaves;
}

at::Tensor loss_of_attached(const Variant& variant, const Batch& batch, const Counts& whole) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < 5; ++i) {
    all.push_back(batch.token_inputs.at(fmt::format("column {}", i)).index_select(0, scored_indices(batch)));
  }
  return whole_loss(*make_objective(variant.name, batch, variant.options, whole), from_columns(all));
}

TEST(Objective, MicroBatchesSumToTheWholeBatch) {
  for (const Variant& variant : all_variants()) {
    Batch batch = make_case(variant, 4, 12).batch;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      // Prompts of unequal lengths, so that the parts differ in their numbers of tokens.
      batch.targets.narrow(0, batch.offsets[i], 1 + static_cast<int64_t>(i) % 4).fill_(kNoTarget);
    }
    if (variant.name == "kto") batch.sequence_inputs[inputs::kRole] = doubles({1, 0, 0, 1});
    std::vector<std::vector<int64_t>> parts{{0}, {1, 2}, {3}};
    if (objective_kind(variant.name).layout == Layout::kPairs) parts = {{0, 4}, {1, 2, 3, 5, 6, 7}};

    const std::vector<at::Tensor> leaves = attach_values(batch);
    const Counts counts = count(batch);
    if (wants_whole_batch(variant)) {
      EXPECT_TRUE(refused([&] { loss_of_attached(variant, select_sequences(batch, parts[0]), counts); },
                          "in a part of a batch, expected the whole"));
      continue;
    }
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const std::vector<int64_t>& part : parts)
      sum = sum + loss_of_attached(variant, select_sequences(batch, part), counts);
    const at::Tensor whole = loss_of_attached(variant, batch, counts);
    expect_near(sum.item<double>(), whole.item<double>(), variant.text());
    expect_near(gradients(sum, from_columns(leaves)), gradients(whole, from_columns(leaves)), variant.text());
  }
}

TEST(Objective, TokensWithoutATargetDoNotCount) {
  for (const Variant& variant : all_variants()) {
    if (variant.name == "ppo") continue;  // its values count
    Case made = make_case(variant);
    const at::Tensor targeted = scored_indices(made.batch);
    made.batch.value_mask = at::ones({made.batch.size()}, at::kBool);
    const auto objective = make_objective(variant.name, made.batch, variant.options);
    std::vector<at::Tensor> everywhere;
    for (const at::Tensor& each : columns(made.values)) {
      at::Tensor all = at::full({made.batch.size()}, -7.0, at::kDouble);
      everywhere.push_back(all.index_copy_(0, targeted, each.detach()).requires_grad_());
    }
    const TokenValues values = from_columns(everywhere);
    const at::Tensor loss = whole_loss(*objective, values);
    const at::Tensor expected = whole_loss(*made.objective, made.values);
    expect_near(loss.item<double>(), expected.item<double>(), variant.text());
    at::Tensor gradient = at::zeros({5, made.batch.size()}, at::kDouble);
    gradient.index_copy_(1, targeted, gradients(expected, made.values));
    expect_near(gradients(loss, values), gradient, variant.text());
  }
}

TEST(Objective, ExtremeLogRatiosStayFinite) {
  for (const Variant& variant : all_variants()) {
    for (const double shift : {-1e4, 1e4}) {
      Case made = make_case(variant);
      for (auto& [name, input] : made.batch.token_inputs) {
        if (name == inputs::kImportanceSamplingRatio) {
          input.mul_(std::abs(shift));
        } else if (name != inputs::kAdvantages) {
          input.add_(shift);
        }
      }
      const auto objective = make_objective(variant.name, made.batch, variant.options);
      for (const double log_p : {0.0, -1e-17, -1e4}) {
        TokenValues values = random_values(ScoredTokens(variant.name, made.batch).has_target(), -2.0, 6);
        // Every third token, so that sums and means meet ordinary neighbours; and all of them.
        for (const int64_t step : {1, 3}) {
          at::Tensor extreme = values.log_probabilities.detach().clone();
          extreme.slice(0, 0, extreme.size(0), step).fill_(log_p);
          values.log_probabilities = extreme.requires_grad_();
          const at::Tensor loss = whole_loss(*objective, values);
          EXPECT_TRUE(std::isfinite(loss.item<double>())) << variant.text() << " " << shift << " " << log_p;
          EXPECT_TRUE(gradients(loss, values).isfinite().all().item<bool>())
              << variant.text() << " " << shift << " " << log_p;
        }
      }
    }
  }
}

TEST(Objective, ShapesAloneAreEnough) {
  for (const Variant& variant : all_variants()) {
    const Case made = make_case(variant);
    std::vector<at::Tensor> meta;
    for (const at::Tensor& each : columns(made.values)) {
      meta.push_back(at::empty_like(each, each.options().device(at::kMeta)).requires_grad_());
    }
    const TokenValues values = from_columns(meta);
    const at::Tensor loss = whole_loss(*made.objective, values);
    EXPECT_EQ(loss.dim(), 0) << variant.text();
    EXPECT_TRUE(gradients(loss, values).is_meta()) << variant.text();
  }
}

}  // namespace
}  // namespace streambp
