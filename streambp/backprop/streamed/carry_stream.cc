#include "streambp/backprop/streamed/carry_stream.h"

#include <algorithm>
#include <utility>

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

class BothCarries final : public CarryStream {
 public:
  BothCarries(std::unique_ptr<CarryStream> keys_values, std::unique_ptr<CarryStream> states)
      : keys_values_(std::move(keys_values)), states_(std::move(states)) {}

  int64_t first_seen_by(int64_t index) const override {
    return std::min(keys_values_->first_seen_by(index), states_->first_seen_by(index));
  }
  void allocate_gradients() override {
    keys_values_->allocate_gradients();
    states_->allocate_gradients();
  }
  void move_to(int64_t first) override {
    keys_values_->move_to(first);
    states_->move_to(first);
  }
  /// Either half may be there alone.
  void store(const Rows& rows, const Carry& own) override {
    if (own.attention.keys.defined()) keys_values_->store(rows, own);
    if (own.recurrent.tail.defined()) states_->store(rows, own);
  }
  Before before(const Rows& rows) override {
    Before both = keys_values_->before(rows);
    both.recurrent = states_->before(rows).recurrent;
    return both;
  }
  Carry received(const Rows& rows) const override {
    return {.attention = keys_values_->received(rows).attention,
            .recurrent = states_->received(rows).recurrent};
  }
  bool needs_all() const override { return keys_values_->needs_all(); }
  void begin() override {
    keys_values_->begin();
    states_->begin();
  }
  bool end() override {
    states_->end();
    return keys_values_->end();
  }

 private:
  std::unique_ptr<CarryStream> keys_values_, states_;
};

}  // namespace

std::unique_ptr<CarryStream> both_carries(std::unique_ptr<CarryStream> keys_values,
                                          std::unique_ptr<CarryStream> states) {
  return std::make_unique<BothCarries>(std::move(keys_values), std::move(states));
}

std::unique_ptr<CarryStream> no_carry_stream() {
  return std::make_unique<NoCarry>();
}

std::unique_ptr<CarryStream> carry_stream(const Model& model, const Stream& stream, int64_t layer,
                                          const Chunks& chunks, CarryStream::Holds holds) {
  const Config& config = model.config();
  if (!config.has_mixer(layer)) return no_carry_stream();
  if (config.is_recurrent(layer)) {
    auto states = std::make_unique<StateStream>(model, chunks, holds, layer);
    if (!config.attends(layer)) return states;
    return both_carries(std::make_unique<KeyValueStream>(model, layer, chunks, holds), std::move(states));
  }
  if (config.shares_keys_values(layer))
    return std::make_unique<ConsumerStream>(*stream.shared, layer, config.windows[static_cast<size_t>(layer)],
                                            chunks);
  auto own = std::make_unique<KeyValueStream>(model, layer, chunks, holds);
  if (!config.has_consumers(layer)) return own;
  return std::make_unique<ProducerStream>(*stream.shared, layer, std::move(own));
}

}  // namespace streambp
