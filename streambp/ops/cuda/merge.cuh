// Two blocks of attention as one, by their log-sum-exps.
#pragma once

#include "streambp/ops/cuda/norm_rope.cuh"

namespace streambp::cuda {

template <typename S, int kTeam, int kCount>
STREAMBP_GLOBAL void merge_attended(Attended<S, Wide<S>> all, Attended<const S, const Wide<S>> block,
                                    int64_t rows, int64_t heads, int64_t size) {
  using W = Wide<S>;
  const Team<kTeam> team;
  for (int64_t first = block_index() * team.kTeams; first < rows; first += block_count() * team.kTeams) {
    const int64_t row = first + team.number;
    const bool has_row = row < rows;
    const int64_t token = has_row ? row / heads : 0, head = has_row ? row % heads : 0;
    W* const place = all.log_sum_exp + token * all.token_stride + head * all.head_stride;
    const W a = has_row ? *place : W{0};
    const W b = has_row ? block.log_sum_exp[token * block.token_stride + head * block.head_stride] : W{0};
    const W most = a > b ? a : b, least = a > b ? b : a;
    // Rows that have seen nothing yet have a sum of nothing, and no share in the result.
    const bool is_empty = most < -kLargest<W>;
    const W both = is_empty ? most : most + log1p(exp(least - most));
    const W share = is_empty ? W{0} : exp(a - both), block_share = is_empty ? W{0} : exp(b - both);
    barrier();  // the team has read what its first thread writes
    if (!has_row) continue;
    if (team.rank == 0) *place = both;
    S* const to = row_of(all.output, token, head);
    const S* const from = row_of(block.output, token, head);
    for (int64_t i = team.rank * kCount; i < size; i += kTeam * kCount) {
      W numbers[kCount], others[kCount];
      load(to + i, numbers);
      load(from + i, others);
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) numbers[k] = numbers[k] * share + others[k] * block_share;
      store(to + i, numbers);
    }
  }
}

template <typename S>
Failure merged(const Queue& queue, Attended<S, Wide<S>> all, Attended<const S, const Wide<S>> block,
               int64_t tokens, int64_t heads, int64_t size) {
  constexpr int kTeam = 8;
  const auto run = [&](auto kernel) {
    return launch(queue, kernel, blocks_for(tokens * heads, Team<kTeam>::kTeams), kThreads, 0, all, block,
                  tokens * heads, heads, size);
  };
  const bool in_packs =
      size % kPack<S> == 0 &&
      moves_in_packs<S>(all.output.data, all.output.token_stride, all.output.head_stride) &&
      moves_in_packs<S>(block.output.data, block.output.token_stride, block.output.head_stride);
  return in_packs ? run(merge_attended<S, kTeam, kPack<S>>) : run(merge_attended<S, kTeam, 1>);
}

}  // namespace streambp::cuda
