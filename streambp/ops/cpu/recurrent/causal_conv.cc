#include "streambp/ops/cpu/recurrent/causal_conv.h"

#include "streambp/ops/cpu/row_loops.h"
#include "streambp/ops/cpu/silu.h"

namespace streambp::cpu::STREAMBP_ISA {
namespace {

/// Rows whose share of the weight's gradient is summed in the arithmetic's dtype, before it goes to a double.
constexpr int64_t kShortSum = 64;

/// Channels that go through all rows of a sequence at once: what they need of the last rows stays in the
/// first cache, and rows are read in whole cache lines.
constexpr int64_t kConvTile = 512;

/// A tile of one sequence's channels, for kernels of kTaps taps; 0: of any number of them.
template <typename S, int kTaps>
class ChannelTile {
  using T = Wide<S>;

 public:
  ChannelTile(const CausalConv<S>& conv, int64_t sequence, int64_t first_channel, int64_t size)
      : conv_(conv),
        is_first_(sequence == 0),
        is_last_(sequence + 1 == conv.sequences),
        begin_(conv.offsets[sequence]),
        length_(conv.offsets[sequence + 1] - begin_),
        first_channel_(first_channel),
        size_(size) {}

  void forward() const {
    const S* inputs[kMostTaps];
    for (int64_t t = 0; t < length_; ++t) {
      bring_inputs(t, inputs);
      S* const hidden = row_of(conv_.hidden, begin_ + t);
      over<T>(size_, [&](auto at) {
        const Vector<T> y = sum(inputs, at);
        at.store(hidden, conv_.silu ? silu_of<T>(y).value : y);
      });
    }
    if (!is_last_) return;
    for (int64_t i = 0; i < window(); ++i) {
      const S* const from = input(length_ - window() + i);
      S* const to = row_of(conv_.tail, i);
      over<T>(size_, [&](auto at) { at.store(to, at.load(from)); });
    }
  }

  /// Row t sends its gradient to the rows from t - window() on: the gradients of so many sums are kept, and
  /// the first of those rows is done with t.
  void backward() const {
    // The bias is one more tap, of ones.
    T d_sums[kMostTaps * kConvTile], d_weight[(kMostTaps + 1) * kConvTile];
    for (int64_t i = 0; i < taps() * kConvTile; ++i) d_sums[i] = 0;
    for (int64_t i = 0; i < (taps() + 1) * kConvTile; ++i) d_weight[i] = 0;
    const S* inputs[kMostTaps];
    for (int64_t t = 0; t < length_ + window(); ++t) {
      const bool has_gradient = t < length_ && conv_.d_hidden != nullptr;
      T* const newest = d_sums + t % taps() * kConvTile;
      if (!has_gradient) {
        for (int64_t i = 0; i < kConvTile; ++i) newest[i] = 0;
      } else {
        bring_inputs(t, inputs);
        const S* const d_hidden = row_of(conv_.d_hidden, begin_ + t);
        over<T>(size_, [&](auto at) {
          Vector<T> d = at.load(d_hidden);
          if (conv_.silu) d = d * silu_of<T>(sum(inputs, at)).slope;
          store(newest + at.i, d);
          for (int64_t i = 0; i < taps(); ++i) {
            T* const to = d_weight + i * kConvTile + at.i;
            store(to, load(to) + d * at.load(inputs[i]));
          }
          if (conv_.d_bias != nullptr) {
            T* const to = d_weight + taps() * kConvTile + at.i;
            store(to, load(to) + d);
          }
        });
      }
      put_input_gradient(t, d_sums);
      if ((t + 1) % kShortSum == 0) take_over(d_weight);
    }
    take_over(d_weight);
  }

 private:
  int64_t taps() const { return kTaps > 0 ? kTaps : conv_.taps; }
  int64_t window() const { return taps() - 1; }

  template <typename N>
  N* row_of(N* rows, int64_t row) const {
    return rows + row * conv_.channels + first_channel_;
  }

