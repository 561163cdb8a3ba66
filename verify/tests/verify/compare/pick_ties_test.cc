// Gradients of models whose indexers pick other rows where rounding, or torch.topk, decides.
#include "verify/compare/pick_ties.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <utility>

#include "verify/compare/judge.h"
#include "verify/evaluation.h"
#include "verify/tests/verify/compare/testing.h"

namespace streambp::verify {
namespace {

/// Blocks that MiniMax M3's indexers score nearly alike: keys of all rows lie along one vector, but for a
/// small part.
void make_nearly_tied(Truth& truth, uint64_t seed) {
  for (const auto& parameter : truth.model.parameters()) {
    if (!parameter->name.ends_with("indexer.k_proj.weight")) continue;
    at::Tensor along = at::zeros({parameter->value.size(0)}, at::kDouble);
    along.slice(0, parameter->value.size(0) - 2).copy_(at::tensor({0.7, 1.0}, at::kDouble));
    const at::Tensor one = at::outer(along, random_tensor({parameter->value.size(1)}, ++seed));
    const at::Tensor made = one + 4e-6 * random_tensor(parameter->value.sizes(), ++seed);
    parameter->value.copy_(made.to(at::kFloat));
  }
}

TEST(PickTies, IndexersThatRoundingHasPickOthersAreRight) {
  const Golden golden = open_golden("minimax-m3", "minimax-m3-sft-b3_left");
  Truth truth = open_truth(golden.options);
  const auto subject = [&] {
    return WrongSubject{truth.model,  truth.batch, golden.options.objective, {}, truth.input_ids,
                        truth.labels, nullptr};
  };
  const auto in_float = [](Tensors gradients) {
    for (auto& [name, gradient] : gradients) gradient = gradient.to(at::kFloat);
    return gradients;
  };
  // Far from a tie other picks are wrong.
  const int64_t last = truth.batch.offsets[1] - 1;
  const auto [found, picks] = std::pair{find_pick_ties(subject(), truth.model, at::kFloat), at::kInt};
  EXPECT_TRUE(found.others.empty());
  const Tensors far =
      with_picks(subject(), {{1, last, at::tensor({0, 1, 2, 0, 1, 2}, at::TensorOptions(picks))},
                             {1, last - 1, at::tensor({0, 1, 2, 0, 1, 2}, at::TensorOptions(picks))}});
  EXPECT_NE(judge(truth, golden.options, in_float(far)).comparison.verdict, Verdict::kExact);
  // Near one they are right, and it is said of which: where the noise that is measured has not the same pick.
  change_always(truth, [](Truth& each) { make_nearly_tied(each, 30); });
  Truth low = truth.open_again(at::kFloat);
  const PickTies ties = find_pick_ties(subject(), low.model, at::kFloat);
  const Tensors exact = evaluate(truth.model, truth.batch, *truth.objective, {}).gradients;
  for (const OtherPicks& other : ties.others) {
    const Tensors near = with_picks(subject(), {other});
    if (!(relative_error(near.at(kEmbedding), exact.at(kEmbedding)) > 1e-4)) continue;  // seen anyway
    const CompareReport report = judge(truth, golden.options, in_float(near));
    EXPECT_EQ(report.comparison.verdict, Verdict::kExact);
    const auto& notes = report.comparison.notes;
    if (std::any_of(notes.begin(), notes.end(),
                    [](const std::string& note) { return note.find("the other pick") != std::string::npos; }))
      return;
  }
  FAIL() << "no pick that is nearly tied changes the gradients";
}

TEST(PickTies, AChoiceAmongEqualScoresIsNobodysMistake) {
  Golden golden = open_golden("deepseek-v32", "deepseek-v32-sft-b3_left");
  Truth truth = open_truth(golden.options);
  const auto verdict = [&](const Tensors& gradients) {
    return judge(truth, golden.options, gradients).comparison.verdict;
  };
  const int64_t row = truth.batch.offsets[1] - 4;
  const auto with_others = [&] {
    return with_picks({truth.model, truth.batch, golden.options.objective, {}, truth.input_ids, truth.labels},
                      {{0, row, at::arange(1, 1 + truth.model.config().indexer.topk, at::kInt)}});
  };
  EXPECT_EQ(verdict(with_others()), Verdict::kWrong);
  change_always(truth, [](Truth& each) {
    for (const auto& parameter : each.model.parameters())
      if (parameter->name.ends_with("indexer.weights_proj.weight")) parameter->value.zero_();
  });
  EXPECT_EQ(verdict(with_others()), Verdict::kUndecided);
  EXPECT_EQ(verdict(evaluate(truth.model, truth.batch, *truth.objective, {}).gradients), Verdict::kExact);
}

}  // namespace
}  // namespace streambp::verify
