// Our CUDA kernels against the same formulas op by op in ATen, through the ops that call them. On every
// machine the kernels' very source runs on the host, its threads in three orders; where there is a CUDA
// device, the kernels themselves run on it.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "streambp/error.h"
#include "streambp/ops/attention/attention_kernels.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/on_host.h"
#include "streambp/ops/head/target_softmax.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/runtime/device.h"
#include "verify/tests/streambp/model/quantized/quantized_testing.h"
#include "verify/tests/streambp/ops/ops_testing.h"
#include "verify/tests/streambp/ops/serve_cpu.h"
#include "verify/tests/turns.h"

namespace streambp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kCPU, at::kDouble);
}

/// Where the kernels run: on the host in one of three orders of threads, or on a GPU.
enum class Where { kForward, kBackward, kShuffled, kDevice };
constexpr const char* kWhereNames[] = {"host_forward", "host_backward", "host_shuffled", "device"};

/// The name of the tests, where GoogleTest would print the bytes of the enumerator.
void PrintTo(Where where, std::ostream* out) {
  *out << kWhereNames[static_cast<int>(where)];
}

using Subject = std::tuple<Where, at::ScalarType>;

class CudaKernels : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const Where where = std::get<0>(GetParam());
    if (where != Where::kDevice) {
      cuda::on_host::set_order({static_cast<cuda::on_host::Turns>(where)});
      serve_.emplace(cuda::kernels_on_host());
      return;
    }
    try {
      device_ = open_device("cuda");
    } catch (const InputError& error) {
      GTEST_SKIP() << "needs a CUDA device: " << error.what();
    }
    ASSERT_NE(cuda::kernels(), nullptr) << "a CUDA device, and none of our kernels";
  }
  void TearDown() override { cuda::on_host::set_order({}); }

  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
  at::ScalarType sum_dtype() const { return dtype() == at::kDouble ? at::kDouble : at::kFloat; }
  c10::Device device() const { return device_; }

  /// Against exact arithmetic on the same inputs; in bfloat16 a result is rounded up to three times, by 2^-9
  /// of it at most.
  double limit() const { return dtype() == at::kDouble ? 4e-15 : dtype() == at::kFloat ? 1e-6 : 6e-3; }

  at::Tensor sample(at::IntArrayRef shape, uint64_t seed) const {
    return random(shape, seed).to(device_, dtype());
  }
  /// Never written to: shows as NaN what a kernel leaves out.
  at::Tensor unwritten(at::IntArrayRef shape) const {
    return at::full(shape, std::nan(""), at::TensorOptions().device(device_).dtype(dtype()));
  }
  /// x in the middle of a wider tensor, whose rows begin `offset` numbers further.
  static at::Tensor inside(const at::Tensor& x, int64_t offset) {
    at::Tensor wider = at::full({x.size(0), x.size(1) + 3 * offset}, std::nan(""), x.options());
    at::Tensor middle = wider.narrow(1, offset, x.size(1));
    middle.copy_(x);
    return middle;
  }

  void check(const at::Tensor& got, const at::Tensor& expected, const std::string& what, double limit) {
    ASSERT_EQ(got.sizes(), expected.sizes()) << what;
    const double difference = (wide(got) - wide(expected)).norm().item<double>();
    const double size = wide(expected).norm().item<double>();
    const double error = size == 0.0 ? difference : difference / size;
    EXPECT_TRUE(error <= limit) << what << ": relative error " << error << ", limit " << limit;
  }
  void check(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
    check(got, expected, what, limit());
  }

 private:
  std::optional<ServeCpu> serve_;
  c10::Device device_ = at::kCPU;
};

std::string name_of(const testing::TestParamInfo<Subject>& subject) {
  return std::string(kWhereNames[static_cast<int>(std::get<0>(subject.param))]) + "_" +
         c10::toString(std::get<1>(subject.param));
}

