// The decay's gate and the gated norm of a recurrent layer against plain ATen under autograd.
#include "streambp/ops/recurrent/gated_norm.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "streambp/memory/meter.h"
#include "streambp/ops/recurrent/delta_gates.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/ops/ops_testing.h"
#include "verify/tests/streambp/ops/without_kernels.h"

namespace streambp {
namespace {

TEST(LogDecay, IsMinusRateTimesSoftplus) {
  Parameter rate = parameter(random({5}, 1)), bias = parameter(random({5}, 2));
  // From where softplus is e^x to where it is x.
  const at::Tensor a = random({40, 5}, 3).mul_(20);
  expect_same(
      {a}, {&rate, &bias}, [&](const auto& in) { return log_decay(in[0], rate, bias); },
      [](const auto& in, const auto& p) {
        return -p[0].exp() * at::logaddexp(in[0] + p[1], at::zeros_like(in[0]));
      });
  EXPECT_TRUE((log_decay(a, rate, bias) <= 0).all().item<bool>());
}

TEST(LogDecay, WithABoundIsItTimesASigmoid) {
  for (const int64_t channels : {1, 3}) {  // of each head
    Parameter rate = parameter(random({5}, 1)), bias = parameter(random({5 * channels}, 2));
    const at::Tensor a = random({40, 5 * channels}, 3).mul_(6);
    expect_same(
        {a}, {&rate, &bias}, [&](const auto& in) { return log_decay(in[0], rate, bias, -2.5); },
        [&](const auto& in, const auto& p) {
          const at::Tensor logits = (in[0] + p[1]).view({40, 5, channels}) * p[0].exp().unsqueeze(1);
          return (-2.5 / (1 + (-logits).exp())).flatten(1);
        });
    const at::Tensor y = log_decay(a, rate, bias, -2.5);
    EXPECT_TRUE((y <= 0).logical_and(y >= -2.5).all().item<bool>());
    EXPECT_EQ(log_decay(a.to(at::kBFloat16), rate, bias, -2.5).scalar_type(), at::kFloat);
  }
}

TEST(LogDecay, IsFloat32ForBfloat16) {
  Parameter rate = parameter(random({5}, 1).to(at::kBFloat16)),
            bias = parameter(random({5}, 2).to(at::kFloat));
  const at::Tensor a = random({40, 5}, 3).to(at::kBFloat16).requires_grad_();
  const at::Tensor y = log_decay(a, rate, bias);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  const at::Tensor exact = a.detach().to(at::kDouble) + bias.value.to(at::kDouble);
  expect_near(y.detach().to(at::kDouble), -rate.value.to(at::kDouble).exp() * at::softplus(exact, 1, 40),
              "value", 1e-6);
  EXPECT_EQ(torch::autograd::grad({y}, {a}, {at::ones_like(y)}).front().scalar_type(), at::kBFloat16);
}

TEST(TimeStep, IsSoftplusBetweenItsLimits) {
  Parameter bias = parameter(random({5}, 2));
  const at::Tensor a = random({40, 5}, 3).mul_(5);
  for (const double high : {2.0, std::numeric_limits<double>::infinity()}) {
    expect_same(
        {a}, {&bias}, [&](const auto& in) { return time_step(in[0], bias, 0.1, high); },
        [&](const auto& in, const auto& p) {
          return at::logaddexp(in[0] + p[0], at::zeros_like(in[0])).clamp(0.1, high);
        });
    const at::Tensor steps = time_step(a, bias, 0.1, high);
    EXPECT_TRUE((steps == 0.1).any().item<bool>());
    EXPECT_EQ((steps == 2.0).any().item<bool>(), high == 2.0);
  }
}

TEST(TimeStep, DecaysByItsRate) {
  Parameter rate = parameter(random({5}, 1));
  expect_same(
      {random({40, 5}, 3).abs_()}, {&rate}, [&](const auto& in) { return decay_of_step(in[0], rate); },
      [](const auto& in, const auto& p) { return -p[0].exp() * in[0]; });
}

TEST(Skip, AddsWhatHeadsHaveRead) {
  Parameter skip = parameter(random({3}, 1));
  expect_same(
      {random({9, 3, 4}, 2), random({9, 12}, 3)}, {&skip},
      [&](const auto& in) { return add_skip(in[0], in[1], skip); },
      [](const auto& in, const auto& p) {
        return in[0] + p[0].unsqueeze(1) * in[1].view({9, 3, 4});
      });
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& z, const at::Tensor& weight, double eps) {
  return (weight * x * at::rsqrt(x.pow(2).mean(-1, true) + eps)).flatten(1) * at::silu(z);
}

class GatedNorm : public WithAndWithoutKernels {};
INSTANTIATE_TEST_SUITE_P(Ops, GatedNorm, testing::Bool(), KernelsName());

TEST_P(GatedNorm, IsTheNormTimesSilu) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{9, 3, 6}, {1, 1, 5}, {70, 4, 32}, {5, 2, 19}}) {
    Parameter w = parameter(random({shape[2]}, 1));
    expect_same(
        {random(shape, 2), random({shape[0], shape[1] * shape[2]}, 3)}, {&w},
        [&](const auto& in) { return gated_rms_norm(in[0], in[1], w, 1e-6); },
        [](const auto& in, const auto& p) { return plain_norm(in[0], in[1], p[0], 1e-6); });
  }
}

