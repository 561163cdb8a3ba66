#include "streambp/ops/recurrent/causal_conv.h"

#include <algorithm>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/rows/row_sequences.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

struct ConvInputs {
  at::Tensor x;       // [n, channels]
  at::Tensor before;  // the tail, or undefined
  std::vector<int64_t> offsets;
  Parameter* bias = nullptr;
  bool silu = true;
  int64_t dilation = 1;  // rows from one tap to the next

  /// Rows before one that it sees.
  int64_t window(const at::Tensor& weight) const { return (weight.size(2) - 1) * dilation; }

  /// The bias as the sums take it; undefined: there is none.
  at::Tensor wide_bias() const {
    return bias == nullptr ? at::Tensor() : bias->value.to(sum_dtype(x)).contiguous();
  }
};

void check(const ConvInputs& in, const at::Tensor& weight) {
  const bool fits = in.x.dim() == 2 && weight.dim() == 3 && weight.size(0) == in.x.size(1) &&
                    weight.size(1) == 1 && weight.size(2) >= 1 &&
                    (in.bias == nullptr || in.bias->value.sizes() == weight.sizes().slice(0, 1));
  if (!fits)
    throw InputError(
        "causal convolution: expected rows [n, channels], a weight [channels, 1, K] and a bias [channels]");
  check_offsets(in.offsets, in.x.size(0), "causal convolution");
}

/// Of the tail before, or of its gradient.
void check_tail(const at::Tensor& tail, const ConvInputs& in, const at::Tensor& weight, const char* what) {
  if (!tail.defined()) return;
  if (tail.sizes() != at::IntArrayRef({in.window(weight), in.x.size(1)}) ||
      tail.scalar_type() != in.x.scalar_type())
    throw InputError("causal convolution: {}: expected [{}, {}] of the rows' dtype", what, in.window(weight),
                     in.x.size(1));
}

/// weight[:, 0, j] in the dtype of the sums.
at::Tensor tap(const at::Tensor& weight, int64_t j, const at::Tensor& x) {
  return weight.select(1, 0).select(1, j).to(sum_dtype(x));
}

/// One sequence's rows after what comes before them: [window + rows, channels].
struct ConvSequence {
  int64_t first, rows, window;  // window: rows before one that it sees
  bool begins_run, ends_run;

  at::Tensor rows_of(const at::Tensor& x) const { return x.narrow(0, first, rows); }

  at::Tensor extended(const ConvInputs& in) const {
    const bool continues = begins_run && in.before.defined();
    const at::Tensor before = continues ? in.before : at::zeros({window, in.x.size(1)}, in.x.options());
    return at::cat({before, rows_of(in.x)}).to(sum_dtype(in.x));
  }

  /// The convolution's sums over such rows: [rows, channels].
  at::Tensor sums(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) const {
    const int64_t last = weight.size(2) - 1;
    at::Tensor sum = input.narrow(0, window, rows) * tap(weight, last, input);
    if (bias.defined()) sum.add_(bias);
    for (int64_t j = 0; j < last; ++j)
      sum.addcmul_(input.narrow(0, j * window / last, rows), tap(weight, j, input));
    return sum;
  }
};

std::vector<ConvSequence> sequences_of(const ConvInputs& in, int64_t window) {
  std::vector<ConvSequence> sequences;
  const std::vector<int64_t>& offsets = in.offsets;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    sequences.push_back({offsets[i], offsets[i + 1] - offsets[i], window, i == 0, i + 2 == offsets.size()});
  return sequences;
}

ConvOutput forward_plain(const ConvInputs& in, const at::Tensor& weight) {
  ConvOutput output;
  const int64_t window = in.window(weight);
  output.hidden = at::empty(in.x.sizes(), in.x.options());
  output.tail = at::empty({window, in.x.size(1)}, in.x.options());
  for (const ConvSequence& sequence : sequences_of(in, window)) {
    const at::Tensor input = sequence.extended(in);
    at::Tensor sum = sequence.sums(input, weight, in.wide_bias());
    sequence.rows_of(output.hidden).copy_(in.silu ? at::silu_(sum) : sum);
    if (sequence.ends_run) output.tail.copy_(input.narrow(0, sequence.rows, window));
  }
  return output;
}