/// Each dtype in one of the orders, in a thorough run in all.
std::vector<Subject> on_host(const std::vector<at::ScalarType>& dtypes) {
  std::vector<Subject> subjects;
  size_t turn = 2;
  for (const at::ScalarType dtype : dtypes) {
    for (const Where where :
         verify::in_turns<Where>({Where::kForward, Where::kBackward, Where::kShuffled}, 1, turn))
      subjects.emplace_back(where, dtype);
  }
  return subjects;
}
const auto kOnDevice = testing::Values(Where::kDevice);
const auto kDtypes = testing::Values(at::kFloat, at::kDouble, at::kBFloat16);
INSTANTIATE_TEST_SUITE_P(Host, CudaKernels,
                         testing::ValuesIn(on_host({at::kFloat, at::kDouble, at::kBFloat16})), name_of);
INSTANTIATE_TEST_SUITE_P(Device, CudaKernels, testing::Combine(kOnDevice, kDtypes), name_of);

struct HeadShape {
  int64_t tokens, heads, size, half;
};
/// Rows for a part of a warp, for a warp and for a block; whole packs and not; more rows than a block takes.
const std::vector<HeadShape> kHeadShapes = {
    {1, 1, 1, 0},   {1, 2, 2, 1},   {3, 2, 6, 3},  {5, 1, 17, 0},    {37, 3, 64, 32}, {3, 2, 80, 16},
    {9, 5, 34, 17}, {2, 1, 515, 0}, {2, 4, 10, 2}, {11, 2, 128, 64}, {3, 1, 4096, 0}, {7, 1, 1000, 40}};

TEST_P(CudaKernels, NormAndRotation) {
  for (const auto& [tokens, heads, size, half] : kHeadShapes) {
    for (const bool has_norm : {true, false}) {
      for (const bool adds_one : {false, true}) {
        if (!has_norm && (half == 0 || adds_one)) continue;
        for (const int64_t offset : {0, 3}) {  // 3: packs of 16 bytes don't fit
          const std::string what = fmt::format("[{}, {}, {}], half {}, norm {}, adds_one {}, offset {}",
                                               tokens, heads, size, half, has_norm, adds_one, offset);
          const auto heads_of = [&](uint64_t seed) {
            const at::Tensor rows = sample({tokens, heads * size}, seed);
            return (offset == 0 ? rows : inside(rows, offset)).view({tokens, heads, size});
          };
          const at::Tensor x = heads_of(1), dy = heads_of(2), residual = sample({tokens, heads, size}, 4);
          const at::Tensor w = sample({size}, 3);
          Parameter weight{"w", w, at::zeros({size}, w.options().dtype(sum_dtype()))};
          Parameter exact_weight = parameter(wide(w));
          const RmsNorm norm{&weight, 1e-6, adds_one}, exact_norm{&exact_weight, 1e-6, adds_one};
          const RopeTable table{sample({tokens, half}, 11), sample({tokens, half}, 12)};
          const RopeTable exact_table{wide(table.cosine), wide(table.sine)};
          const NormAndRope op{has_norm ? &norm : nullptr, half > 0 ? &table : nullptr};
          ASSERT_TRUE(op.is_fused(x));
          at::Tensor rstd;
          const at::Tensor y = norm_rope_forward(x, op, residual, rstd);
          const at::Tensor dx = norm_rope_backward(dy, op, x, rstd);
          RmsNormSaved saved;
          const at::Tensor normed = has_norm ? rms_norm_forward_plain(wide(x), exact_norm, saved) : wide(x);
          const auto rotated = [&](const at::Tensor& rows, double sign) {
            return half > 0 ? rope_plain(rows, exact_table, sign) : rows;
          };
          check(y, rotated(normed, 1.0) + wide(residual), "value of " + what);
          const at::Tensor d_normed = rotated(wide(dy), -1.0);
          // A head of one number is normalised to its sign: the gradient is what eps leaves of it.
          if (size > 1 || !has_norm)
            check(dx, has_norm ? rms_norm_backward_plain(d_normed, saved, exact_norm) : d_normed,
                  "gradient of x of " + what);
          else if (has_norm)
            rms_norm_backward_plain(d_normed, saved, exact_norm);
          if (has_norm) check(weight.gradient, exact_weight.gradient, "gradient of the weight of " + what);
          if (has_norm) continue;
          const at::Tensor in_place = x.clone(at::MemoryFormat::Contiguous);
          const at::Tensor over = norm_rope_forward(in_place, op, {}, rstd, /*overwrite=*/true);
          EXPECT_EQ(over.const_data_ptr(), in_place.const_data_ptr());
          check(over, rotated(wide(x), 1.0), "in place: " + what);
        }
      }
    }
  }
}

