// Gates of residual streams against the same formulas in plain ATen, in float64: what a half of a layer reads
// of the streams and what it gives to each; row by row; in half precision.
#include "streambp/ops/hyper_connection.h"

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr int64_t kStreamWidth = 5;
constexpr double kMagnitude = 1.7, kGateEps = 1e-2, kGateNormEps = 1e-3;

/// Gates of `streams` streams, and their parameters.
struct GatesSubject {
  Parameter fn, base, scale;
  StreamGates gates;

  explicit GatesSubject(int64_t streams, at::ScalarType dtype = at::kDouble)
      : fn(parameter(random({streams, streams * kStreamWidth}, 1).to(dtype))),
        base(parameter(random({streams}, 2).to(dtype))),
        scale(parameter(random({1}, 3).to(dtype))),
        gates{&fn, &base, &scale, kMagnitude, kGateEps, kGateNormEps} {}

  std::vector<Parameter*> parameters() { return {&fn, &base, &scale}; }
};

/// [n, S, 1] of x [n, S D] and fn, base and scale.
at::Tensor plain_stream_weights(const at::Tensor& x, const std::vector<at::Tensor>& of) {
  const at::Tensor mixes = at::mm(x / (x.square().mean({1}, true) + kGateNormEps).sqrt(), of[0].t());
  return (at::sigmoid(mixes * of[2] + of[1]) * kMagnitude + kGateEps).unsqueeze(2);
}

at::Tensor plain_stream_sum(const at::Tensor& x, const std::vector<at::Tensor>& of) {
  return (plain_stream_weights(x, of) * x.view({x.size(0), -1, kStreamWidth})).sum(1);
}

at::Tensor plain_streams_added(const at::Tensor& x, const at::Tensor& y, const std::vector<at::Tensor>& of) {
  return (x.view({x.size(0), -1, kStreamWidth}) + plain_stream_weights(x, of) * y.unsqueeze(1))
      .view(x.sizes());
}

TEST(HyperConnection, EqualsPlainAutograd) {
  for (const int64_t streams : {1, 2, 4}) {
    for (const int64_t rows : {1, 9}) {
      SCOPED_TRACE(fmt::format("{} streams, {} rows", streams, rows));
      GatesSubject subject(streams);
      const at::Tensor x = random({rows, streams * kStreamWidth}, 4), y = random({rows, kStreamWidth}, 5);
      expect_same(
          {x}, subject.parameters(),
          [&](const std::vector<at::Tensor>& in) { return sum_streams(in[0], subject.gates); },
          [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
            return plain_stream_sum(in[0], of);
          });
      expect_same(
          {x, y}, subject.parameters(),
          [&](const std::vector<at::Tensor>& in) { return add_to_streams(in[0], in[1], subject.gates); },
          [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
            return plain_streams_added(in[0], in[1], of);
          });
    }
  }
}

/// x mixed by the matrix of Sinkhorn and Knopp, [n, S, D].
at::Tensor plain_mixed(const at::Tensor& x, const std::vector<at::Tensor>& of, int64_t iterations) {
  const at::Tensor streams = x.view({x.size(0), -1, kStreamWidth});
  const at::Tensor mixes = at::mm(x / (x.square().mean({1}, true) + kGateNormEps).sqrt(), of[0].t());
  at::Tensor c = (mixes * of[2] + of[1]).view({x.size(0), streams.size(1), -1}).softmax(-1) + kGateEps;
  c = c / (c.sum(1, true) + kGateEps);
  for (int64_t i = 1; i < iterations; ++i) {
    c = c / (c.sum(2, true) + kGateEps);
    c = c / (c.sum(1, true) + kGateEps);
  }
  return at::matmul(c.transpose(1, 2), streams);
}

TEST(HyperConnection, MixesStreamsAsPlainAutogradDoes) {
  constexpr int64_t kStreams = 3;
  for (const int64_t iterations : {1, 2, 5}) {
    GatesSubject subject(kStreams);
    Parameter fn = parameter(random({kStreams * kStreams, kStreams * kStreamWidth}, 6)),
              base = parameter(random({kStreams * kStreams}, 7)), scale = parameter(random({1}, 8));
    subject.gates.mix = {&fn, &base, &scale, kGateEps, iterations};
    std::vector<Parameter*> parameters = subject.parameters();
    parameters.insert(parameters.end(), {&fn, &base, &scale});
    expect_same(
        {random({7, kStreams * kStreamWidth}, 4), random({7, kStreamWidth}, 5)}, parameters,
        [&](const std::vector<at::Tensor>& in) { return add_to_streams(in[0], in[1], subject.gates); },
        [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
          const at::Tensor given = plain_stream_weights(in[0], of) * in[1].unsqueeze(1);
          return (plain_mixed(in[0], {of[3], of[4], of[5]}, iterations) + given).view(in[0].sizes());
        });
  }
}

TEST(HyperConnection, LooksAtOneRowAlone) {
  GatesSubject subject(3);
  const at::Tensor x = random({7, 3 * kStreamWidth}, 6), dy = random({7, kStreamWidth}, 7);
  const at::Tensor whole = sum_streams_backward(dy, x, subject.gates), of_fn = subject.fn.gradient.clone();
  subject.fn.gradient.zero_();
  for (const auto& [begin, rows] : {std::pair<int64_t, int64_t>{4, 3}, {0, 4}})
    expect_near(sum_streams_backward(dy.narrow(0, begin, rows), x.narrow(0, begin, rows), subject.gates),
                whole.narrow(0, begin, rows), "rows", 1e-15);
  expect_near(subject.fn.gradient, of_fn, "fn", 1e-15);
}

TEST(HyperConnection, LeavesFrozenGatesAlone) {
  GatesSubject subject(2);
  const at::Tensor x = random({4, 2 * kStreamWidth}, 8), dy = random({4, kStreamWidth}, 9);
  const at::Tensor dx = sum_streams_backward(dy, x, subject.gates);
  for (Parameter* one : subject.parameters()) one->gradient.reset();
  EXPECT_FALSE(subject.gates.trainable());
  EXPECT_TRUE(at::equal(sum_streams_backward(dy, x, subject.gates), dx));
}

// Computed in the gates' float32, of streams in bfloat16: rounded once.
TEST(HyperConnection, OfHalfPrecisionStreamsIsRoundedOnce) {
  GatesSubject subject(4, at::kFloat);
  const at::Tensor x = random({33, 4 * kStreamWidth}, 10).to(at::kBFloat16),
                   y = random({33, kStreamWidth}, 11).to(at::kBFloat16);
  std::vector<at::Tensor> of;
  for (const Parameter* one : subject.parameters()) of.push_back(one->value.to(at::kDouble));
  const auto near = [](const at::Tensor& got, const at::Tensor& expected, const char* what) {
    EXPECT_EQ(got.scalar_type(), at::kBFloat16) << what;
    expect_near(got.to(at::kDouble), expected, what, 4e-3);
  };
  const at::Tensor x_wide = x.to(at::kDouble), y_wide = y.to(at::kDouble);
  near(sum_streams(x, subject.gates), plain_stream_sum(x_wide, of), "sum");
  near(add_to_streams(x, y, subject.gates), plain_streams_added(x_wide, y_wide, of), "added");
}

}  // namespace
}  // namespace streambp
