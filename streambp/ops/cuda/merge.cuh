// Two blocks of attention as one, by their log-sum-exps.
#pragma once

#include "streambp/ops/cuda/norm_rope.cuh"

namespace streambp::cuda {

/// Outputs of A and B, of which one may be the other's wide type.
template <typename A, typename B, int kTeam, int kCount>
STREAMBP_GLOBAL void merge_attended(Attended<A, Wide<A>> all, Attended<const B, const Wide<A>> block,
                                    int64_t rows, int64_t heads, int64_t size) {
  using W = Wide<A>;
  const Team<kTeam> team;
  for (int64_t first = block_index() * team.kTeams; first < rows; first += block_count() * team.kTeams) {
    const int64_t row = first + team.number;
    const bool has_row = row < rows;
    const int64_t token = has_row ? row / heads : 0, head = has_row ? row % heads : 0;
    W* const sum = all.log_sum_exp + token * all.token_stride + head * all.head_stride;
    const W a = has_row ? *sum : W{0};
    const W b = has_row ? block.log_sum_exp[token * block.token_stride + head * block.head_stride] : W{0};
    const W most = a > b ? a : b, least = a > b ? b : a;
    // Rows that have seen nothing yet have a sum of nothing, and no share in the result.
    const bool is_empty = most < -kLargest<W>;
    const W both = is_empty ? most : most + log1p(exp(least - most));
    const W share = is_empty ? W{0} : exp(a - both), block_share = is_empty ? W{0} : exp(b - both);
    barrier();  // the team has read what its first thread writes
    if (!has_row) continue;
    if (team.rank == 0) *sum = both;
    A* const to = row_of(all.output, token, head);
    const B* const from = row_of(block.output, token, head);
    for (int64_t i = team.rank * kCount; i < size; i += kTeam * kCount) {
      W numbers[kCount], others[kCount];
      load(to + i, numbers);
      load(from + i, others);
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) numbers[k] = multiply_add(numbers[k], share, others[k] * block_share);
      store(to + i, numbers);
    }
  }
}

template <typename A, typename B>
Failure merged(const Queue& queue, Attended<A, Wide<A>> all, Attended<const B, const Wide<A>> block,
               int64_t tokens, int64_t heads, int64_t size) {
  constexpr int kTeam = 8;
  constexpr int kCount = kPack<A> < kPack<B> ? kPack<A> : kPack<B>;  // 16 bytes of the wider one
  const auto run = [&](auto kernel) {
    return launch(queue, kernel, blocks_for(tokens * heads, Team<kTeam>::kTeams), kThreads, 0, all, block,
                  tokens * heads, heads, size);
  };
  const bool in_packs =
      size % kCount == 0 &&
      moves_in_packs<A>(all.output.data, all.output.token_stride, all.output.head_stride) &&
      moves_in_packs<B>(block.output.data, block.output.token_stride, block.output.head_stride);
  return in_packs ? run(merge_attended<A, B, kTeam, kCount>) : run(merge_attended<A, B, kTeam, 1>);
}

}  // namespace streambp::cuda