TEST_P(CudaKernels, GateAndItsBackwardPass) {
  for (const auto& [rows, size] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 6}, {5, 17}, {2, 64}, {4, 515}, {3, 2056}}) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const at::Tensor gate_proj = sample({rows, size}, 1) * 4, up_proj = sample({rows, size}, 2);
      const at::Tensor d = sample({rows, size}, 3), weights = sample({rows, 1}, 4);
      for (const bool weighted : {false, true}) {
        const std::string what = fmt::format("[{}, {}], activation {}, weighted {}", rows, size,
                                             static_cast<int>(activation), weighted);
        at::Tensor got[4] = {gate_proj.clone(), up_proj.clone(), d.clone(), {}};
        at::Tensor exact[4] = {wide(gate_proj).clone(), wide(up_proj).clone(), wide(d).clone(), {}};
        gate_backward(activation, got[0], got[1], got[2], true, weighted ? weights : at::Tensor(), &got[3]);
        gate_backward_plain(activation, exact[0], exact[1], exact[2], true,
                            weighted ? wide(weights) : at::Tensor(), &exact[3]);
        for (const int i : {0, 1, 2})
          check(got[i], exact[i], fmt::format("tensor {} of {}", i, what), 2 * limit());
        // A sum of numbers of both signs that were rounded each.
        if (weighted)
          check(got[3], exact[3], "row weights of " + what, dtype() == at::kBFloat16 ? 0.05 : 20 * limit());
      }
      const at::Tensor value = gate(activation, gate_proj, up_proj);
      check(value, gate_plain(activation, wide(gate_proj), wide(up_proj)), "value");
      const at::Tensor over = gate_proj.clone();
      EXPECT_TRUE(at::equal(gate(activation, over, up_proj, /*overwrite=*/true), value));
      EXPECT_TRUE(at::equal(over, value));
    }
  }
}

TEST_P(CudaKernels, TargetSoftmax) {
  for (const int64_t size : {1, 2, 17, 64, 515, 1024, 2051, 5000}) {
    for (const double temperature : {1.0, 0.7}) {
      for (const double scale : {0.0, 3.0, 1e4}) {
        const std::string what = fmt::format("V {}, temperature {}, logits of {}", size, temperature, scale);
        const at::Tensor logits = sample({4, size}, 1) * scale, d = random({4}, 2).to(device());
        if (size > 2) logits[1].narrow(0, 1, size / 2).fill_(-kInfinity);
        const at::Tensor targets =
            at::tensor({int64_t{0}, size - 1, size / 2, size - 1}, at::kLong).to(device());
        at::Tensor gradient = logits.clone(), sums;
        const at::Tensor got = target_log_probabilities(gradient, targets, temperature, sums);
        target_log_probabilities_backward(gradient, targets, temperature, sums, d);
        const at::Tensor leaf = wide(logits).requires_grad_();
        const at::Tensor log_p =
            at::log_softmax(leaf / temperature, 1).gather(1, targets.to(at::kCPU).unsqueeze(1)).squeeze(1);
        const double limit = dtype() == at::kDouble ? 1e-14 : 1e-6;
        check(got, log_p.detach(), "values of " + what, limit);
        check(gradient, torch::autograd::grad({log_p}, {leaf}, {wide(d)}).front(), "gradients of " + what,
              dtype() == at::kBFloat16 ? 4e-3 : limit);
      }
    }
  }
}

