// The fused CPU kernels against the same formulas op by op in ATen: every instruction set that this machine
// has, every dtype, sizes around a register's, strided inputs, infinities.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "streambp/ops/fused.h"
#include "streambp/ops/head/target_softmax.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/norm_rope.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble);
}

/// What a dtype's results may differ by from those of exact arithmetic on the same inputs.
double limit_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 2e-15 : 1e-6;
}

/// Results of one kind of check; prints the worst of them when it goes.
class Errors {
 public:
  Errors(const char* what, double limit) : what_(what), limit_(limit) {}
  ~Errors() { fmt::print("{}: worst relative error {:.2e}, limit {:.0e}\n", what_, worst_, limit_); }
  Errors(const Errors&) = delete;
  Errors& operator=(const Errors&) = delete;

  void check(const at::Tensor& got, const at::Tensor& expected, const std::string& where) {
    ASSERT_EQ(got.sizes(), expected.sizes()) << where;
    const double difference = (wide(got) - wide(expected)).norm().item<double>();
    const double size = wide(expected).norm().item<double>();
    const double error = size == 0.0 ? difference : difference / size;
    EXPECT_TRUE(error <= limit_) << what_ << ", " << where << ": relative error " << error;
    worst_ = std::fmax(worst_, error);
  }

 private:
  std::string what_;
  double limit_;
  double worst_ = 0.0;
};

/// A kernel set by name and one dtype.
using Subject = std::tuple<std::string, at::ScalarType>;

class CpuKernels : public testing::TestWithParam<Subject> {
 protected:
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
  at::Tensor sample(at::IntArrayRef shape, uint64_t seed) const { return random(shape, seed).to(dtype()); }

  /// Calls body(S{}, kernels of S).
  template <typename Body>
  void with_kernels(Body body) const {
    for (const cpu::KernelSet& set : cpu::available_kernels()) {
      if (set.instruction_set != std::get<0>(GetParam())) continue;
      if (dtype() == at::kDouble) {
        body(double{}, set.of<double>().elementwise);
      } else {
        body(float{}, set.of<float>().elementwise);
      }
    }
  }
};

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const cpu::KernelSet& set : cpu::available_kernels()) names.emplace_back(set.instruction_set);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Sets, CpuKernels,
                         testing::Combine(testing::ValuesIn(instruction_sets()),
                                          testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& subject) {
                           return std::get<0>(subject.param) + "_" +
                                  c10::toString(std::get<1>(subject.param));
                         });

struct HeadShape {
  int64_t tokens, heads, size, half;
};
const std::vector<HeadShape> kHeadShapes = {{1, 1, 1, 0},     {1, 2, 2, 1},   {3, 2, 6, 3},
                                            {5, 1, 17, 0},    {4, 3, 64, 32}, {3, 2, 80, 20},
                                            {150, 1, 34, 17}, {2, 1, 515, 0}, {2, 4, 10, 2}};

RopeTable table_of(int64_t tokens, int64_t half, at::ScalarType dtype) {
  return {random({tokens, half}, 11).to(dtype), random({tokens, half}, 12).to(dtype)};
}

RopeTable wide(const RopeTable& table) {
  return {wide(table.cosine), wide(table.sine)};
}

