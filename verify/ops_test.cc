// Every op against plain ATen under autograd, in float64; and, where sums are exact, bit for bit at every
// chunk size.
#include <functional>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention.h"
#include "streambp/ops/attention_kernels.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/mlp.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"

namespace streambp {
namespace {

constexpr double kLimit = 1e-13;

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kDouble));
}

/// Integers from -3 to 3: every product and sum of a test's size is exact, in any order.
at::Tensor integers(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  return at::randint(-3, 4, shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(dtype));
}

Parameter parameter(at::Tensor value, bool trainable = true) {
  return {"parameter", value, trainable ? at::zeros_like(value) : at::Tensor()};
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, const char* what, double limit = kLimit) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double error = relative_error(got, expected);
  EXPECT_TRUE(error <= limit) << what << ": relative error " << error << ", limit " << limit;
}

/// Runs `op` and `plain` on the same inputs, sends the same random cotangent back, and compares values and
/// all gradients. The plain version receives the parameters as leaves.
void expect_same(
    const std::vector<at::Tensor>& inputs, std::vector<Parameter*> parameters,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& op,
    const std::function<at::Tensor(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&)>& plain) {
  const auto leaves = [](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone().requires_grad_());
    return copies;
  };
  std::vector<at::Tensor> values;
  for (const Parameter* p : parameters) values.push_back(p->value);
  const std::vector<at::Tensor> op_inputs = leaves(inputs), plain_inputs = leaves(inputs),
                                plain_values = leaves(values);
  const at::Tensor y = op(op_inputs);
  const at::Tensor expected = plain(plain_inputs, plain_values);
  expect_near(y.detach(), expected.detach(), "value");
  const at::Tensor cotangent = random(y.sizes(), 99);
  const auto got = torch::autograd::grad({y}, op_inputs, {cotangent});
  std::vector<at::Tensor> all = plain_inputs;
  all.insert(all.end(), plain_values.begin(), plain_values.end());
  const auto truth = torch::autograd::grad({expected}, all, {cotangent});
  for (size_t i = 0; i < inputs.size(); ++i)
    expect_near(got[i], truth[i], fmt::format("input {}", i).c_str());
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_near(parameters[i]->gradient, truth[inputs.size() + i], fmt::format("parameter {}", i).c_str());
  }
}

TEST(Ops, LinearMapsOfOneInput) {
  Parameter w1 = parameter(random({5, 7}, 1)), b1 = parameter(random({5}, 2)),
            w2 = parameter(random({3, 7}, 3));
  const Linear first{"first", &w1, &b1}, second{"second", &w2};
  expect_same(
      {random({11, 7}, 4)}, {&w1, &b1, &w2},
      [&](const auto& in) {
        return at::cat(linear(in[0], {&first, &second}), 1);
      },
      [](const auto& in, const auto& p) {
        return at::cat({at::linear(in[0], p[0], p[1]), at::linear(in[0], p[2])}, 1);
      });
}

TEST(Ops, LinearAddedToAResidual) {
  Parameter w = parameter(random({5, 7}, 1)), b = parameter(random({5}, 2));
  const Linear map{"map", &w, &b};
  expect_same(
      {random({11, 5}, 3), random({11, 7}, 4)}, {&w, &b},
      [&](const auto& in) { return linear_add(in[0], in[1], map); },
      [](const auto& in, const auto& p) { return in[0] + at::linear(in[1], p[0], p[1]); });
}

TEST(Ops, LinearWithALowRankAdapter) {
  Parameter w = parameter(random({5, 7}, 1), /*trainable=*/false), a = parameter(random({2, 7}, 2)),
            b = parameter(random({5, 2}, 3));
  Linear map{"map", &w, nullptr, LowRankAdapter{&a, &b, 0.25, true}};
  const at::Tensor base = w.value;
  expect_same(
      {random({11, 5}, 4), random({11, 7}, 5)}, {&a, &b},
      [&](const auto& in) { return linear_add(in[0], in[1], map); },
      [&](const auto& in, const auto& p) {
        return in[0] + at::linear(in[1], base + 0.25 * p[1].matmul(p[0]));
      });
  map.adapter->enabled = false;
  const at::Tensor x = random({3, 7}, 6);
  EXPECT_TRUE(at::equal(linear_forward(map, x), at::mm(x, base.t())));
}

