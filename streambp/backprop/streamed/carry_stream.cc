#include "streambp/backprop/streamed/carry_stream.h"

#include "streambp/backprop/streamed/shared_streams.h"
#include "streambp/backprop/streamed/states.h"

namespace streambp {
namespace {

class NoCarry final : public CarryStream {
 public:
  int64_t first_seen_by(int64_t index) const override { return index; }
  void allocate_gradients() override {}
  void move_to(int64_t) override {}
  void store(const Rows&, const Carry&) override {}
  Before before(const Rows&) override { return {}; }
  Carry received(const Rows&) const override { return {}; }
};

}  // namespace

std::unique_ptr<CarryStream> no_carry_stream() {
  return std::make_unique<NoCarry>();
}

std::unique_ptr<CarryStream> carry_stream(const Model& model, const Stream& stream, int64_t layer,
                                          const Chunks& chunks, CarryStream::Holds holds) {
  const Config& config = model.config();
  if (!config.has_mixer(layer)) return no_carry_stream();
  if (config.is_recurrent(layer)) return std::make_unique<StateStream>(model, chunks, holds);
  if (config.shares_keys_values(layer))
    return std::make_unique<ConsumerStream>(*stream.shared, layer, config.windows[static_cast<size_t>(layer)],
                                            chunks);
  auto own = std::make_unique<KeyValueStream>(model, layer, chunks, holds);
  if (!config.has_consumers(layer)) return own;
  return std::make_unique<ProducerStream>(*stream.shared, layer, std::move(own));
}

}  // namespace streambp
