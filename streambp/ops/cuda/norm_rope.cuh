// Root-mean-square norm and rotary embedding of heads, apart or one after the other: ops/cpu/norm_rope.cc for
// the GPU. A team of threads takes a row, reads it twice (the second time from the first-level cache) and
// writes it once.
#pragma once

#include "streambp/ops/cuda/numbers.cuh"

namespace streambp::cuda {

/// A row's offset in memory by token and head.
template <typename S>
STREAMBP_DEVICE S* row_of(const Heads<S>& heads, int64_t token, int64_t head) {
  return heads.data + token * heads.token_stride + head * heads.head_stride;
}

/// Calls body(column, numbers) for all columns of a row that are this thread's, after before(column, numbers)
/// and the turn by `sign` times the token's angles.
template <int kTeam, int kCount, typename S, typename Before, typename Body>
STREAMBP_DEVICE void over_rotated(const NormRope<S>& op, int64_t token, Wide<S> sign, const S* row, int rank,
                                  Before before, Body body) {
  using W = Wide<S>;
  const int64_t half = op.cosine == nullptr ? 0 : op.half;
  for (int64_t i = rank * kCount; i < half; i += kTeam * kCount) {
    W first[kCount], second[kCount], cosine[kCount], sine[kCount];
    load(row + i, first);
    load(row + half + i, second);
    load(op.cosine + token * op.table_stride + i, cosine);
    load(op.sine + token * op.table_stride + i, sine);
    before(i, first);
    before(half + i, second);
    STREAMBP_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const W a = first[k], b = second[k];
      first[k] = rounded<S>(rounded<S>(a * cosine[k]) - b * (sine[k] * sign));
      second[k] = rounded<S>(rounded<S>(b * cosine[k]) + a * (sine[k] * sign));
    }
    body(i, first);
    body(half + i, second);
  }
  for (int64_t i = 2 * half + rank * kCount; i < op.size; i += kTeam * kCount) {
    W numbers[kCount];
    load(row + i, numbers);
    before(i, numbers);
    body(i, numbers);
  }
}

template <typename S, int kTeam, int kCount>
STREAMBP_GLOBAL void norm_rope_forward(NormRope<S> op, Heads<const S> x, const S* residual, S* y,
                                       int64_t rows) {
  using W = Wide<S>;
  W* const scratch = shared_memory<W>();
  const Team<kTeam> team;
  // Teams of a block go through their rows together, those without a row too: sums need all threads.
  for (int64_t first = block_index() * team.kTeams; first < rows; first += block_count() * team.kTeams) {
    const int64_t row = first + team.number;
    const bool has_row = row < rows;
    const int64_t token = has_row ? row / op.heads : 0, head = has_row ? row % op.heads : 0;
    const S* const from = row_of(x, token, head);
    W rstd = 0;
    if (op.weight != nullptr) {
      W squares = 0;
      for (int64_t i = team.rank * kCount; has_row && i < op.size; i += kTeam * kCount) {
        W numbers[kCount];
        load(from + i, numbers);
        STREAMBP_UNROLL
        for (int k = 0; k < kCount; ++k) squares += numbers[k] * numbers[k];
      }
      squares = team.sum(squares, scratch);
      rstd = 1 / sqrt(squares / static_cast<W>(op.size) + static_cast<W>(op.eps));
      if (has_row && team.rank == 0) op.rstd[row] = rstd;
    }
    if (!has_row) continue;
    over_rotated<kTeam, kCount>(
        op, token, W{1}, from, team.rank,
        [&](int64_t i, W(&numbers)[kCount]) {
          if (op.weight == nullptr) return;
          W weight[kCount];
          load(op.weight + i, weight);
          STREAMBP_UNROLL
          for (int k = 0; k < kCount; ++k) {
            const W normalised = numbers[k] * rstd;
            // Hugging Face rounds before it multiplies, except in Gemma's norms.
            numbers[k] = rounded<S>(op.adds_one ? normalised * (weight[k] + W{1})
                                                : rounded<S>(normalised) * weight[k]);
          }
        },
        [&](int64_t i, W(&numbers)[kCount]) {
          if (residual != nullptr) {
            W other[kCount];
            load(residual + row * op.size + i, other);
            STREAMBP_UNROLL
            for (int k = 0; k < kCount; ++k) numbers[k] += other[k];
          }
          store(y + row * op.size + i, numbers);
        });
  }
}