TEST_P(CudaKernels, WhatAtenMakesNanIsNan) {
  for (const int64_t size : {3, 70, 3000}) {
    const at::Tensor logits = sample({4, size}, 1);
    logits[0].fill_(-kInfinity);
    logits[1][size / 2] = kInfinity;
    logits[2][size - 1] = std::nan("");
    const at::Tensor targets = at::zeros({4}, at::TensorOptions().device(device()).dtype(at::kLong));
    const at::Tensor d = at::ones({4}, at::TensorOptions().device(device()).dtype(at::kDouble));
    at::Tensor gradient = logits.clone(), sums;
    const at::Tensor got = target_log_probabilities(gradient, targets, 1.0, sums);
    target_log_probabilities_backward(gradient, targets, 1.0, sums, d);
    const at::Tensor expected = at::log_softmax(wide(logits), 1).select(1, 0);
    EXPECT_TRUE(at::equal(got.isnan().to(at::kCPU), expected.isnan())) << got;
    const at::Tensor is_nan = gradient.isnan().to(at::kCPU);
    for (int64_t row = 0; row < 4; ++row) {
      EXPECT_EQ(is_nan[row].all().item<bool>(), row < 3) << "row " << row;
      EXPECT_EQ(is_nan[row].any().item<bool>(), row < 3) << "row " << row;
    }
  }
}

TEST_P(CudaKernels, MergeOfAttention) {
  for (const auto& [tokens, heads, size] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 2, 17}, {9, 5, 64}, {37, 2, 128}, {2, 3, 256}}) {
    const std::string what = fmt::format("[{}, {}, {}]", tokens, heads, size);
    const auto sums = [&](uint64_t seed) {
      return (random({heads, tokens}, seed) * 20).to(device(), sum_dtype()).t();
    };
    // As kernels give them: the one by rows, the other by heads.
    AttentionBlock all{sample({tokens, heads, size}, 1), sums(2)};
    const AttentionBlock block{sample({heads, tokens, size}, 3).transpose(0, 1), sums(4)};
    all.log_sum_exp[0].fill_(-kInfinity);
    all.output[0].zero_();
    block.log_sum_exp[tokens - 1].fill_(tokens > 1 ? -kInfinity : 3.0);
    const AttentionBlock before{all.output.clone(), all.log_sum_exp.clone()};
    const at::Tensor a = wide(all.log_sum_exp), b = wide(block.log_sum_exp), both = at::logaddexp(a, b);
    const at::Tensor expected = wide(all.output) * (a - both).exp().unsqueeze(-1) +
                                wide(block.output) * (b - both).exp().unsqueeze(-1);
    merge(all, block);
    // A share is the exponential of a difference of log-sum-exps, which are some 30 units of 1 here.
    const double share_limit = std::max(limit(), 1e4 * std::numeric_limits<double>::epsilon()) * 4;
    check(all.output, expected, "output of " + what, share_limit);
    check(all.log_sum_exp, both, "log-sum-exps of " + what, dtype() == at::kDouble ? 4e-15 : 1e-6);
    if (dtype() != at::kBFloat16) continue;
    // Into a wide result nothing is rounded; what is wide already is rounded once.
    AttentionBlock wide_all{before.output.to(at::kFloat), before.log_sum_exp.clone()};
    merge(wide_all, block);
    check(wide_all.output, expected, "wide output of " + what, 4e-6);
    AttentionBlock narrow_all{before.output.clone(), before.log_sum_exp.clone()};
    merge(narrow_all, {block.output.to(at::kFloat), block.log_sum_exp});
    EXPECT_TRUE(at::equal(narrow_all.output, all.output)) << what;
    EXPECT_TRUE(at::equal(wide_all.output.to(at::kBFloat16), all.output)) << what;
  }
  AttentionBlock none{at::zeros({2, 1, 4}, sample({1}, 1).options()),
                      at::full({2, 1}, -kInfinity, sample({1}, 1).options().dtype(sum_dtype()))};
  merge(none, {none.output.clone(), none.log_sum_exp.clone()});
  EXPECT_TRUE(at::equal(none.output, at::zeros_like(none.output))) << "rows that have seen nothing";
}