TEST_P(CpuKernels, NormAndRotation) {
  Errors errors("norm and rotation", limit_of(dtype()));
  for (const auto& [tokens, heads, size, half] : kHeadShapes) {
    for (const bool adds_one : {false, true}) {
      const std::string where =
          fmt::format("[{}, {}, {}], half {}, adds_one {}", tokens, heads, size, half, adds_one);
      const at::Tensor x = sample({tokens, heads, size}, 1), dy = sample({tokens, heads, size}, 2);
      const at::Tensor w = sample({size}, 3), residual = sample({tokens, heads, size}, 4);
      const RopeTable table = table_of(tokens, half, dtype());
      at::Tensor y = at::empty_like(x), dx = at::empty_like(x),
                 rstd = at::empty({tokens, heads, 1}, x.options());
      at::Tensor recent = at::zeros_like(w), total = at::zeros({size}, at::kDouble);
      with_kernels([&](auto number, const auto& kernels) {
        using S = decltype(number);
        cpu::NormRope<S> op{heads, size, w.const_data_ptr<S>(), adds_one, 1e-6, rstd.data_ptr<S>()};
        if (half > 0) {
          op.cosine = table.cosine.const_data_ptr<S>();
          op.sine = table.sine.const_data_ptr<S>();
          op.half = op.table_stride = half;
        }
        const cpu::Heads<const S> rows{x.const_data_ptr<S>(), heads * size, size};
        const cpu::Heads<const S> d_rows{dy.const_data_ptr<S>(), heads * size, size};
        kernels.norm_rope.forward(op, rows, residual.const_data_ptr<S>(), y.data_ptr<S>(), 0, tokens);
        kernels.norm_rope.backward(op, rows, d_rows, dx.data_ptr<S>(),
                                   {recent.data_ptr<S>(), total.data_ptr<double>()}, 0, tokens);
      });
      Parameter weight = parameter(wide(w));
      const RmsNorm norm{&weight, 1e-6, adds_one};
      RmsNormSaved saved;
      const at::Tensor normed = rms_norm_forward_plain(wide(x), norm, saved);
      errors.check(y, rope_plain(normed, wide(table), 1.0) + wide(residual), "value of " + where);
      const at::Tensor d_normed = rope_plain(wide(dy), wide(table), -1.0);
      const at::Tensor d_x = rms_norm_backward_plain(d_normed, saved, norm);
      // A head of one number is normalised to its sign: the gradient is what eps leaves of it.
      if (size > 1) errors.check(dx, d_x, "gradient of x of " + where);
      errors.check(total, weight.gradient, "gradient of the weight of " + where);
      EXPECT_TRUE(at::equal(recent, at::zeros_like(recent))) << "a short sum is left over";
    }
  }
}

TEST_P(CpuKernels, Gate) {
  Errors errors("gate", limit_of(dtype()));
  for (const auto& [rows, size] : {std::pair<int64_t, int64_t>{1, 1}, {3, 6}, {5, 17}, {2, 64}, {4, 515}}) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      for (const bool weighted : {false, true}) {
        const std::string where = fmt::format("[{}, {}], activation {}, weighted {}", rows, size,
                                              static_cast<int>(activation), weighted);
        // Wide enough for both tails of the activation.
        const at::Tensor gate_proj = sample({rows, size}, 1) * 4, up_proj = sample({rows, size}, 2);
        const at::Tensor d = sample({rows, size}, 3), weights = sample({rows, 1}, 4);
        const at::Tensor d_gate = gate_proj.clone(), d_up = up_proj.clone(), product = d.clone();
        at::Tensor value = at::empty_like(gate_proj), d_weights = at::empty_like(weights);
        with_kernels([&](auto number, const auto& kernels) {
          using S = decltype(number);
          kernels.gate.product(activation, gate_proj.const_data_ptr<S>(), up_proj.const_data_ptr<S>(),
                               value.data_ptr<S>(), 0, gate_proj.numel());
          kernels.gate.backward(
              {activation, size, d_gate.data_ptr<S>(), d_up.data_ptr<S>(), product.data_ptr<S>(), true,
               weighted ? weights.const_data_ptr<S>() : nullptr, d_weights.data_ptr<S>()},
              0, rows);
        });
        at::Tensor expected_gate = wide(gate_proj), expected_up = wide(up_proj),
                   expected_product = wide(d).clone();
        expected_gate = expected_gate.clone();
        expected_up = expected_up.clone();
        at::Tensor expected_weights;
        gate_backward_plain(activation, expected_gate, expected_up, expected_product, true,
                            weighted ? wide(weights) : at::Tensor(), &expected_weights);
        errors.check(value, gate_plain(activation, wide(gate_proj), wide(up_proj)), "value of " + where);
        errors.check(product, expected_product, "product of " + where);
        errors.check(d_gate, expected_gate, "gradient of gate of " + where);
        errors.check(d_up, expected_up, "gradient of up of " + where);
        if (weighted) errors.check(d_weights, expected_weights, "gradient of the weights of " + where);
      }
    }
  }
}

