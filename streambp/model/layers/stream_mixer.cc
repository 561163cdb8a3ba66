#include "streambp/model/layers/stream_mixer.h"

#include "streambp/ops/low_rank_streams.h"

namespace streambp {

bool StreamMixer::trainable() const {
  if (!is_there()) return false;
  const bool gives = inject != nullptr && inject->trainable();
  return gives || down->trainable() || up->trainable() || norm.weight->trainable();
}

at::Tensor read_streams(const StreamMixer& mixer, const at::Tensor& x) {
  const at::Tensor normed = norm_streams(x, mixer.norm, mixer.streams);
  const at::Tensor low = linear(normed, {mixer.down}).front();
  return mean_of_opened(normed, linear(at::silu(low), {mixer.up}).front(), mixer.streams);
}

at::Tensor give_to_streams(const StreamMixer& mixer, const at::Tensor& x, const at::Tensor& y) {
  return add_opened(x, y, linear(norm_streams(x, mixer.norm, mixer.streams), {mixer.inject}).front());
}

}  // namespace streambp
