#include "streambp/ops/recurrent/channel_decays.h"

namespace streambp {
namespace {

/// The first (0) or second (1) halves of the squares' tokens of x [N, padded, channels]: [N, squares, half,
/// channels], a view.
at::Tensor half_of(const at::Tensor& x, int64_t half, int64_t which) {
  return x.view({x.size(0), x.size(1) / (2 * half), 2, half, x.size(2)}).select(2, which);
}

/// The part of x [N, padded, padded] where tokens of the second halves meet those of the first: [N, squares,
/// half, half], a view.
at::Tensor lower_of(const at::Tensor& x, int64_t half) {
  const int64_t squares = x.size(1) / (2 * half);
  return x.view({x.size(0), squares, 2, half, squares, 2, half})
      .select(2, 1)
      .select(4, 0)
      .diagonal(0, 1, 3)
      .permute({0, 3, 1, 2});
}

/// A matrix for each square.
at::Tensor matrices(const at::Tensor& x) {
  return x.reshape({-1, x.size(2), x.size(3)});
}

}  // namespace

at::Tensor ChannelDecays::with_padding(const at::Tensor& x) const {
  return padded_ == rows_ ? x : at::constant_pad_nd(x, {0, 0, 0, padded_ - rows_});
}

ChannelDecays::ChannelDecays(const at::Tensor& log_decay) : rows_(log_decay.size(1)) {
  while (padded_ < rows_) padded_ *= 2;
  since_begin_ = with_padding(log_decay).clone(at::MemoryFormat::Contiguous);
  until_end_ = at::zeros_like(since_begin_);
  for (int64_t half = 1; half < padded_; half *= 2) {
    const at::Tensor of_first = half_of(since_begin_, half, 0).narrow(2, half - 1, 1);
    const at::Tensor second = half_of(since_begin_, half, 1), first = half_of(until_end_, half, 0);
    levels_.push_back({half, second.exp(), first.exp()});
    first.add_(second.narrow(2, half - 1, 1));
    second.add_(of_first);
  }
  since_begin_.exp_();
  until_end_.exp_();
}

at::Tensor ChannelDecays::products(const at::Tensor& x, const at::Tensor& k) const {
  const at::Tensor padded_x = with_padding(x.contiguous()), padded_k = with_padding(k.contiguous());
  const at::Tensor all = at::zeros({x.size(0), padded_, padded_}, x.options());
  for (const Level& level : levels_) {
    const at::Tensor later = half_of(padded_x, level.half, 1) * level.second;
    const at::Tensor earlier = half_of(padded_k, level.half, 0) * level.first;
    const at::Tensor to = lower_of(all, level.half);
    to.copy_(at::bmm(matrices(later), matrices(earlier).transpose(1, 2)).view(to.sizes()));
  }
  return without_padding(all).narrow(2, 0, rows_);
}

ChannelDecays::Gradients ChannelDecays::backward(const at::Tensor& given_q, const at::Tensor& given_k,
                                                 const Outside& d) const {
  const at::Tensor q = with_padding(given_q.contiguous()), k = with_padding(given_k.contiguous());
  const auto square = [&](const at::Tensor& x) {
    return at::constant_pad_nd(x, {0, padded_ - rows_, 0, padded_ - rows_}).contiguous();
  };
  const at::Tensor d_query_products = square(d.query_products), d_key_products = square(d.key_products);
  const at::Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dg = at::zeros_like(q);
  dg.add_(d.whole.unsqueeze(1));
  // Of squares from the whole block down to single tokens: what a token's decay since its half's begin has to
  // do with is that of all tokens before it in the half, and the reverse up to the end.
  const at::Tensor since = with_padding(d.since_begin).clone(at::MemoryFormat::Contiguous),
                   until = with_padding(d.until_end).clone(at::MemoryFormat::Contiguous);
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    const int64_t half = level->half;
    half_of(dg, half, 0).add_(half_of(since, half, 1).sum(2, /*keepdim=*/true));
    half_of(dg, half, 1).add_(half_of(until, half, 0).sum(2, /*keepdim=*/true));
    const at::Tensor earlier = half_of(k, half, 0) * level->first;
    at::Tensor d_earlier;
    const auto pass = [&](const at::Tensor& x, const at::Tensor& d_products, const at::Tensor& dx) {
      const at::Tensor later = half_of(x, half, 1) * level->second;
      const at::Tensor d_pairs = matrices(lower_of(d_products, half));
      const at::Tensor d_later = at::bmm(d_pairs, matrices(earlier)).view(later.sizes());
      const at::Tensor more = at::bmm(d_pairs.transpose(1, 2), matrices(later)).view(later.sizes());
      d_earlier = d_earlier.defined() ? d_earlier.add_(more) : more;
      half_of(dx, half, 1).addcmul_(d_later, level->second);
      half_of(since, half, 1).addcmul_(d_later, later);
    };
    pass(q, d_query_products, dq);
    pass(k, d_key_products, dk);
    half_of(dk, half, 0).addcmul_(d_earlier, level->first);
    half_of(until, half, 0).addcmul_(d_earlier, earlier);
  }
  dg.add_(since);  // of a token by itself
  return {without_padding(dq), without_padding(dk), without_padding(dg)};
}

}  // namespace streambp
