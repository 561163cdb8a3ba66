// Every objective with every variant of its options, over ranks: losses and gradients of one process with the
// whole batch.
#include <cstdio>
#include <gtest/gtest.h>
#include <mutex>

#include "streambp/distributed/data_parallel.h"
#include "streambp/distributed/transport/thread_ranks.h"
#include "streambp/error.h"
#include "verify/equality/subject.h"
#include "verify/error_measure.h"

namespace streambp::verify {

/// As a test names its parameter.
static void PrintTo(const RowName& row, std::ostream* out) {
  *out << row.model << ' ' << row.objective;
  for (const auto& [name, value] : row.settings) *out << ' ' << name << '=' << value;
  *out << ", " << row.tuning << ", padded " << row.batch;
}

}  // namespace streambp::verify

namespace streambp {
namespace {

using verify::EqualitySubject;
using verify::make_subject;
using verify::RowName;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kLimit = 1e-12;
constexpr uint64_t kSeed = 5;

std::vector<RowName> rows() {
  std::vector<RowName> all;
  for (const std::string& objective : objective_names()) {
    for (auto options : verify::objective_variants(objective)) {
      options.erase("negatives");  // the batch has two anchors, which each rank's blocks would share
      all.push_back({"qwen3-tiny", objective, options, "full", "right", 23});
    }
  }
  // The load of experts is balanced over all ranks; of KTO without the rows of its KL estimate.
  for (const char* const objective : {"sft", "dpo", "kto", "grpo"})
    all.push_back({"qwen3-moe-tiny", objective, {{"router_aux_loss_coef", "0.1"}}, "full", "left", 19});
  all.push_back({"qwen3-tiny", "kto", {}, "lora", "left", 19});
  return all;
}

/// How many blocks of as many sequences the batch has, of which the i-th belong together.
int64_t blocks_of(const RowName& row) {
  return row.objective == "infonce" || has_pairs(objective_kind(row.objective).layout) ? 2 : 1;
}

int64_t units_of(const RowName& row, const Batch& batch) {
  return (static_cast<int64_t>(batch.offsets.size()) - 1) / blocks_of(row);
}

Batch part_of(const RowName& row, const Batch& batch, int64_t rank, int64_t ranks) {
  const int64_t units = units_of(row, batch);
  std::vector<int64_t> picked;
  for (int64_t block = 0; block < blocks_of(row); ++block) {
    for (int64_t i = rank * units / ranks; i < (rank + 1) * units / ranks; ++i)
      picked.push_back(block * units + i);
  }
  Batch part = select_sequences(batch, picked);
  part.rope_length = 0;
  return part;
}

Settings streamed() {
  Settings settings;
  settings.chunk = 5;
  return settings;
}

Settings standard() {
  Settings settings;
  settings.method = Method::kStandard;
  return settings;
}

class ObjectivesOnRanks : public testing::TestWithParam<RowName> {};

TEST_P(ObjectivesOnRanks, GiveWhatOneProcessDoes) {
  const RowName& row = GetParam();
  EqualitySubject whole = make_subject(row, kSeed);
  const double loss_of_whole =
      backpropagate(whole.model, whole.batch, *whole.objective, standard(), whole.teacher.get()).loss;
  const Tensors expected = whole.model.gradients();
  double loss = 0.0, gradients = 0.0;
  int comparisons = 0;
  std::mutex mutex;
  const auto compare = [&](double found, const Tensors& sums) {
    const std::lock_guard lock(mutex);
    ++comparisons;
    loss = verify::worse(loss, verify::relative_error(found, loss_of_whole));
    for (const verify::ParameterError& error : verify::gradient_errors(sums, expected))
      gradients = verify::worse(gradients, error.error);
  };
  for (const int64_t ranks : {2, 3}) {
    if (units_of(row, whole.batch) < ranks) continue;
    run_on_threads(ranks, [&](Communicator& communicator) {
      EqualitySubject own = make_subject(row, kSeed);
      Batch part = part_of(row, own.batch, communicator.rank(), ranks);
      const auto objective = objective_of_ranks(communicator, own.model, row.objective, part, row.settings);
      // The second one frees the model's gradients.
      for (const auto& [settings, stage] :
           {std::pair{standard(), ZeroStage::kNone}, std::pair{streamed(), ZeroStage::kGradients}}) {
        ReducedGradients sums(communicator, own.model, stage);
        own.model.zero_gradients();
        const double found = backpropagate_on_ranks(communicator, own.model, part, *objective, settings, sums,
                                                    own.teacher.get())
                                 .loss;
        compare(found, sums.gathered());
        sums.forget();
      }
    });
  }
  std::printf("%s: loss %.1e, gradients %.1e, limit %.0e\n", row.objective.c_str(), loss, gradients, kLimit);
  EXPECT_GE(comparisons, 4);
  EXPECT_TRUE(loss <= kLimit) << loss;
  EXPECT_TRUE(gradients <= kLimit) << gradients;
}

std::string test_name(const testing::TestParamInfo<RowName>& row) {
  std::string name = fmt::format("{}_{}", row.param.objective, row.index);
  for (const auto& [option, value] : row.param.settings) name += "_" + option;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, ObjectivesOnRanks, testing::ValuesIn(rows()), test_name);

TEST(ObjectivesOnRanksEdges, RefuseARankThatHasNothingToCompare) {
  const RowName row{"qwen3-moe-tiny", "sft", {{"router_aux_loss_coef", "0.1"}}, "full", "right", 19};
  const auto on_rank = [&](Communicator& communicator) {
    EqualitySubject own = make_subject(row, kSeed);
    Batch part = part_of(row, own.batch, communicator.rank(), 2);
    if (communicator.rank() == 1) part.targets = at::full_like(part.targets, kNoTarget);
    objective_of_ranks(communicator, own.model, row.objective, part, row.settings);
  };
  try {
    run_on_threads(2, on_rank);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 has no scored token"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace streambp