  /// Row t of the sequence; those before it have negative numbers.
  const S* input(int64_t t) const {
    static constexpr S kZeros[kConvTile] = {};
    if (t >= 0) return row_of(conv_.x, begin_ + t);
    return is_first_ && conv_.before != nullptr ? row_of(conv_.before, window() + t) : kZeros;
  }
  void bring_inputs(int64_t t, const S** inputs) const {
    for (int64_t i = 0; i < taps(); ++i) inputs[i] = input(t - window() + i);
  }

  /// The convolution's sum.
  template <typename At>
  Vector<T> sum(const S* const* inputs, At at) const {
    const T* const weight = conv_.weight + first_channel_;
    Vector<T> sum = {};
    if (conv_.bias != nullptr) sum = at.load(conv_.bias + first_channel_);
    for (int64_t i = 0; i < taps(); ++i) sum += at.load(weight + i * conv_.channels) * at.load(inputs[i]);
    return sum;
  }

  /// The gradient of row t - window() of the inputs, once row t's sum has its own.
  void put_input_gradient(int64_t t, const T* d_sums) const {
    const int64_t row = t - window(), of_tail = row - (length_ - window());
    const bool wants_before = is_first_ && conv_.d_before != nullptr;
    if (row < 0 && !wants_before) return;
    S* const to = row < 0 ? row_of(conv_.d_before, row + window()) : row_of(conv_.d_x, begin_ + row);
    const S* const d_tail =
        is_last_ && conv_.d_tail != nullptr && of_tail >= 0 ? row_of(conv_.d_tail, of_tail) : nullptr;
    const T* const weight = conv_.weight + first_channel_;
    const int64_t oldest = (t + 1) % taps();
    over<T>(size_, [&](auto at) {
      Vector<T> d = row < 0 ? at.load(static_cast<const S*>(to)) : Vector<T>{};
      if (d_tail != nullptr) d += at.load(d_tail);
      for (int64_t i = 0; i < taps(); ++i) {
        const int64_t kept = oldest + i < taps() ? oldest + i : oldest + i - taps();
        d += at.load(weight + (window() - i) * conv_.channels) * load(d_sums + kept * kConvTile + at.i);
      }
      at.store(to, d);
    });
  }

  void take_over(T* d_weight) const {
    for (int64_t i = 0; i <= taps(); ++i) {
      double* const all = i < taps() ? conv_.d_weight : conv_.d_bias;
      if (all == nullptr) continue;
      double* const to = row_of(all, i % taps());
      for (int64_t c = 0; c < size_; ++c) {
        to[c] += static_cast<double>(d_weight[i * kConvTile + c]);
        d_weight[i * kConvTile + c] = 0;
      }
    }
  }

  const CausalConv<S>& conv_;
  bool is_first_, is_last_;
  int64_t begin_, length_;
  int64_t first_channel_, size_;
};

/// Calls body(tile) for the channels [begin, end) of each sequence.
template <typename S, typename Body>
void for_each_tile(const CausalConv<S>& conv, int64_t begin, int64_t end, Body body) {
  for (int64_t sequence = 0; sequence < conv.sequences; ++sequence) {
    for (int64_t first = begin; first < end; first += kConvTile) {
      const int64_t size = end - first < kConvTile ? end - first : kConvTile;
      if (conv.taps == 4) {  // published models'
        body(ChannelTile<S, 4>(conv, sequence, first, size));
      } else {
        body(ChannelTile<S, 0>(conv, sequence, first, size));
      }
    }
  }
}

template <typename S>
void forward(const CausalConv<S>& conv, int64_t begin, int64_t end) {
  for_each_tile(conv, begin, end, [](const auto& tile) { tile.forward(); });
}

template <typename S>
void backward(const CausalConv<S>& conv, int64_t begin, int64_t end) {
  for_each_tile(conv, begin, end, [](const auto& tile) { tile.backward(); });
}

}  // namespace

template <typename S>
CausalConvKernels<S> causal_conv_kernels();
template <typename S>
CausalConvKernels<S> causal_conv_kernels() {
  return {forward<S>, backward<S>};
}
template CausalConvKernels<float> causal_conv_kernels<float>();
template CausalConvKernels<double> causal_conv_kernels<double>();
template CausalConvKernels<Bfloat16> causal_conv_kernels<Bfloat16>();

}  // namespace streambp::cpu::STREAMBP_ISA