TEST(Ops, RmsNormOfRowsAndOfHeads) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{9, 6}, {4, 3, 6}, {1, 5}}) {
    Parameter w = parameter(random({shape.back()}, 1));
    expect_same(
        {random(shape, 2)}, {&w}, [&](const auto& in) { return rms_norm(in[0], w, 1e-6); },
        [](const auto& in, const auto& p) {
          return p[0] * in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-6);
        });
  }
}

TEST(Ops, GatedMlp) {
  Parameter gate = parameter(random({8, 5}, 1)), up = parameter(random({8, 5}, 2)),
            down = parameter(random({5, 8}, 3));
  Parameter gate_bias = parameter(random({8}, 4)), down_bias = parameter(random({5}, 5));
  const Linear gate_map{"gate", &gate, &gate_bias}, up_map{"up", &up}, down_map{"down", &down, &down_bias};
  expect_same(
      {random({6, 5}, 6), random({6, 5}, 7)}, {&gate, &up, &down, &gate_bias, &down_bias},
      [&](const auto& in) { return gated_mlp(in[0], in[1], gate_map, up_map, down_map); },
      [](const auto& in, const auto& p) {
        return in[0] +
               at::linear(at::silu(at::linear(in[1], p[0], p[3])) * at::linear(in[1], p[1]), p[2], p[4]);
      });
}

TEST(Ops, Rope) {
  const at::Tensor positions = at::tensor({0, 1, 5, 1000, 131071}, at::kLong);
  const at::Tensor frequencies = at::tensor({1.0, 0.1, 0.001}, at::kDouble);
  const RopeTable table = rope_table(positions, frequencies, at::kDouble);
  expect_same(
      {random({5, 4, 6}, 1)}, {}, [&](const auto& in) { return rope(in[0], table); },
      [&](const auto& in, const auto&) {
        // rotate_half of transformers, on the full-width table.
        const at::Tensor angles = positions.to(at::kDouble).outer(frequencies);
        const at::Tensor wide = at::cat({angles, angles}, 1).unsqueeze(1);
        const auto halves = in[0].chunk(2, -1);
        return in[0] * wide.cos() + at::cat({-halves[1], halves[0]}, -1) * wide.sin();
      });
}

/// Attention of a packed run with its prefix, by an explicit mask.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int64_t>& offsets, int64_t prefix, double scale) {
  const int64_t n = q.size(0);
  at::Tensor hidden = at::ones({n, prefix + n}, at::kBool);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      hidden[i].narrow(0, prefix + offsets[s], i - offsets[s] + 1).fill_(false);
      if (s == 0) hidden[i].narrow(0, 0, prefix).fill_(false);
    }
  }
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor wide_k = k.repeat_interleave(group, 1), wide_v = v.repeat_interleave(group, 1);
  const at::Tensor scores = at::einsum("ihe,jhe->hij", {q, wide_k}) * scale;
  const at::Tensor weights =
      scores.masked_fill(hidden.unsqueeze(0), -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::einsum("hij,jhe->ihe", {weights, wide_v});
}

struct AttentionShape {
  int64_t prefix;
  std::vector<int64_t> offsets;
  int64_t heads, key_heads, size;
};

class Attention : public testing::TestWithParam<AttentionShape> {};