/// The gradient of x. d_hidden and d_tail are undefined where nothing reaches them.
at::Tensor backward_plain(const ConvInputs& in, Parameter& weight, const at::Tensor& d_hidden,
                          const at::Tensor& d_tail, const at::Tensor& d_before) {
  const int64_t window = in.window(weight.value), taps = weight.value.size(2), channels = in.x.size(1);
  const auto wide = in.x.options().dtype(sum_dtype(in.x));
  at::Tensor dx = at::empty(in.x.sizes(), in.x.options());
  const at::Tensor d_weight = weight.trainable() ? at::zeros({taps, channels}, wide) : at::Tensor();
  for (const ConvSequence& sequence : sequences_of(in, window)) {
    const at::Tensor d_input = at::zeros({window + sequence.rows, channels}, wide);
    if (d_hidden.defined()) {
      const at::Tensor input = sequence.extended(in);
      const at::Tensor d_rows = sequence.rows_of(d_hidden).to(wide.dtype().toScalarType());
      const at::Tensor d_sum =
          in.silu ? at::silu_backward(d_rows, sequence.sums(input, weight.value, in.wide_bias())) : d_rows;
      if (in.bias != nullptr) accumulate_sum(*in.bias, d_sum);
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t at = j * in.dilation;
        d_input.narrow(0, at, sequence.rows).addcmul_(d_sum, tap(weight.value, j, in.x));
        if (d_weight.defined()) d_weight[j].add_((input.narrow(0, at, sequence.rows) * d_sum).sum(0));
      }
    }
    if (sequence.ends_run && d_tail.defined()) d_input.narrow(0, sequence.rows, window).add_(d_tail);
    sequence.rows_of(dx).copy_(d_input.narrow(0, window, sequence.rows));
    if (sequence.begins_run && d_before.defined()) at::Tensor(d_before).add_(d_input.narrow(0, 0, window));
  }
  if (d_weight.defined()) accumulate_sum(weight, d_weight.t().reshape({1, channels, 1, taps}));
  return dx;
}

bool is_fused(const ConvInputs& in, const at::Tensor& weight) {
  return in.dilation == 1 && is_for_cpu(in.x) && has_fused_kernels({in.x, weight}) &&
         weight.size(2) <= cpu::kMostTaps;
}

/// Channels that a thread takes at once: whole registers, so that a channel's sums are the same on any number
/// of threads.
constexpr int64_t kChannels = 64;

/// Calls body(begin, end) for the channels, shared out among threads.
template <typename Body>
void for_channels(int64_t channels, Body body) {
  at::parallel_for(0, (channels + kChannels - 1) / kChannels, 1, [&](int64_t begin, int64_t end) {
    body(begin * kChannels, std::min(end * kChannels, channels));
  });
}

/// The weight as the kernels read it: [taps, channels] in the dtype of the sums.
at::Tensor taps_of(const at::Tensor& weight) {
  return weight.squeeze(1).t().to(sum_dtype(weight), /*non_blocking=*/false, /*copy=*/true,
                                  at::MemoryFormat::Contiguous);
}

template <typename S>
cpu::CausalConv<S> kernel_args(const ConvInputs& in, const at::Tensor& taps, const at::Tensor& bias) {
  cpu::CausalConv<S> conv;
  conv.channels = in.x.size(1);
  conv.taps = taps.size(0);
  conv.offsets = in.offsets.data();
  conv.sequences = static_cast<int64_t>(in.offsets.size()) - 1;
  conv.x = kernel_data<const S>(in.x);
  conv.weight = kernel_data<const cpu::Wide<S>>(taps);
  conv.bias = kernel_data<const cpu::Wide<S>>(bias);
  conv.before = kernel_data<const S>(in.before);
  conv.silu = in.silu;
  return conv;
}

/// Inputs without gaps between rows.
ConvInputs contiguous(const ConvInputs& in) {
  return {in.x.contiguous(), in.before.defined() ? in.before.contiguous() : in.before, in.offsets, in.bias,
          in.silu};
}

ConvOutput forward_fused(const ConvInputs& strided, const at::Tensor& weight) {
  const ConvOutput output{at::empty(strided.x.sizes(), strided.x.options()),
                          at::empty({weight.size(2) - 1, weight.size(0)}, strided.x.options())};
  const MemoryScope scope("kernel workspace");
  const ConvInputs in = contiguous(strided);
  const at::Tensor taps = taps_of(weight), bias = in.wide_bias();
  launch_for(in.x, [&](auto number) {
    using S = decltype(number);
    auto conv = kernel_args<S>(in, taps, bias);
    conv.hidden = kernel_data<S>(output.hidden);
    conv.tail = kernel_data<S>(output.tail);
    for_channels(conv.channels, [&](int64_t begin, int64_t end) {
      cpu::kernels().of<S>().causal_conv.forward(conv, begin, end);
    });
  });
  return output;
}