/// The log-probabilities of logits' targets and the gradient, by one set.
struct TargetResult {
  at::Tensor log_probabilities, gradient;
};

TEST_P(CpuKernels, TargetSoftmax) {
  Errors values("log-probabilities", dtype() == at::kDouble ? 1e-14 : 1e-6);
  Errors gradients("gradients of logits", dtype() == at::kDouble ? 1e-14 : 1e-6);
  const auto run = [&](const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& d,
                       double temperature) {
    TargetResult result{at::empty_like(d), logits.clone()};
    at::Tensor sums = at::empty({logits.size(0), 2}, at::kDouble);
    with_kernels([&](auto number, const auto& kernels) {
      using S = decltype(number);
      const cpu::TargetSoftmax<S> op{result.gradient.data_ptr<S>(), logits.size(1), 1.0 / temperature,
                                     targets.const_data_ptr<int64_t>(), sums.data_ptr<double>()};
      kernels.softmax.forward(op, result.log_probabilities.template data_ptr<double>(), 0, logits.size(0));
      kernels.softmax.backward(op, d.const_data_ptr<double>(), 0, logits.size(0));
    });
    return result;
  };
  const auto expected = [&](const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& d,
                            double temperature) {
    const at::Tensor leaf = wide(logits).requires_grad_();
    const at::Tensor log_p =
        at::log_softmax(leaf / temperature, 1).gather(1, targets.unsqueeze(1)).squeeze(1);
    return TargetResult{log_p.detach(), torch::autograd::grad({log_p}, {leaf}, {d}).front()};
  };
  for (const int64_t size : {1, 2, 17, 64, 515, 1024, 2051, 5000}) {
    for (const double temperature : {1.0, 0.7}) {
      for (const double scale : {0.0, 3.0, 1e4}) {
        const std::string where = fmt::format("V {}, temperature {}, logits of {}", size, temperature, scale);
        const at::Tensor logits = sample({4, size}, 1) * scale, d = random({4}, 2);
        if (size > 2) logits[1].narrow(0, 1, size / 2).fill_(-kInfinity);
        const at::Tensor targets = at::tensor({int64_t{0}, size - 1, size / 2, size - 1}, at::kLong);
        const auto got = run(logits, targets, d, temperature),
                   truth = expected(logits, targets, d, temperature);
        values.check(got.log_probabilities, truth.log_probabilities, where);
        gradients.check(got.gradient, truth.gradient, where);
      }
    }
  }
  // What ATen makes NaN is NaN here, and nothing else.
  for (const int64_t size : {3, 70, 3000}) {
    const at::Tensor logits = sample({4, size}, 1);
    logits[0].fill_(-kInfinity);
    logits[1][size / 2] = kInfinity;
    logits[2][size - 1] = std::nan("");
    const at::Tensor targets = at::zeros({4}, at::kLong), d = at::ones({4}, at::kDouble);
    const auto got = run(logits, targets, d, 1.0), truth = expected(logits, targets, d, 1.0);
    EXPECT_TRUE(at::equal(got.log_probabilities.isnan(), truth.log_probabilities.isnan()))
        << got.log_probabilities;
    EXPECT_TRUE(at::equal(got.gradient.isnan(), truth.gradient.isnan())) << "V " << size;
  }
}

/// Ops in bfloat16 round where ATen rounds op by op: what is left are the rare numbers that another order of
/// summation takes across a rounding boundary. One rounding more or less would be an error of 1e-3 or more.
constexpr double kSameRoundings = 3e-4;

