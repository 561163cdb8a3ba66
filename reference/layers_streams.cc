#include <cstddef>
#include <numeric>

#include "reference/layers.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {

/// The `which`-th weights of all streams, [tokens, streams]; names end in "fn", "base" and "scale".
Var Layers::stream_weights(const std::string& names, int which, Number magnitude, const Var& x) const {
  const int streams = config_.hyper.streams;
  std::vector<int> rows(static_cast<std::size_t>(streams));
  std::iota(rows.begin(), rows.end(), which * streams);
  const std::vector<int> of_every_token(static_cast<std::size_t>(x.rows()), 0);
  const auto part = [&](const char* name, Index first, Index count) {
    return gather_rows(slice_columns(parameter(names + name), first, count), of_every_token);
  };
  const Var normed = plainly_normed(x, streams * config_.hidden_size);
  const Var scaled =
      scale_rows(linear(normed, gather_rows(parameter(names + "fn"), rows)), part("scale", which, 1));
  const Var open = sigmoid(add(scaled, part("base", Index{which} * streams, streams)));
  return offset(scale(open, magnitude), config_.hyper.eps);
}

Var Layers::streams_read(const std::string& names, const Var& x) const {
  const Var weights = stream_weights(names, 0, 1.0, x);
  const Index size = config_.hidden_size;
  Var all;
  for (int s = 0; s < config_.hyper.streams; ++s) {
    const Var share = scale_rows(slice_columns(x, s * size, size), slice_columns(weights, s, 1));
    all = s == 0 ? share : add(all, share);
  }
  return all;
}

Var Layers::streams_given(const std::string& names, const Var& x, const Var& y) const {
  const Var weights = stream_weights(names, 1, config_.hyper.magnitude, x);
  const Index size = config_.hidden_size;
  std::vector<Var> rows;  // transposed, below one another
  for (int s = 0; s < config_.hyper.streams; ++s)
    rows.push_back(
        transpose(add(slice_columns(x, s * size, size), scale_rows(y, slice_columns(weights, s, 1)))));
  return transpose(concat_rows(rows));
}

Var Layers::in_every_stream(const Var& h) const {
  std::vector<int> columns;
  for (int i = 0; i < config_.hyper.streams * config_.hidden_size; ++i)
    columns.push_back(i % config_.hidden_size);
  return gather_columns(h, columns);
}

}  // namespace streambp::STREAMBP_REFERENCE