/// With `sums`, the grid has as many blocks as these have parts, and each adds up its rows' terms in shared
/// memory: a column is always the same thread's. A pack's first columns lie side by side there, then its
/// second ones: neighbouring threads write to neighbouring banks.
template <typename S, int kTeam, int kCount>
STREAMBP_GLOBAL void norm_rope_backward(NormRope<S> op, Heads<const S> x, Heads<const S> dy, S* dx,
                                        Wide<S>* sums, int64_t rows) {
  using W = Wide<S>;
  W* const scratch = shared_memory<W>();
  const Team<kTeam> team;
  W* const all_terms = scratch + (team.kScratch + kPack<W> - 1) / kPack<W> * kPack<W>;
  W* const terms = all_terms + team.number * op.size;
  if (sums != nullptr) {
    for (int64_t i = thread_index(); i < team.kTeams * op.size; i += kThreads) all_terms[i] = 0;
    barrier();
  }
  const int64_t packs = op.size / kCount;
  const auto as_is = [](int64_t, W(&)[kCount]) {};
  for (int64_t first = block_index() * team.kTeams; first < rows; first += block_count() * team.kTeams) {
    const int64_t row = first + team.number;
    const bool has_row = row < rows;
    const int64_t token = has_row ? row / op.heads : 0, head = has_row ? row % op.heads : 0;
    const S* const d_row = row_of(dy, token, head);
    S* const to = dx + row * op.size;
    if (op.weight == nullptr) {
      if (has_row) {
        over_rotated<kTeam, kCount>(op, token, W{-1}, d_row, team.rank, as_is,
                                    [&](int64_t i, W(&d)[kCount]) { store(to + i, d); });
      }
      continue;
    }
    const S* const x_row = row_of(x, token, head);
    const auto factors = [&](int64_t i, W(&weight)[kCount]) {
      load(op.weight + i, weight);
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) weight[k] += op.adds_one ? W{1} : W{0};
    };
    W product = 0;
    if (has_row) {
      over_rotated<kTeam, kCount>(op, token, W{-1}, d_row, team.rank, as_is, [&](int64_t i, W(&d)[kCount]) {
        W weight[kCount], numbers[kCount];
        factors(i, weight);
        load(x_row + i, numbers);
        STREAMBP_UNROLL
        for (int k = 0; k < kCount; ++k) product += d[k] * weight[k] * numbers[k];
      });
    }
    product = team.sum(product, scratch);
    if (!has_row) continue;
    const W rstd = op.rstd[row];
    const W along = product * rstd / static_cast<W>(op.size);
    over_rotated<kTeam, kCount>(op, token, W{-1}, d_row, team.rank, as_is, [&](int64_t i, W(&d)[kCount]) {
      W weight[kCount], numbers[kCount];
      factors(i, weight);
      load(x_row + i, numbers);
      STREAMBP_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const W normalised = numbers[k] * rstd;
        if (sums != nullptr) terms[k * packs + i / kCount] += d[k] * normalised;
        d[k] = (d[k] * weight[k] - normalised * along) * rstd;
      }
      store(to + i, d);
    });
  }
  if (sums == nullptr) return;
  barrier();
  for (int64_t i = thread_index(); i < op.size; i += kThreads) {
    const int64_t at = i % kCount * packs + i / kCount;
    W total = 0;
    for (int one = 0; one < team.kTeams; ++one) total += all_terms[one * op.size + at];
    sums[block_index() * op.size + i] = total;
  }
}

