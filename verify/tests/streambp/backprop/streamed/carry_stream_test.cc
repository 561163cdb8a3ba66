// What is held of a layer's carries takes the memory that it is to take.
#include "streambp/backprop/streamed/carry_stream.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "streambp/memory/meter.h"
#include "verify/equality/batches.h"

namespace streambp {
namespace {

/// A forward pass holds the state of one chunk, whatever the number of chunks; a pass that comes back holds
/// that of all but the last.
TEST(CarryStream, OfARecurrentLayerHoldsAsManyStatesAsArePassedOn) {
  install_meters();
  const Model model = verify::equality_model("qwen3-next-tiny", 3);
  const Config& config = model.config();
  int64_t layer = 0;
  while (!config.is_recurrent(layer)) ++layer;
  constexpr int64_t kTokens = 21;
  const Batch batch = random_batch({kTokens}, config.vocab_size, 5);
  const Stream stream = model.prepare(batch);
  const DeltaRuleSettings& rule = config.delta_rule;
  const int64_t of_one =
      rule.value_heads * rule.key_head_dim * rule.value_head_dim + (rule.conv_kernel - 1) * rule.channels();
  for (const int64_t chunk : {1, 4, 10, 20, 21, 30}) {
    const Chunks chunks(stream, chunk, model.device());
    for (const auto holds : {CarryStream::Holds::kForward, CarryStream::Holds::kAll}) {
      const int64_t before = read_meter(at::kCPU).live_bytes;
      const auto carries = carry_stream(model, stream, layer, chunks, holds);
      const int64_t states =
          holds == CarryStream::Holds::kForward ? std::min<int64_t>(1, chunks.last()) : chunks.last();
      const int64_t expected = states * of_one * static_cast<int64_t>(sizeof(double));
      const int64_t held = read_meter(at::kCPU).live_bytes - before;
      // Each of the two tensors is rounded up to a line of 64 bytes or so.
      EXPECT_TRUE(held >= expected && held < expected + 256) << chunk << ": " << held << " of " << expected;
    }
  }
}

}  // namespace
}  // namespace streambp