class FusedOps : public testing::TestWithParam<at::ScalarType> {
 protected:
  double limit() const { return GetParam() == at::kBFloat16 ? kSameRoundings : 2 * limit_of(GetParam()); }
  at::Tensor sample(at::IntArrayRef shape, uint64_t seed) const { return random(shape, seed).to(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, FusedOps, testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

TEST_P(FusedOps, NormedRopeOfASliceOfAWiderProduct) {
  Errors errors("normed rope", limit());
  for (const bool has_norm : {false, true}) {
    for (const bool adds_one : {false, true}) {
      Parameter weight = parameter(sample({20}, 1)), plain_weight = parameter(sample({20}, 1));
      weight.gradient = weight.gradient.to(at::kFloat);
      plain_weight.gradient = plain_weight.gradient.to(at::kFloat);
      if (GetParam() == at::kDouble) {
        weight.gradient = weight.gradient.to(at::kDouble);
        plain_weight.gradient = plain_weight.gradient.to(at::kDouble);
      }
      const RmsNorm norm{&weight, 1e-6, adds_one}, plain_norm{&plain_weight, 1e-6, adds_one};
      const at::Tensor product = sample({133, 7 * 20}, 2);
      const at::Tensor x = product.narrow(1, 40, 60).view({133, 3, 20});
      // Every other head's gradient of a wider tensor.
      const at::Tensor dy = sample({133, 6, 20}, 3).slice(1, 0, 6, 2);
      const RopeTable table = table_of(200, 8, GetParam()).rows(50, 183);
      const at::Tensor leaf = x.detach().requires_grad_();
      const at::Tensor y = normed_rope(leaf, has_norm ? &norm : nullptr, table);
      const at::Tensor dx = torch::autograd::grad({y}, {leaf}, {dy}).front();
      RmsNormSaved saved;
      const at::Tensor normed = has_norm ? rms_norm_forward_plain(x, plain_norm, saved) : x;
      errors.check(y.detach(), rope_plain(normed, table, 1.0), "value");
      const at::Tensor d_normed = rope_plain(dy, table, -1.0);
      errors.check(dx, has_norm ? rms_norm_backward_plain(d_normed, saved, plain_norm) : d_normed,
                   "gradient");
      if (has_norm) errors.check(weight.gradient, plain_weight.gradient, "gradient of the weight");
    }
  }
}

TEST_P(FusedOps, NormsOfRows) {
  Errors errors("norms of rows", limit());
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 1}, {1, 6}, {300, 515}, {17, 3, 64}}) {
    for (const bool adds_one : {false, true}) {
      Parameter weight = parameter(sample({shape.back()}, 1), /*trainable=*/false);
      const RmsNorm norm{&weight, 1e-6, adds_one};
      const at::Tensor x = sample(shape, 2), residual = sample(shape, 3);
      RmsNormSaved saved, plain_saved;
      const at::Tensor expected = rms_norm_forward_plain(x, norm, plain_saved);
      errors.check(rms_norm_forward(x, norm, saved), expected, "value");
      EXPECT_EQ(saved.rstd.sizes(), plain_saved.rstd.sizes());
      errors.check(rms_norm_add(residual, x, norm), residual + expected, "sum");
    }
  }
}

TEST_P(FusedOps, GateAndItsBackwardPass) {
  Errors errors("gate", limit());
  const at::Tensor gate_proj = sample({301, 130}, 1) * 3, up_proj = sample({301, 130}, 2),
                   d = sample({301, 130}, 3);
  const at::Tensor weights = sample({301, 1}, 4);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    errors.check(gate(activation, gate_proj, up_proj), gate_plain(activation, gate_proj, up_proj), "value");
    for (const bool weighted : {false, true}) {
      at::Tensor got[4] = {gate_proj.clone(), up_proj.clone(), d.clone(), {}};
      at::Tensor expected[4] = {gate_proj.clone(), up_proj.clone(), d.clone(), {}};
      const at::Tensor row_weights = weighted ? weights : at::Tensor();
      gate_backward(activation, got[0], got[1], got[2], true, row_weights, &got[3]);
      gate_backward_plain(activation, expected[0], expected[1], expected[2], true, row_weights, &expected[3]);
      for (const int i : {0, 1, 2}) errors.check(got[i], expected[i], fmt::format("tensor {}", i));
      if (weighted) errors.check(got[3], expected[3], "row weights");
    }
    at::Tensor frozen = d.clone(), d_gate = gate_proj.clone(), d_up = up_proj.clone();
    gate_backward(activation, d_gate, d_up, frozen, /*wants_product=*/false);
    EXPECT_FALSE(frozen.defined());
  }
}