template <typename S, int kTeam, int kCount>
Failure launch_forward(const Queue& queue, const NormRope<S>& op, Heads<const S> x, const S* residual, S* y,
                       int64_t rows) {
  return launch(queue, norm_rope_forward<S, kTeam, kCount>, blocks_for(rows, Team<kTeam>::kTeams), kThreads,
                Team<kTeam>::kScratch * sizeof(Wide<S>), op, x, residual, y, rows);
}

template <typename S, int kTeam, int kCount>
Failure launch_backward(const Queue& queue, const NormRope<S>& op, Heads<const S> x, Heads<const S> dy, S* dx,
                        Wide<S>* sums, int64_t parts, int64_t rows) {
  constexpr int64_t kScratch = (Team<kTeam>::kScratch + kPack<Wide<S>> - 1) / kPack<Wide<S>> * kPack<Wide<S>>;
  const int64_t numbers = kScratch + (sums == nullptr ? 0 : Team<kTeam>::kTeams * op.size);
  const int64_t blocks = sums == nullptr ? blocks_for(rows, Team<kTeam>::kTeams) : parts;
  return launch(queue, norm_rope_backward<S, kTeam, kCount>, blocks, kThreads,
                static_cast<size_t>(numbers) * sizeof(Wide<S>), op, x, dy, dx, sums, rows);
}

/// Calls body(team, count), integral constants, for rows like op's: a team as large as keeps each of its
/// threads busy a few times, and packs where every row begins and ends with one.
template <typename S, typename Body>
Failure with_team(const NormRope<S>& op, bool in_packs, Body body) {
  const int64_t half = op.cosine == nullptr ? 0 : op.half;
  const int64_t longest = half > op.size - 2 * half ? half : op.size - 2 * half;
  const auto by_count = [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    const int64_t packs = longest / kCount;
    if (packs <= 16) return body(std::integral_constant<int, 8>{}, count);
    if (packs <= 128) return body(std::integral_constant<int, kWarp>{}, count);
    return body(std::integral_constant<int, kThreads>{}, count);
  };
  const bool is_whole = op.size % kPack<S> == 0 && half % kPack<S> == 0 &&
                        moves_in_packs<S>(op.cosine, op.table_stride) &&
                        moves_in_packs<S>(op.sine, op.table_stride) && moves_in_packs<S>(op.weight, 0);
  return in_packs && is_whole ? by_count(std::integral_constant<int, kPack<S>>{})
                              : by_count(std::integral_constant<int, 1>{});
}

template <typename S>
Failure normed_rope(const Queue& queue, const NormRope<S>& op, Heads<const S> x, const S* residual, S* y,
                    int64_t tokens) {
  const bool in_packs = moves_in_packs<S>(x.data, x.token_stride, x.head_stride) &&
                        moves_in_packs<S>(residual, 0) && moves_in_packs<S>(y, 0);
  return with_team(op, in_packs, [&](auto team, auto count) {
    return launch_forward<S, decltype(team)::value, decltype(count)::value>(queue, op, x, residual, y,
                                                                            tokens * op.heads);
  });
}

template <typename S>
Failure normed_rope_backward(const Queue& queue, const NormRope<S>& op, Heads<const S> x, Heads<const S> dy,
                             S* dx, Wide<S>* sums, int64_t parts, int64_t tokens) {
  const bool in_packs = moves_in_packs<S>(x.data, x.token_stride, x.head_stride) &&
                        moves_in_packs<S>(dy.data, dy.token_stride, dy.head_stride) &&
                        moves_in_packs<S>(dx, 0);
  return with_team(op, in_packs, [&](auto team, auto count) {
    return launch_backward<S, decltype(team)::value, decltype(count)::value>(queue, op, x, dy, dx, sums,
                                                                             parts, tokens * op.heads);
  });
}

}  // namespace streambp::cuda