TEST_P(CudaKernels, RowsAreAddedExactly) {
  for (const int64_t size : {1, 4, 33, 512, 1040}) {
    for (const bool wide_gradient : {false, true}) {
      const int64_t tokens = 300, table = 7;
      const at::Tensor indices = at::randint(0, table, {tokens}, at::detail::createCPUGenerator(5),
                                             at::TensorOptions().dtype(at::kLong));
      indices.narrow(0, 0, 90).fill_(table - 1);
      // Small integers: every sum of a test's size is exact, and rounded once.
      const at::Tensor dx = integers({tokens, size}, 1, at::kDouble),
                       before = integers({table, size}, 2, at::kDouble);
      const auto gradient_dtype = wide_gradient ? sum_dtype() : dtype();
      const at::Tensor expected = before.index_add(0, indices, dx);
      Parameter embedding{"embedding", before.to(device(), dtype()),
                          before.clone().to(device(), gradient_dtype)};
      const at::Tensor rows = size > 4 ? inside(dx.to(device(), dtype()), 8) : dx.to(device(), dtype());
      accumulate_rows(embedding, indices.to(device()), rows);
      EXPECT_TRUE(at::equal(embedding.gradient.to(at::kCPU), expected.to(gradient_dtype))) << "size " << size;
    }
  }
}

TEST_P(CudaKernels, RowsOfAscendingIndicesNeedNoOrder) {
  for (const int64_t size : {1, 8, 33, 512}) {
    const at::Tensor indices = at::tensor({1, 2, 5, 6, 40}, at::kLong);
    const at::Tensor rows = integers({5, size}, 1, at::kDouble),
                     before = integers({41, size}, 2, at::kDouble);
    at::Tensor sum = before.clone().to(device(), dtype());
    add_sorted_rows(sum, indices.to(device()), rows.to(device(), dtype()));
    EXPECT_TRUE(at::equal(wide(sum), before.index_add(0, indices, rows))) << "size " << size;
  }
}

TEST_P(CudaKernels, DequantisedNumbersAreThoseOfAten) {
  uint64_t seed = 0;
  for (const RandomQuantized& kind : random_kinds()) {
    const QuantizedTensor quantized = random_quantized(kind, ++seed);
    const at::Tensor expected = at::empty(kind.shape, dtype());
    dequantize_plain(quantized, expected);
    QuantizedTensor there = quantized;
    for (at::Tensor* part : {&there.packed, &there.absmax, &there.nested_absmax, &there.nested_code})
      if (part->defined()) *part = part->to(device());
    for (const int64_t offset : {0, 1}) {  // 1: packs of 16 bytes don't fit
      const at::Tensor into = unwritten({expected.numel() + offset}).narrow(0, offset, expected.numel());
      dequantize_into(there, into.view(kind.shape));
      EXPECT_TRUE(same_bits(into.view(kind.shape).cpu(), expected))
          << quant_type_name(kind.type) << " " << at::IntArrayRef(kind.shape) << " in blocks of "
          << kind.blocksize << ", " << kind.nested_blocksize << ", of " << kind.dtype << ", offset "
          << offset;
    }
  }
}

TEST_P(CudaKernels, ARepeatedCallGivesTheSameBits) {
  const at::Tensor x = sample({700, 2, 64}, 1), dy = sample({700, 2, 64}, 2), w = sample({64}, 3);
  const at::Tensor gate_proj = sample({40, 300}, 4), weights = sample({40, 1}, 5);
  std::vector<std::vector<at::Tensor>> runs;
  for (int run = 0; run < 2; ++run) {
    Parameter weight{"w", w, at::zeros_like(w)};
    const RmsNorm norm{&weight, 1e-6};
    at::Tensor rstd;
    const at::Tensor y = norm_rope_forward(x, {&norm}, {}, rstd);
    const at::Tensor dx = norm_rope_backward(dy, {&norm}, x, rstd);
    at::Tensor g[4] = {gate_proj.clone(), gate_proj.clone(), gate_proj.clone(), {}};
    gate_backward(Activation::kSilu, g[0], g[1], g[2], true, weights, &g[3]);
    runs.push_back({y, dx, weight.gradient, g[0], g[3]});
  }
  for (size_t i = 0; i < runs[0].size(); ++i)
    EXPECT_TRUE(at::equal(runs[0][i], runs[1][i])) << "tensor " << i;
}

TEST(CudaLibrary, SaysWhyKernelsCantBeHad) {
  const cuda::KernelTable* const loaded = cuda::set_kernels(nullptr);  // on a GPU, the tests' before this one
  EXPECT_NE(cuda::load_kernels("no/such/libstreambp_cuda.so", 63), "");
  EXPECT_EQ(cuda::kernels(), nullptr);
  cuda::set_kernels(loaded);
}

}  // namespace
}  // namespace streambp