TEST_P(Attention, EqualsAMaskedSoftmax) {
  const auto& [prefix, offsets, heads, key_heads, size] = GetParam();
  const int64_t n = offsets.back();
  const double scale = 0.3;
  const at::Tensor q = random({n, heads, size}, 1), k = random({prefix + n, key_heads, size}, 2),
                   v = random({prefix + n, key_heads, size}, 3);
  const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
  const at::Tensor plain_q = leaf(q), plain_k = leaf(k), plain_v = leaf(v);
  const at::Tensor expected = masked_attention(plain_q, plain_k, plain_v, offsets, prefix, scale);
  const at::Tensor cotangent = random(expected.sizes(), 4);
  const auto truth = torch::autograd::grad({expected}, {plain_q, plain_k, plain_v}, {cotangent});

  Prefix earlier{k.narrow(0, 0, prefix), v.narrow(0, 0, prefix),
                 at::zeros({prefix, key_heads, size}, at::kDouble),
                 at::zeros({prefix, key_heads, size}, at::kDouble)};
  const at::Tensor own_q = leaf(q), own_k = leaf(k.narrow(0, prefix, n)),
                   own_v = leaf(v.narrow(0, prefix, n));
  const at::Tensor y = attention(own_q, own_k, own_v, offsets, earlier, scale);
  expect_near(y.detach(), expected.detach(), "value");
  const auto got = torch::autograd::grad({y}, {own_q, own_k, own_v}, {cotangent});
  expect_near(got[0], truth[0], "queries");
  expect_near(at::cat({earlier.key_gradients, got[1]}), truth[1], "keys, prefix included");
  expect_near(at::cat({earlier.value_gradients, got[2]}), truth[2], "values, prefix included");
}