TEST_P(GatedNorm, NormsWhatIsGatedInGroups) {
  for (const int64_t rows : {1, 9, 700}) {
    for (const int64_t groups : {1, 2, 4}) {
      Parameter w = parameter(random({4 * 6}, 1));
      expect_same(
          {random({rows, 4, 6}, 2), random({rows, 24}, 3)}, {&w},
          [&](const auto& in) { return norm_of_gated(in[0], in[1], w, groups, 1e-5); },
          [&](const auto& in, const auto& p) {
            const at::Tensor gated = (in[0].flatten(1) * at::silu(in[1])).view({rows, groups, -1});
            return p[0] * (gated * at::rsqrt(gated.pow(2).mean(-1, true) + 1e-5)).flatten(1);
          });
    }
  }
}

TEST_P(GatedNorm, LeavesAFrozenWeightAlone) {
  Parameter w = parameter(random({6}, 1), /*trainable=*/false);
  const at::Tensor weight = w.value;
  expect_same(
      {random({9, 3, 6}, 2), random({9, 18}, 3)}, {},
      [&](const auto& in) { return gated_rms_norm(in[0], in[1], w, 1e-6); },
      [&](const auto& in, const auto&) { return plain_norm(in[0], in[1], weight, 1e-6); });
  EXPECT_FALSE(w.gradient.defined());
}

TEST_P(GatedNorm, TakesBfloat16) {
  Parameter w = parameter(random({32}, 1).to(at::kBFloat16));
  const at::Tensor x = random({40, 3, 32}, 2).to(at::kBFloat16).requires_grad_(),
                   z = random({40, 96}, 3).to(at::kBFloat16).requires_grad_();
  const at::Tensor y = gated_rms_norm(x, z, w, 1e-6);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto exact = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
  expect_near(exact(y), plain_norm(exact(x), exact(z), exact(w.value), 1e-6), "value", 4e-3);
  for (const at::Tensor& d : torch::autograd::grad({y}, {x, z}, {at::ones_like(y)}))
    EXPECT_EQ(d.scalar_type(), at::kBFloat16);
}

TEST(GatedNormKernels, GiveTheSameBitsOnAnyNumberOfThreads) {
  for (const auto& [dtype, groups] : std::vector<std::pair<at::ScalarType, int64_t>>{
           {at::kFloat, 0}, {at::kDouble, 0}, {at::kBFloat16, 0}, {at::kFloat, 2}, {at::kBFloat16, 1}}) {
    const auto run = [&, dtype = dtype, groups = groups](int threads) {
      return on_threads(threads, [&] {
        Parameter w = parameter(random({groups == 0 ? 32 : 128}, 1).to(dtype));
        const at::Tensor x = random({900, 4, 32}, 2).to(dtype).requires_grad_(),
                         z = random({900, 128}, 3).to(dtype).requires_grad_();
        const at::Tensor y =
            groups == 0 ? gated_rms_norm(x, z, w, 1e-6) : norm_of_gated(x, z, w, groups, 1e-6);
        auto all = torch::autograd::grad({y}, {x, z}, {y.detach()});
        all.push_back(y.detach());
        all.push_back(w.gradient);
        return all;
      });
    };
    const auto first = run(1);
    for (const int threads : {1, 2, 8}) {
      const auto again = run(threads);
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(at::equal(again[i], first[i])) << threads << ", " << i;
    }
  }
}

TEST(GatedNormKernels, AllocatesTheSameOnMeta) {
  install_meters();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto peak = [&](c10::Device device) {
      const auto options = at::TensorOptions().dtype(dtype).device(device);
      Parameter w{"weight", at::ones({32}, options), at::zeros({32}, options)};
      const at::Tensor x = at::zeros({50, 3, 32}, options).requires_grad_(),
                       z = at::zeros({50, 96}, options).requires_grad_();
      const int64_t before = read_meter(device).live_bytes;
      reset_peak(device);
      const at::Tensor y = gated_rms_norm(x, z, w, 1e-6);
      torch::autograd::grad({y}, {x, z}, {y.detach()});
      return read_meter(device).peak_bytes - before;
    };
    EXPECT_EQ(peak(at::kMeta), peak(at::kCPU));
  }
}

}  // namespace
}  // namespace streambp
