// What ranks that divide sequences send, to the byte, and what a rank keeps.
#include <gtest/gtest.h>
#include <mutex>

#include "streambp/memory/meter.h"
#include "verify/tests/streambp/distributed/sequence/sequence_ranks_testing.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

/// float64, with the head joined: the last layer runs once, the others forward and backward.
int64_t expected_bytes(const Config& config, const SequenceSplit& split, int64_t rank, bool joined) {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t window = config.windows[static_cast<size_t>(layer)];
    const int64_t runs = joined && layer + 1 == config.num_hidden_layers ? 1 : 2;
    bytes += 8 * config.carry_width(layer) *
             (runs * rows_lent(split, rank, window) + rows_borrowed(split, rank, window));
  }
  return bytes;
}

/// Keys and values once for each pass over a layer, their gradients once back, as far as windows and
/// documents reach, whatever the chunks.
TEST(SequenceRanksTraffic, IsKeysAndValuesOnceAndTheirGradientsOnce) {
  size_t turn = 0;
  const Batch documents = random_batch({19, 4, 1, 23, 6, 2}, 101, 4), one = random_batch({41}, 101, 5);
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "gpt-oss-tiny", "deepseek-v3-tiny"}) {
    for (const Batch& batch : {one, documents}) {
      for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kGradients}) {
        for (const int64_t chunk : {3, 7, 1000}) {
          for (const int64_t ranks : verify::in_turns<int64_t>({4, 2, 3}, 1, turn)) {
            const Work work{name, unbalanced(name), "sft", batch, chunks_of(chunk)};
            run_on_threads(ranks, [&](Communicator& communicator) {
              RankOfRows rank(communicator, work);
              ReducedGradients gradients(communicator, rank.model, stage);
              communicator.reset_traffic();
              rank.pass(work.settings, gradients);
              EXPECT_EQ(communicator.traffic(Collective::kSendReceive).bytes,
                        expected_bytes(rank.model.config(), rank.split, communicator.rank(),
                                       stage == ZeroStage::kNone))
                  << name << " " << chunk << " " << ranks;
            });
          }
        }
      }
    }
  }
}

/// A recurrent layer sends a state each time it runs, and a gradient once, whatever the rows.
TEST(SequenceRanksTraffic, IsOneStateOfARecurrentLayer) {
  const Work work{"", full("qwen3.5-tiny"), "sft", random_batch({41}, 101, 5), chunks_of(5)};
  run_on_threads(3, [&](Communicator& communicator) {
    RankOfRows rank(communicator, work);
    ReducedGradients gradients(communicator, rank.model, ZeroStage::kNone);
    communicator.reset_traffic();
    rank.pass(work.settings, gradients);
    const Config& config = rank.model.config();
    const DeltaRuleSettings& rule = config.delta_rule;
    const int64_t state = 8 * (rule.value_heads * rule.key_head_dim * rule.value_head_dim +
                               (rule.conv_kernel - 1) * rule.channels());
    int64_t expected = 0;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      if (config.is_recurrent(layer)) {
        expected += (communicator.rank() < 2 ? state : 0) + (communicator.rank() > 0 ? state : 0);
        continue;
      }
      ASSERT_EQ(layer, config.num_hidden_layers - 1);  // joined with the head: it runs once
      expected +=
          8 * config.carry_width(layer) *
          (rows_lent(rank.split, communicator.rank(), 0) + rows_borrowed(rank.split, communicator.rank(), 0));
    }
    EXPECT_EQ(communicator.traffic(Collective::kSendReceive).bytes, expected);
  });
}

/// A rank that is only counted, on meta, sends what the real one does.
TEST(SequenceRanksTraffic, IsTheSameWhereItIsOnlyCounted) {
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "qwen3.5-tiny", "deepseek-v3-tiny"}) {
    for (const char* objective : {"sft", "dpo"}) {
      Work work{name, full(name), objective, random_batch({41, 9, 23, 6}, 101, 5), chunks_of(4)};
      work.batch.sequence_inputs[inputs::kReferenceSums] = at::zeros({4}, at::kDouble);
      Work counted = work;
      counted.model = unbalanced(name, at::kMeta);
      run_on_threads(4, [&](Communicator& communicator) {
        const auto alone = counted_rank(communicator.rank(), 4);
        EXPECT_EQ(traffic_of_pass(*alone, counted), traffic_of_pass(communicator, work))
            << name << " " << objective;
      });
    }
  }
}

/// On four ranks a rank keeps a quarter of the layer inputs.
TEST(SequenceRanksMemory, LayerInputsAreDivided) {
  install_meters();
  const auto inputs_of = [](int64_t ranks) {
    const Work work{"",
                    [] {
                      return Model::random(preset("qwen3-cpu"), {at::kFloat, at::kMeta, at::kFloat, {}}, 1);
                    },
                    "sft", random_batch({4096}, 32000, 1), chunks_of(256)};
    const auto communicator = counted_rank(0, ranks);
    RankOfRows rank(*communicator, work);
    ReducedGradients gradients(*communicator, rank.model, ZeroStage::kNone);
    reset_peak(at::kMeta);
    rank.pass(work.settings, gradients);
    const MemoryReading memory = read_meter(at::kMeta);
    EXPECT_GT(memory.peak_bytes, 0);
    return memory.at_peak.at("layer inputs");
  };
  EXPECT_EQ(inputs_of(1), 4 * inputs_of(4));
}

}  // namespace
}  // namespace streambp
