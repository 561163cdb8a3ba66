// Sequences divided among ranks whose keys and values come block by block, or whose heads are divided,
// against one process.
#include <cstdio>
#include <gtest/gtest.h>
#include <random>

#include "verify/tests/streambp/distributed/sequence/sequence_ranks_testing.h"
#include "verify/tests/streambp/model/file_testing.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

/// Whether as many ranks can divide the heads of all layers.
bool divides_heads(const Config& config, int64_t ranks) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.can_store_keys_values(layer) || config.has_consumers(layer)) continue;
    const int64_t keys = config.key_value_heads_of(layer);
    if (config.query_heads_of(layer) % ranks != 0 || (keys % ranks != 0 && ranks % keys != 0)) return false;
  }
  return true;
}

class SequenceExchanges : public testing::TestWithParam<Work> {
 protected:
  static void expect_exact(Exchange exchange, const std::vector<int64_t>& ranks) {
    const Work& work = GetParam();
    const Result whole = in_one_process(work);
    WorstErrors errors;
    static size_t turn = 0, stages = 0;
    for (const int64_t count : verify::in_turns(ranks, 1, turn)) {
      SCOPED_TRACE(fmt::format("{} ranks", count));
      std::optional<Result> first;
      for (const ZeroStage stage :
           verify::in_turns<ZeroStage>({ZeroStage::kNone, ZeroStage::kWeights}, 1, stages)) {
        for (const Result& result : on_ranks_of_rows(work, stage, count, exchange)) {
          errors.add(result, whole);
          if (!first) first = result;
          expect_the_same_bits(result, *first);
        }
      }
    }
    errors.expect_within_limit(fmt::format("{}, {}", exchange_name(exchange), work.name));
  }
};

TEST_P(SequenceExchanges, RingGivesWhatOneProcessDoes) {
  expect_exact(Exchange::kRing, {2, 3, 4, 1});
}

TEST_P(SequenceExchanges, UlyssesGivesWhatOneProcessDoes) {
  const Config config = GetParam().model().config();
  std::vector<int64_t> ranks;
  for (const int64_t count : {2, 3, 4, 1})
    if (divides_heads(config, count)) ranks.push_back(count);
  EXPECT_GE(ranks.size(), 2);
  expect_exact(Exchange::kUlysses, ranks);
}

INSTANTIATE_TEST_SUITE_P(Works, SequenceExchanges, testing::ValuesIn(divided_works()),
                         [](const auto& work) { return work.param.name; });

/// Drawn lengths, ranks and chunks, unscored prompts: whatever meets at the borders of ranks and chunks.
TEST(SequenceExchangesDrawn, AllExchangesGiveTheSame) {
  std::mt19937 draw(7);
  const auto up_to = [&](int64_t most) { return 1 + static_cast<int64_t>(draw()) % most; };
  const std::vector<const char*> names{"qwen3-tiny",       "gemma3-tiny",     "qwen3.5-tiny",
                                       "deepseek-v3-tiny", "gpt-oss-tiny",    "gemma4-per-layer-tiny",
                                       "falcon-h1-tiny",   "kimi-linear-tiny"};
  double worst = 0.0;
  const int rounds = verify::is_thorough() ? 60 : 18;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int64_t> lengths{2 + up_to(40)};
    for (int64_t i = up_to(6); i > 1; --i) lengths.push_back(up_to(12));
    Batch batch = random_batch(lengths, 101, static_cast<uint64_t>(round));
    batch.targets.narrow(0, 0, up_to(lengths.front() - 2) - 1).fill_(kNoTarget);
    const char* const name = names[static_cast<size_t>(round) % names.size()];
    const Work work{name, full(name), "sft", batch, chunks_of(up_to(11))};
    const int64_t ranks = std::min<int64_t>(1 + up_to(5), batch.size());
    const Result whole = in_one_process(work);
    for (const Exchange exchange : {Exchange::kGather, Exchange::kRing, Exchange::kUlysses}) {
      if (exchange == Exchange::kUlysses && !divides_heads(preset(name), ranks)) continue;
      SCOPED_TRACE(fmt::format("round {}: {} [{}] on {}, chunk {}, {}", round, name, fmt::join(lengths, ", "),
                               ranks, work.settings.chunk, exchange_name(exchange)));
      const Result result = on_ranks_of_rows(work, ZeroStage::kNone, ranks, exchange).back();
      EXPECT_TRUE(verify::relative_error(result.loss, whole.loss) <= kLimit);
      const double error = worst_error(result.gradients, whole.gradients);
      EXPECT_TRUE(error <= kLimit) << error;
      worst = verify::worse(worst, error);
    }
  }
  std::printf("drawn batches: gradients %.1e, limit %.0e\n", worst, kLimit);
}