at::Tensor backward_fused(const ConvInputs& strided, Parameter& weight, const at::Tensor& d_hidden,
                          const at::Tensor& d_tail, const at::Tensor& d_before) {
  const at::Tensor dx = at::empty(strided.x.sizes(), strided.x.options());
  const MemoryScope scope("kernel workspace");
  const ConvInputs in = contiguous(strided);
  const auto near = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const at::Tensor taps = taps_of(weight.value), bias = in.wide_bias(), dy = near(d_hidden),
                   d_after = near(d_tail);
  const auto sums = [&](bool wanted, at::IntArrayRef sizes) {
    return wanted ? at::zeros(sizes, taps.options().dtype(at::kDouble)) : at::Tensor();
  };
  const bool is_part = d_before.defined() && !d_before.is_contiguous();  // of some columns of a wider one
  const at::Tensor d_first = is_part ? at::zeros(d_before.sizes(), d_before.options()) : d_before;
  const at::Tensor d_weight = sums(weight.trainable(), taps.sizes());
  const at::Tensor d_bias = sums(in.bias != nullptr && in.bias->trainable(), bias.sizes());
  launch_for(in.x, [&](auto number) {
    using S = decltype(number);
    auto conv = kernel_args<S>(in, taps, bias);
    conv.d_hidden = kernel_data<const S>(dy);
    conv.d_tail = kernel_data<const S>(d_after);
    conv.d_x = kernel_data<S>(dx);
    conv.d_weight = kernel_data<double>(d_weight);
    conv.d_bias = kernel_data<double>(d_bias);
    conv.d_before = kernel_data<S>(d_first);
    for_channels(conv.channels, [&](int64_t begin, int64_t end) {
      cpu::kernels().of<S>().causal_conv.backward(conv, begin, end);
    });
  });
  if (is_part) at::Tensor(d_before).add_(d_first);
  if (d_weight.defined()) accumulate_sum(weight, d_weight.t().reshape({1, taps.size(1), 1, taps.size(0)}));
  if (d_bias.defined()) accumulate_sum(*in.bias, d_bias.unsqueeze(0));
  return dx;
}

ConvOutput forward(const ConvInputs& in, const at::Tensor& weight) {
  return is_fused(in, weight) ? forward_fused(in, weight) : forward_plain(in, weight);
}

ConvInputs checked(const at::Tensor& x, const Parameter& weight, const std::vector<int64_t>& offsets,
                   const TailBefore& before, Parameter* bias = nullptr, int64_t dilation = 1) {
  ConvInputs in{x.detach(), before.tail.defined() ? before.tail.detach() : before.tail, offsets, bias};
  in.dilation = dilation;
  check(in, weight.value);
  check_tail(in.before, in, weight.value, "the tail before");
  check_tail(before.gradient, in, weight.value, "the gradient of the tail before");
  return in;
}

}  // namespace

ConvOutput causal_conv_silu_forward(const at::Tensor& x, const Parameter& weight,
                                    const std::vector<int64_t>& offsets, const at::Tensor& tail_before) {
  const at::NoGradGuard no_grad;
  return forward(checked(x, weight, offsets, {tail_before, {}}), weight.value);
}

namespace {

ConvOutput run(const at::Tensor& x, Parameter& weight, const TailBefore& before, ConvInputs in) {
  ConvOutput output;
  {
    const at::NoGradGuard no_grad;
    output = forward(in, weight.value);
  }
  const auto outputs =
      differentiable({x}, {std::move(output.hidden), std::move(output.tail)}, "causal_conv",
                     [in = std::move(in), &weight, d_before = before.gradient](std::vector<at::Tensor>&& dy) {
                       const auto backward = is_fused(in, weight.value) ? backward_fused : backward_plain;
                       return std::vector<at::Tensor>{backward(in, weight, dy[0], dy[1], d_before)};
                     });
  return {outputs[0], outputs[1]};
}

}  // namespace

ConvOutput causal_conv_silu(const at::Tensor& x, Parameter& weight, const std::vector<int64_t>& offsets,
                            const TailBefore& before, Parameter* bias) {
  return run(x, weight, before, checked(x, weight, offsets, before, bias));
}

ConvOutput dilated_conv_silu(const at::Tensor& x, Parameter& weight, const std::vector<int64_t>& offsets,
                             const TailBefore& before, int64_t dilation) {
  return run(x, weight, before, checked(x, weight, offsets, before, /*bias=*/nullptr, dilation));
}

ConvOutput causal_conv(const at::Tensor& x, Parameter& weight, const std::vector<int64_t>& offsets,
                       const TailBefore& before, Parameter* bias) {
  ConvInputs in = checked(x, weight, offsets, before, bias);
  in.silu = false;
  return run(x, weight, before, std::move(in));
}

}  // namespace streambp
