// Decays of a delta rule's state with a number of their own for each entry of a key (Kimi Delta Attention,
// Kimi Team, 2025, arXiv 2510.26692), within blocks of tokens.
//
// Products of queries or keys x with earlier keys k of a block are sums over the channels c of
//
//   x_tc k_sc e^(G_tc - G_sc),   s < t,   G_tc = g_1c + ... + g_tc
//
// which is no product of matrices: e^-G would overflow. A pair of tokens stands in the two halves of one
// square on the diagonal, of 2, 4, 8, ... tokens, and from there to the boundary m between the halves
//
//   e^(G_t - G_s) = e^(G_t - G_m) e^(G_m - G_s)
//
// of which neither exponent is above 0: each size of squares is one product of matrices. Sums of logarithms
// run within halves alone, so that none is a difference of larger ones, forwards and backwards.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace streambp {

class ChannelDecays {
 public:
  /// Of log_decay [N, rows, channels], at most 0.
  explicit ChannelDecays(const at::Tensor& log_decay);

  /// e^G and e^(G_B - G), [N, rows, channels], from the block's begin and to its end.
  at::Tensor since_begin() const { return without_padding(since_begin_); }
  at::Tensor until_end() const { return without_padding(until_end_); }

  /// The products of x and k [N, rows, channels] above: [N, rows, rows], zeros on the diagonal and above it.
  at::Tensor products(const at::Tensor& x, const at::Tensor& k) const;

  /// What products(q, k) and products(k, k) have as their gradients, of which the lower triangles are read;
  /// and what else depends on the decays: the sums over e^G times its gradient, over e^(G_B - G) times its
  /// own [N, rows, channels], and over the decay of the whole block times its own [N, channels].
  struct Outside {
    at::Tensor query_products, key_products, since_begin, until_end, whole;
  };

  /// The gradients through all of those.
  struct Gradients {
    at::Tensor q, k, log_decay;  // [N, rows, channels]
  };
  Gradients backward(const at::Tensor& q, const at::Tensor& k, const Outside& d) const;

 private:
  /// The decays within the second halves of squares, from the boundary on and the token's own included, and
  /// within the first ones, up to the boundary: [N, squares, half, channels].
  struct Level {
    int64_t half;
    at::Tensor second, first;
  };

  at::Tensor with_padding(const at::Tensor& x) const;
  at::Tensor without_padding(const at::Tensor& x) const { return x.narrow(1, 0, rows_); }

  int64_t rows_, padded_ = 1;  // a power of two
  std::vector<Level> levels_;
  at::Tensor since_begin_, until_end_;
};

}  // namespace streambp
