#include <cstddef>
#include <numeric>

#include "reference/layers.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {

/// scale W x / rms(x) + base by rows [first, first + count) of W and base, [tokens, count].
Var Layers::stream_logits(const std::string& names, int scale, int first, int count, const Var& x) const {
  std::vector<int> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  const std::vector<int> of_every_token(static_cast<std::size_t>(x.rows()), 0);
  const auto part = [&](const char* name, Index begin, Index size) {
    return gather_rows(slice_columns(parameter(names + name), begin, size), of_every_token);
  };
  const Var normed = plainly_normed(x, config_.hyper.streams * config_.hidden_size);
  const Var scaled =
      scale_rows(linear(normed, gather_rows(parameter(names + "fn"), rows)), part("scale", scale, 1));
  return add(scaled, part("base", first, count));
}

/// The `which`-th weights of all streams, [tokens, streams]; names end in "fn", "base" and "scale".
Var Layers::stream_weights(const std::string& names, int which, Number magnitude, Number eps,
                           const Var& x) const {
  const int streams = config_.hyper.streams;
  return offset(scale(sigmoid(stream_logits(names, which, which * streams, streams, x)), magnitude), eps);
}

Var Layers::streams_read(const std::string& names, const Var& x) const {
  const Var weights = stream_weights(names, 0, 1.0, config_.hyper.eps, x);
  const Index size = config_.hidden_size;
  Var all;
  for (int s = 0; s < config_.hyper.streams; ++s) {
    const Var share = scale_rows(slice_columns(x, s * size, size), slice_columns(weights, s, 1));
    all = s == 0 ? share : add(all, share);
  }
  return all;
}

Var Layers::mean_of_streams(const Var& x) const {
  const Index size = config_.hidden_size;
  Var all = slice_columns(x, 0, size);
  for (int s = 1; s < config_.hyper.streams; ++s) all = add(all, slice_columns(x, s * size, size));
  return scale(all, Number{1} / Number{1.0 * config_.hyper.streams});
}

std::vector<Var> Layers::mixed_streams(const std::string& names, const Var& x) const {
  const HyperSettings& hyper = config_.hyper;
  const Index size = config_.hidden_size;
  std::vector<Var> streams;
  for (int s = 0; s < hyper.streams; ++s) streams.push_back(slice_columns(x, s * size, size));
  if (hyper.sinkhorn_iters == 0) return streams;
  const auto reciprocal = [](const Var& positive) { return exp(scale(log(positive), -1.0)); };
  const int count = hyper.streams;
  const Var logits = stream_logits(names, 2, 2 * count, count * count, x);
  std::vector<Var> c;  // row j of every token's matrix, [tokens, streams]
  for (int j = 0; j < count; ++j)
    c.push_back(offset(exp(log_softmax(slice_columns(logits, j * count, count))), hyper.eps));
  const auto divide_by_column_sums = [&] {
    const Var divisor =
        reciprocal(offset(std::accumulate(c.begin() + 1, c.end(), c.front(), add), hyper.eps));
    for (Var& row : c) row = mul(row, divisor);
  };
  divide_by_column_sums();
  for (int i = 1; i < hyper.sinkhorn_iters; ++i) {
    for (Var& row : c) row = scale_rows(row, reciprocal(offset(row_sum(row), hyper.eps)));
    divide_by_column_sums();
  }
  std::vector<Var> mixed;
  for (int s = 0; s < count; ++s) {
    Var sum;
    for (std::size_t j = 0; j < streams.size(); ++j) {
      const Var part = scale_rows(streams[j], slice_columns(c[j], s, 1));
      sum = j == 0 ? part : add(sum, part);
    }
    mixed.push_back(sum);
  }
  return mixed;
}

Var Layers::streams_given(const std::string& names, const Var& x, const Var& y) const {
  const HyperSettings& hyper = config_.hyper;
  const Var weights =
      stream_weights(names, 1, hyper.magnitude, hyper.sinkhorn_iters > 0 ? 0.0 : hyper.eps, x);
  const std::vector<Var> streams = mixed_streams(names, x);
  std::vector<Var> rows;  // transposed, below one another
  for (int s = 0; s < hyper.streams; ++s)
    rows.push_back(
        transpose(add(streams[static_cast<std::size_t>(s)], scale_rows(y, slice_columns(weights, s, 1)))));
  return transpose(concat_rows(rows));
}

Var Layers::in_every_stream(const Var& h) const {
  std::vector<int> columns;
  for (int i = 0; i < config_.hyper.streams * config_.hidden_size; ++i)
    columns.push_back(i % config_.hidden_size);
  return gather_columns(h, columns);
}

}  // namespace streambp::STREAMBP_REFERENCE