/// As few rows as ranks, and a rank without a scored token.
TEST(SequenceExchangesEdges, SmallBatchesAreExact) {
  std::vector<Batch> batches{random_batch({4}, 101, 5), random_batch({3, 2}, 101, 6),
                             random_batch({1, 1, 3}, 101, 7), one_text()};
  batches.back().targets.narrow(0, 0, 30).fill_(kNoTarget);
  for (const char* name : {"gemma3-tiny", "qwen3.5-tiny"}) {
    for (const Batch& batch : batches) {
      const Work work{name, full(name), "sft", batch, chunks_of(5)};
      const Result whole = in_one_process(work);
      for (const Exchange exchange : {Exchange::kRing, Exchange::kUlysses}) {
        for (const Result& result : on_ranks_of_rows(work, ZeroStage::kGradients, 4, exchange)) {
          EXPECT_TRUE(verify::relative_error(result.loss, whole.loss) <= kLimit) << name;
          const double error = worst_error(result.gradients, whole.gradients);
          EXPECT_TRUE(error <= kLimit) << name << " " << error;
        }
      }
    }
  }
}

TEST(SequenceExchangesEdges, UlyssesRefusesHeadsThatRanksDoNotDivide) {
  const Work work{"", full("qwen3-tiny"), "sft", one_text(), chunks_of(5)};
  EXPECT_TRUE(refused([&] { on_ranks_of_rows(work, ZeroStage::kNone, 3, Exchange::kUlysses); },
                      "layer 0: 4 heads and 2 of keys over 3 ranks, expected ranks that divide the heads"));
}

TEST(SequenceExchangesRepeats, AreEqualToTheLastBit) {
  for (const Exchange exchange : {Exchange::kRing, Exchange::kUlysses}) {
    for (const char* name : {"gemma3-tiny", "gpt-oss-tiny"}) {
      const Work work{name, full(name), "sft", documents(), chunks_of(5)};
      const std::vector<Result> first = on_ranks_of_rows(work, ZeroStage::kGradients, 4, exchange);
      for (int repeat = 0; repeat < 3; ++repeat) {
        const std::vector<Result> again = on_ranks_of_rows(work, ZeroStage::kGradients, 4, exchange);
        for (size_t rank = 0; rank < first.size(); ++rank) {
          EXPECT_EQ(again[rank].loss, first[rank].loss);
          expect_the_same_bits(again[rank].gradients, first[rank].gradients);
        }
      }
    }
  }
}

/// What a reference model says of the tokens, rank by rank.
TEST(SequenceExchangesEvaluation, GivesEachRanksTokens) {
  for (const Exchange exchange : {Exchange::kRing, Exchange::kUlysses}) {
    const Work work{"", full("gemma3-tiny"), "sft", documents(), chunks_of(5)};
    Model alone = work.model();
    const at::Tensor whole = evaluate(alone, work.batch).log_probabilities;
    run_on_threads(2, [&](Communicator& communicator) {
      RankOfRows rank(communicator, work, exchange);
      const at::Tensor own = evaluate_part(rank.model, rank.batch, rank.rows).log_probabilities;
      for (size_t i = 0; i < rank.rows.all().size(); ++i) {
        const Piece& piece = rank.rows.all()[i];
        const double error = verify::relative_error(own.narrow(0, rank.batch.offsets[i], piece.size()),
                                                    whole.narrow(0, piece.begin, piece.size()));
        EXPECT_TRUE(error <= kLimit) << error;
      }
    });
  }
}

/// bfloat16: partial results are merged in float32, and gradients go between ranks in float32. Against the
/// gathered exchange's own error, from float64.
TEST(SequenceExchangesPrecision, HalfPrecisionIsAsCloseAsGathered) {
  const auto in = [](at::ScalarType dtype) {
    return [dtype] { return Model::random(preset("qwen3-tiny"), {dtype, at::kCPU, dtype, {}}, 1); };
  };
  Work work{"", in(at::kBFloat16), "sft", one_text(), chunks_of(5)};
  // The same weights, rounded.
  const auto widened = [&] {
    Model wide = in(at::kDouble)();
    const at::NoGradGuard no_grad;
    const Model narrow = in(at::kBFloat16)();
    for (size_t i = 0; i < wide.parameters().size(); ++i)
      wide.parameters()[i]->value.copy_(narrow.parameters()[i]->value);
    return wide;
  };
  Work exact = work;
  exact.model = widened;
  const Result truth = in_one_process(exact);
  const auto errors_of = [&](Exchange exchange) {
    std::map<std::string, double> errors;
    const std::vector<Result> results = on_ranks_of_rows(work, ZeroStage::kNone, 4, exchange);
    for (const Result& result : results) expect_the_same_bits(result.weights, results.front().weights);
    for (const auto& [name, gradient] : truth.gradients)
      errors[name] = verify::relative_error(results.front().gradients.at(name).to(at::kDouble), gradient);
    return errors;
  };
  const auto gathered = errors_of(Exchange::kGather);
  for (const Exchange exchange : {Exchange::kRing, Exchange::kUlysses}) {
    double worst = 0.0;
    for (const auto& [name, error] : errors_of(exchange)) worst = std::max(worst, error / gathered.at(name));
    std::printf("bfloat16, %s: at most %.2f x the error of gathered keys and values, limit 1.25\n",
                exchange_name(exchange), worst);
    EXPECT_TRUE(worst <= 1.25) << exchange_name(exchange);
  }
}

}  // namespace
}  // namespace streambp
