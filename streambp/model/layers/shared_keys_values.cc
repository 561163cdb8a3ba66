#include "streambp/model/layers/shared_keys_values.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

void SharedKeysValues::store(int64_t producer, int64_t begin, const KeysValues& own) {
  if (backward_) return;
  Prefix& all = of_[producer];
  if (!all.keys.defined()) {
    const MemoryScope scope("keys and values");
    all.keys = at::empty({tokens_, own.keys.size(1), own.keys.size(2)}, own.keys.options());
    all.values = at::empty({tokens_, own.values.size(1), own.values.size(2)}, own.values.options());
  }
  all.keys.narrow(0, begin, own.keys.size(0)).copy_(own.keys.detach());
  all.values.narrow(0, begin, own.values.size(0)).copy_(own.values.detach());
}

void SharedKeysValues::begin_backward(int64_t lowest) {
  backward_ = true;
  lowest_ = lowest;
}

void SharedKeysValues::keep_all(int64_t producer, const KeysValues& all) {
  if (!backward_) all_[producer] = {all.keys, all.values, {}, {}};
}

Prefix SharedKeysValues::all(int64_t producer) {
  const auto found = all_.find(producer);
  return found == all_.end() ? Prefix{} : with_gradient(producer, found->second);
}

Prefix& SharedKeysValues::with_gradient(int64_t producer, Prefix& all) const {
  if (backward_ && producer >= lowest_ && !all.key_gradients.defined()) {
    const MemoryScope scope("key and value gradients");
    const auto zeros = [](const at::Tensor& like) {
      return at::zeros(like.sizes(), like.options().dtype(sum_dtype(like)));
    };
    all.key_gradients = zeros(all.keys);
    all.value_gradients = zeros(all.values);
  }
  return all;
}

Prefix SharedKeysValues::rows(int64_t layer, int64_t begin, int64_t end) {
  const int64_t producer = config_.producer_of(layer);
  const Prefix& all = with_gradient(producer, of_.at(producer));
  const auto narrow = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, begin, end - begin) : x; };
  return {narrow(all.keys), narrow(all.values), narrow(all.key_gradients), narrow(all.value_gradients)};
}

KeysValues SharedKeysValues::received(int64_t producer, int64_t begin, int64_t end) {
  const Prefix& all = with_gradient(producer, of_.at(producer));
  const auto rows = [&](const at::Tensor& sums) {
    return sums.narrow(0, begin, end - begin).to(all.keys.scalar_type());
  };
  return {rows(all.key_gradients), rows(all.value_gradients)};
}

}  // namespace streambp
