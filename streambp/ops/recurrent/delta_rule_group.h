// Blocks of the gated delta rule before any state is known, several at once, op by op in ATen.
//
// Of one block of B tokens of one head, with G the running sum of log_decay from the block's begin and D_ts =
// e^(G_t - G_s) for s <= t:
//
//   A_ts = beta_t (k_t . k_s) D_ts for s < t,   T = (I + A)^-1,   u = T (beta v),   w = T (beta k e^G)
//   v' = u - w S,   o = (q e^G) S + tril(q k^T D) v',   S' = e^(G_B) S + (k e^(G_B - G))^T v'
//
// Without an exchange A is 0: u = beta v, w = 0. T depends on no state: it is computed for several blocks at
// once, and one block after another takes its turn for v' and S' alone. With a decay for each channel, G is a
// vector, e^G stands in front of each row of S, and D is inside of products (channel_decays.h). All exponents
// are at most 0. G is
// summed in float64: after strong decays float32 would lose the weak ones' digits in the differences.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/recurrent/channel_decays.h"
#include "streambp/ops/recurrent/delta_rule_blocks.h"

namespace streambp {

/// A run of equally long blocks of one sequence.
struct DeltaRuleGroup {
  int64_t first_row, blocks, rows;  // of each block
  int64_t first_block;              // among those of all sequences
  size_t sequence;
  bool begins, ends;  // its sequence
};

/// The groups to compute, in order: all, or in a dry run one of each size.
std::vector<DeltaRuleGroup> delta_rule_groups(const DeltaRuleInputs& in);

/// What a group's blocks give before any state is known. N = blocks * value_heads matrices, a block's heads
/// next to each other. Inputs and group must outlive it.
class DeltaRuleTensors {
 public:
  DeltaRuleTensors(const DeltaRuleInputs& in, const DeltaRuleGroup& group, bool wants_queries);

  double scale() const;
  int64_t batch() const { return group_.blocks * sizes_.value_heads; }

  /// x [N, ...] of block i alone: [value_heads, ...].
  at::Tensor of_block(const at::Tensor& x, int64_t i) const {
    return x.narrow(0, i * sizes_.value_heads, sizes_.value_heads);
  }

  /// [n, count * size] as [blocks * count, rows, size] in the wide dtype, a copy.
  at::Tensor heads(const at::Tensor& x, int64_t count) const;

  /// The reverse: x [blocks * count, rows, size] to the group's rows of `to` [n, count * size].
  void put_heads(const at::Tensor& x, int64_t count, const at::Tensor& to) const;

  /// x [n, value_heads] as [N, rows], and back.
  at::Tensor numbers(const at::Tensor& x, at::ScalarType dtype) const;
  void put_numbers(const at::Tensor& x, const at::Tensor& to) const;

  /// Writes the gradient of queries or keys, which lie from `column` of `to` on, from that of their
  /// directions times `factor` in each value head.
  void put_direction_gradient(const at::Tensor& d_repeated, const at::Tensor& direction,
                              const at::Tensor& rstd, double factor, int64_t column,
                              const at::Tensor& to) const;

  at::Tensor v;                             // [N, rows, value_dim]
  at::Tensor key_directions, key_rstd;      // [blocks * key_heads, rows, key_dim] and [.., 1]; without an
                                            // exchange the keys, and undefined
  at::Tensor query_directions, query_rstd;  // the same
  at::Tensor q, k;                          // [N, rows, key_dim]; q divided by sqrt(key_dim)
  at::Tensor beta;                          // [N, rows, 1]
  at::Tensor decays;                        // [N, rows, rows]: D, zeros above the diagonal
  std::optional<ChannelDecays> channels;    // in its place with a decay for each channel
  at::Tensor decay, rest_decay;             // [N, rows, 1 or key_dim]: e^G and e^(G_B - G)
  at::Tensor block_decay;                   // [N, 1 or key_dim, 1]: e^(G_B)
  at::Tensor u;                             // [N, rows, value_dim]
  at::Tensor attention;                     // [N, rows, rows]: tril(q k^T D)
  at::Tensor decayed_queries;               // [N, rows, key_dim]: q e^G
  at::Tensor decayed_keys;                  // the same: k e^(G_B - G)
  // With an exchange alone.
  at::Tensor similarity;          // [N, rows, rows]: A without beta
  at::Tensor system, inverse;     // [N, rows, rows]: A and T
  at::Tensor w;                   // [N, rows, key_dim]
  at::Tensor decayed_key_update;  // the same: beta k e^G

 private:
  /// The vectors of mixed from `column` on, divided by their lengths, and what they were multiplied by for
  /// it; without an exchange as they are.
  std::pair<at::Tensor, at::Tensor> directions(int64_t column) const;
  at::Tensor for_value_heads(const at::Tensor& x) const;
  void set_decays(const at::Tensor& log_decay);
  /// q k^T D for the lower triangle, without the diagonal or with it.
  at::Tensor decayed_products(const at::Tensor& x, bool with_diagonal) const;

  const DeltaRuleSizes& sizes_;
  const DeltaRuleGroup& group_;
  at::ScalarType wide_;
  at::Tensor mixed_;
};

}  // namespace streambp