TEST_P(Attention, TiledKernelsAgree) {
  const auto& [prefix, offsets, heads, key_heads, size] = GetParam();
  const int64_t n = offsets.back();
  const at::Tensor q = random({n, heads, size}, 1), dy = random({n, heads, size}, 4);
  for (const auto& [visible, keys] : {std::pair{Visible::kCausal, n}, std::pair{Visible::kAll, prefix}}) {
    if (keys == 0) continue;
    const at::Tensor k = random({keys, key_heads, size}, 2), v = random({keys, key_heads, size}, 3);
    const AttentionBlock fused = attend(q, k, v, visible, 0.3), tiled = attend_tiled(q, k, v, visible, 0.3);
    expect_near(tiled.output, fused.output, "output");
    expect_near(tiled.log_sum_exp, fused.log_sum_exp, "log-sum-exp");
    const auto a = attend_backward(dy, q, k, v, fused.output, fused.log_sum_exp, visible, 0.3);
    const auto b = attend_backward_tiled(dy, q, k, v, fused.output, fused.log_sum_exp, visible, 0.3);
    // A single key has all the weight: its score has no gradient, and both kernels return rounding noise.
    if (keys > 1) {
      expect_near(b.d_queries, a.d_queries, "queries");
      expect_near(b.d_keys, a.d_keys, "keys");
    }
    expect_near(b.d_values, a.d_values, "values");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Values(AttentionShape{0, {0, 9}, 4, 2, 8}, AttentionShape{7, {0, 9}, 4, 2, 8},
                    AttentionShape{1, {0, 2}, 2, 2, 4}, AttentionShape{5, {0, 3, 4, 9}, 6, 2, 8},
                    AttentionShape{0, {0, 3, 4, 9}, 3, 1, 6}, AttentionShape{1030, {0, 5, 40}, 4, 1, 8},
                    AttentionShape{2048, {0, 300}, 2, 2, 16}, AttentionShape{1300, {0, 1}, 4, 2, 8}));

/// Chunk sizes that meet every edge of `rows`.
std::vector<int64_t> awkward_chunks(int64_t rows) {
  return {1, 2, 3, 7, rows - 1, rows, rows + 5};
}

class ExactSums : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ExactSums, StreamedLinearGradientsAreBitEqualAtEveryChunk) {
  constexpr int64_t kRows = 23;
  const at::ScalarType dtype = GetParam();
  const at::Tensor x = integers({kRows, 9}, 1, dtype), dy = integers({kRows, 6}, 2, dtype);
  const at::Tensor w = integers({6, 9}, 3, dtype), b = integers({6}, 4, dtype);
  const at::Tensor dw = dy.t().matmul(x), db = dy.sum(0), dx = dy.matmul(w), y = x.matmul(w.t()) + b;
  for (const int64_t chunk : awkward_chunks(kRows)) {
    Parameter weight = parameter(w.clone()), bias = parameter(b.clone());
    const Linear map{"map", &weight, &bias};
    at::Tensor streamed_dx = at::full_like(x, std::numeric_limits<double>::quiet_NaN());
    for (int64_t begin = 0; begin < kRows; begin += chunk) {
      const int64_t rows = std::min(chunk, kRows - begin);
      const at::Tensor leaf = x.narrow(0, begin, rows).clone().requires_grad_();
      const at::Tensor out = linear(leaf, {&map}).front();
      EXPECT_TRUE(at::equal(out, y.narrow(0, begin, rows))) << "chunk " << chunk;
      streamed_dx.narrow(0, begin, rows)
          .copy_(torch::autograd::grad({out}, {leaf}, {dy.narrow(0, begin, rows)}).front());
    }
    EXPECT_TRUE(at::equal(weight.gradient, dw)) << "dW, chunk " << chunk;
    EXPECT_TRUE(at::equal(bias.gradient, db)) << "db, chunk " << chunk;
    EXPECT_TRUE(at::equal(streamed_dx, dx)) << "dX, chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactSums, testing::Values(at::kDouble, at::kFloat),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

TEST(Accumulate, AWiderGradientIsSummedInItsOwnDtype) {
  const at::Tensor x = integers({40, 9}, 1, at::kBFloat16), dy = integers({40, 6}, 2, at::kBFloat16);
  Parameter weight{"w", integers({6, 9}, 3, at::kBFloat16), at::full({6, 9}, 4096.0, at::kFloat)};
  accumulate_product(weight, dy, x);
  // 4096 + small integers needs more than bfloat16's 8 bits.
  EXPECT_TRUE(at::equal(weight.gradient, dy.to(at::kFloat).t().matmul(x.to(at::kFloat)) + 4096));
}

TEST(Frozen, ParametersKeepNoInputs) {
  install_meters();
  const at::Tensor x = random({64, 32}, 1);
  const auto kept = [&](bool trainable) {
    Parameter w = parameter(random({32, 32}, 2), trainable);
    const Linear map{"map", &w};
    const at::Tensor leaf = x.clone().requires_grad_();
    const int64_t before = read_meter(at::kCPU).live_bytes;
    at::Tensor y = linear(rope(leaf.view({64, 4, 8}),
                               rope_table(at::arange(64), at::ones({4}, at::kDouble), at::kDouble))
                              .flatten(1),
                          {&map})
                       .front();
    const int64_t bytes = read_meter(at::kCPU).live_bytes - before;
    torch::autograd::grad({y}, {leaf}, {y.detach()});
    return bytes;
  };
  const int64_t input_bytes = 64 * 32 * 8;
  EXPECT_EQ(kept(true) - kept(false), input_bytes);
}

TEST(Differentiable, ClosuresAreFreedWithTheirUse) {
  install_meters();
  const int64_t before = read_meter(at::kCPU).live_bytes;
  {
    const at::Tensor leaf = random({8}, 1).requires_grad_();
    const at::Tensor big = random({1000}, 2);
    const at::Tensor y =
        differentiable({leaf}, leaf.detach() * 2, "double",
                       [big](std::vector<at::Tensor>&& dy) { return std::vector<at::Tensor>{dy[0] * 2}; });
    EXPECT_TRUE(at::equal(
        torch::autograd::grad({y}, {leaf}, {at::ones({8}, at::kDouble)}, /*retain_graph=*/false).front(),
        at::full({8}, 2.0, at::kDouble)));
    EXPECT_EQ(big.use_count(), 1) << "the closure still holds what it captured";
    EXPECT_THROW(torch::autograd::grad({y}, {leaf}, {at::ones({8}, at::kDouble)}), c10::Error);
  }
  EXPECT_EQ(read_meter(at::kCPU).live_bytes, before);
}

}  // namespace
}  // namespace streambp