TEST(FusedOps, InfinitiesAndNanComeThroughTheGateAsThroughAten) {
  const at::Tensor gate_proj =
      at::tensor({-kInfinity, kInfinity, std::nan(""), -1e30, 1e30, -0.0, -800.0, 800.0});
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const at::Tensor x = gate_proj.to(dtype), ones = at::ones_like(x);
      EXPECT_TRUE(at::allclose(gate(activation, x, ones), gate_plain(activation, x, ones), 1e-6, 1e-30,
                               /*equal_nan=*/true))
          << gate(activation, x, ones) << gate_plain(activation, x, ones);
    }
  }
}

TEST(FusedOps, TheMetaDeviceGivesTheSameShapes) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  Parameter weight{"weight", at::empty({6}, options), at::empty({6}, options)};
  const RmsNorm norm{&weight, 1e-6};
  const at::Tensor x = at::empty({5, 3, 6}, options).requires_grad_();
  const RopeTable table{at::empty({5, 2}, options), at::empty({5, 2}, options)};
  const at::Tensor y = normed_rope(x, &norm, table);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(torch::autograd::grad({y}, {x}, {at::empty_like(x)}).front().sizes(), x.sizes());
  at::Tensor sums;
  EXPECT_EQ(target_log_probabilities(at::empty({5, 9}, options), at::empty({5, 1}, options.dtype(at::kLong)),
                                     1.0, sums)
                .sizes(),
            at::IntArrayRef({5}));
}

TEST(FusedOps, SumsForAWeightAreTheSameAgainWithSeveralThreads) {
  const at::Tensor x = random({700, 130}, 1).to(at::kFloat), dy = random({700, 130}, 2).to(at::kFloat);
  for (const int threads : {2, 8}) {
    const auto run = [&] {
      Parameter weight = parameter(random({130}, 3).to(at::kFloat));
      const RmsNorm norm{&weight, 1e-6};
      RmsNormSaved saved;
      rms_norm_forward(x, norm, saved);
      rms_norm_backward(dy, saved, norm);
      return weight.gradient;
    };
    const at::Tensor first = on_threads(threads, run);
    for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(at::equal(on_threads(threads, run), first));
  }
}

TEST(FusedOps, NormsAndRotationsAreThoseOfOneThread) {
  const at::Tensor x = random({700, 3, 40}, 1), dy = random({700, 3, 40}, 2);
  const RopeTable table{random({700, 20}, 4), random({700, 20}, 5)};
  const auto run = [&] {
    Parameter weight = parameter(random({40}, 3));
    const RmsNorm norm{&weight, 1e-6};
    const at::Tensor leaf = x.clone().requires_grad_();
    const at::Tensor dx = torch::autograd::grad({normed_rope(leaf, &norm, table)}, {leaf}, {dy}).front();
    return std::pair{dx, weight.gradient};
  };
  const auto [dx, dw] = on_threads(1, run);
  for (const int threads : {2, 3, 8}) {
    const auto [dx_shared, dw_shared] = on_threads(threads, run);
    EXPECT_TRUE(at::equal(dx_shared, dx)) << threads;
    EXPECT_TRUE((dw_shared - dw).norm().item<double>() <= 1e-13 * dw.norm().item<double>()) << threads;
  }
}

}  // namespace
}  // namespace streambp
