// What a ring of ranks, and ranks that divide heads, send, to the byte, and what a rank keeps.
#include <gtest/gtest.h>

#include "streambp/memory/meter.h"
#include "verify/tests/streambp/distributed/sequence/sequence_ranks_testing.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

/// How often a pass over all layers, in float64, takes a layer's attention forward before it goes back
/// through it. With the head joined the last layer is first run in its backward pass.
int64_t forward_runs(const Config& config, int64_t layer, bool joined, bool kept) {
  const bool is_last = layer + 1 == config.num_hidden_layers;
  return joined && is_last ? 1 : kept ? 1 : 2;
}

/// Keys and values go round once in each run and once more with their gradients.
int64_t bytes_of_ring(const Config& config, const SequenceSplit& split, int64_t rank, bool joined,
                      bool kept) {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t window = config.windows[static_cast<size_t>(layer)];
    const int64_t rounds = forward_runs(config, layer, joined, kept) + 1;
    bytes += 8 * config.carry_width(layer) *
             (rounds * rows_lent(split, rank, window) + rows_borrowed(split, rank, window));
  }
  return bytes;
}

/// Queries, keys and values to their heads and the result back in each run; its gradient to the heads and
/// theirs back.
int64_t bytes_of_heads(const Config& config, const SequenceSplit& split, int64_t rank, bool joined) {
  const int64_t ranks = split.ranks(), own = split.rows(rank);
  const int64_t sent = own * (ranks - 1), returned = split.offsets().back() - own;  // rows, to all others
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t heads = config.num_attention_heads / ranks, size = config.head_dim_of(layer);
    const int64_t keys = 2 * std::max<int64_t>(config.key_value_heads_of(layer) / ranks, 1);
    const int64_t forward = sent * (heads + keys) * size + returned * heads * (size + 1);
    const int64_t backward = sent * heads * size + returned * (heads + keys) * size;
    bytes += 8 * (forward_runs(config, layer, joined, false) * forward + backward);
  }
  return bytes;
}

int64_t bytes_sent(const Work& work, Communicator& communicator, ZeroStage stage, Exchange exchange,
                   const std::function<int64_t(const RankOfRows&)>& expected) {
  RankOfRows rank(communicator, work, exchange);
  ReducedGradients gradients(communicator, rank.model, stage);
  communicator.reset_traffic();
  rank.pass(work.settings, gradients);
  const int64_t sent = communicator.traffic(Collective::kSendReceive).bytes;
  EXPECT_EQ(sent, expected(rank)) << work.name << " " << work.settings.chunk << " " << communicator.size();
  return sent;
}

/// As far as windows and documents reach, whatever the chunks; once forward and once backward where
/// attention's results are kept.
TEST(SequenceExchangesTraffic, OfARingIsKeysAndValuesAndTheirGradients) {
  size_t turn = 0;
  const Batch long_one = random_batch({41}, 101, 5);
  for (const char* name : {"qwen3-tiny", "gemma3-tiny", "gpt-oss-tiny"}) {
    for (const Batch& batch : {long_one, documents()}) {
      for (const bool kept : {false, true}) {
        for (const int64_t chunk : {3, 1000}) {
          for (const int64_t ranks : verify::in_turns<int64_t>({4, 2, 3}, 1, turn)) {
            Work work{name, unbalanced(name), "sft", batch, chunks_of(chunk)};
            if (kept) work.settings.keep = parse_kept_layers("attention");
            run_on_threads(ranks, [&](Communicator& communicator) {
              for (const ZeroStage stage : {ZeroStage::kNone, ZeroStage::kGradients}) {
                bytes_sent(work, communicator, stage, Exchange::kRing, [&](const RankOfRows& rank) {
                  return bytes_of_ring(rank.model.config(), rank.split, communicator.rank(),
                                       stage == ZeroStage::kNone, kept);
                });
              }
            });
          }
        }
      }
    }
  }
}

TEST(SequenceExchangesTraffic, OfDividedHeadsIsAllToAll) {
  for (const Batch& batch : {random_batch({41}, 101, 5), documents()}) {
    for (const int64_t ranks : {2, 4}) {
      const Work work{"qwen3-tiny", full("qwen3-tiny"), "sft", batch, chunks_of(5)};
      run_on_threads(ranks, [&](Communicator& communicator) {
        bytes_sent(work, communicator, ZeroStage::kNone, Exchange::kUlysses, [&](const RankOfRows& rank) {
          return bytes_of_heads(rank.model.config(), rank.split, communicator.rank(), /*joined=*/true);
        });
      });
    }
  }
}

/// A rank that is only counted, on meta, sends what the real one does.
TEST(SequenceExchangesTraffic, IsTheSameWhereItIsOnlyCounted) {
  for (const Exchange exchange : {Exchange::kRing, Exchange::kUlysses}) {
    for (const char* name : {"gemma3-tiny", "gpt-oss-tiny", "qwen3.5-tiny", "gemma4-per-layer-tiny"}) {
      const Work work{name, unbalanced(name), "sft", random_batch({41, 9, 23, 6}, 101, 5), chunks_of(4)};
      Work counted = work;
      counted.model = unbalanced(name, at::kMeta);
      run_on_threads(4, [&](Communicator& communicator) {
        const auto alone = counted_rank(communicator.rank(), 4);
        EXPECT_EQ(traffic_of_pass(*alone, counted, exchange), traffic_of_pass(communicator, work, exchange))
            << name << " " << exchange_name(exchange);
      });
    }
  }
}

/// Beyond layer inputs a rank of a ring has its own rows and a block of another's, so that 16 times as many
/// ranks have a sixteenth; gathered keys, values and gradients stay.
TEST(SequenceExchangesMemory, OfARingIsDivided) {
  install_meters();
  const auto beyond_inputs = [](int64_t ranks, Exchange exchange) {
    const Work work{"",
                    [] {
                      return Model::random(preset("qwen3-cpu"), {at::kFloat, at::kMeta, at::kFloat, {}}, 1);
                    },
                    "sft", random_batch({65536}, 32000, 1), chunks_of(64)};
    const auto communicator = counted_rank(0, ranks);
    RankOfRows rank(*communicator, work, exchange);
    ReducedGradients gradients(*communicator, rank.model, ZeroStage::kNone);
    const int64_t resident = read_meter(at::kMeta).live_bytes;
    reset_peak(at::kMeta);
    rank.pass(work.settings, gradients);
    const MemoryReading memory = read_meter(at::kMeta);
    return memory.peak_bytes - resident;
  };
  const int64_t few = beyond_inputs(4, Exchange::kRing), many = beyond_inputs(64, Exchange::kRing);
  std::printf(
      "qwen3-cpu, 65,536 tokens, beyond weights and gradients: ring %.1f MB on 4 ranks, %.1f on 64; "
      "gathered %.1f and %.1f; heads %.1f on 4\n",
      static_cast<double>(few) / 1e6, static_cast<double>(many) / 1e6,
      static_cast<double>(beyond_inputs(4, Exchange::kGather)) / 1e6,
      static_cast<double>(beyond_inputs(64, Exchange::kGather)) / 1e6,
      static_cast<double>(beyond_inputs(4, Exchange::kUlysses)) / 1e6);
  EXPECT_TRUE(12 * many <= few) << few << " " << many;
  EXPECT_TRUE(8 * many <= beyond_inputs(64, Exchange::kGather));
}

}  // namespace
}  // namespace streambp
