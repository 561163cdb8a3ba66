// The attention kernels of GPU libraries themselves, where there is a CUDA device; on the meta device what
// they take.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/attention.h"
#include "streambp/ops/attention_device.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/device.h"
#include "verify/tests/streambp/ops/attention_device_testing.h"

namespace streambp {
namespace {

struct LibraryCase {
  const char* name;
  int64_t queries, keys, heads, key_heads, size;
  bool causal = false;
  int64_t window = 0;
  std::vector<int64_t> offsets = {};
};

void PrintTo(const LibraryCase& block, std::ostream* out) {
  *out << block.name;
}

using LibrarySubject = std::tuple<const char*, LibraryCase>;

class DeviceLibrary : public testing::TestWithParam<LibrarySubject> {};

INSTANTIATE_TEST_SUITE_P(
    cuda, DeviceLibrary,
    testing::Combine(
        testing::Values("flash", "cudnn"),
        testing::Values(LibraryCase{"square", 300, 300, 4, 2, 64, true},
                        LibraryCase{"rectangle", 200, 1500, 4, 2, 128},
                        LibraryCase{"few_queries", 3, 4000, 8, 1, 128},
                        LibraryCase{"large_heads", 130, 257, 2, 2, 256},
                        LibraryCase{"lower_right", 100, 333, 4, 2, 64, true},
                        LibraryCase{"window", 200, 327, 4, 2, 64, true, 128},
                        LibraryCase{"packed", 300, 300, 4, 2, 64, true, 0, {0, 1, 130, 130, 300}},
                        LibraryCase{"packed_window", 300, 300, 4, 2, 64, true, 40, {0, 9, 300}})),
    [](const auto& subject) {
      return std::string(std::get<0>(subject.param)) + "_" + std::get<1>(subject.param).name;
    });

/// Forward, and backward as a block of rows that have seen other keys too, against the formula in float64.
TEST_P(DeviceLibrary, GivesTheFormulasValuesAndGradients) {
  c10::Device device = at::kCPU;
  try {
    device = open_device("cuda");
  } catch (const InputError& error) {
    GTEST_SKIP() << "needs a CUDA device: " << error.what();
  }
  const auto& [name, block] = GetParam();
  const auto all = library_attention();
  const DeviceAttention& library = *std::find_if(
      all.begin(), all.end(), [&, &wanted = name](const DeviceAttention& one) { return one.name == wanted; });
  // Heads strided by others', as a fused projection leaves them.
  const auto sample = [&](int64_t rows, int64_t heads, uint64_t seed) {
    return random({rows, heads + 3, block.size}, seed).to(at::kBFloat16).to(device).narrow(1, 2, heads);
  };
  const AttentionOperands x{sample(block.queries, block.heads, 1),
                            sample(block.keys, block.key_heads, 2),
                            sample(block.keys, block.key_heads, 3),
                            block.causal,
                            block.window,
                            1.0 / std::sqrt(static_cast<double>(block.size)),
                            block.offsets};
  if (!library.lower_right && x.causal && !x.is_square()) GTEST_SKIP() << "not for " << name;
  AttentionOperands exact = x;
  for (at::Tensor* each : {&exact.q, &exact.k, &exact.v}) *each = each->to(at::kCPU, at::kDouble);
  AttentionBlock got;
  try {
    got = library.forward(x);
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::Error& error) {
    if (library.lower_right) throw;
    GTEST_SKIP() << name << " has no kernel for it: " << error.what_without_backtrace();
  }
  const auto check = [](const at::Tensor& value, const at::Tensor& expected, double limit, const char* what) {
    const at::Tensor wide = value.to(at::kCPU, at::kDouble);
    ASSERT_EQ(wide.sizes(), expected.sizes()) << what;
    const double error = (wide - expected).norm().item<double>() / expected.norm().item<double>();
    EXPECT_TRUE(error <= limit) << what << ": " << error;
  };
  // A result in bfloat16 is rounded by up to 2^-9, and what it is made of before.
  const Formula formula(exact);
  check(got.output, formula.output.detach(), 8e-3, "output");
  check(got.log_sum_exp, formula.log_sum_exp.detach().t(), 1e-3, "log-sum-exps");
  const at::Tensor d = random({block.heads, block.queries, block.size}, 4).transpose(0, 1).contiguous();
  const at::Tensor rest =
      random({block.queries, block.heads, block.size}, 5).to(at::kBFloat16).to(at::kDouble);
  // Half of each row's weight lies with keys of which this block knows nothing.
  const AttentionBlock whole{0.5 * (formula.output.detach() + rest),
                             formula.log_sum_exp.detach() + std::log(2.0)};
  const AttentionBlock saved{whole.output.to(at::kBFloat16).to(device).contiguous(),
                             whole.log_sum_exp.to(at::kFloat).to(device).contiguous()};
  const at::Tensor dy = d.to(at::kBFloat16);
  const AttentionBlockGradients gradients = library.backward(x, dy.to(device), saved);
  const AttentionBlockGradients expected = Library::backward_of(
      exact, dy.to(at::kDouble), {saved.output.to(at::kCPU, at::kDouble), whole.log_sum_exp});
  check(gradients.d_queries, expected.d_queries, 1.5e-2, "gradient of queries");
  check(gradients.d_keys, expected.d_keys, 1.5e-2, "gradient of keys");
  check(gradients.d_values, expected.d_values, 1.5e-2, "gradient of values");
}

/// While it lives, the meta device stands for a GPU.
struct MetaForCuda {
  MetaForCuda() { set_backend(c10::DeviceType::Meta, Backend::kCuda); }
  ~MetaForCuda() { set_backend(c10::DeviceType::Meta, Backend::kCpu); }
};

TEST(AttentionOnMeta, CountsWhatFlashAttentionTakes) {
  install_meters();
  const MetaForCuda stands_in;
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const int64_t n = 1000, m = 3000, heads = 8, key_heads = 2, size = 40;
  const AttentionOperands x{at::empty({n, heads, size}, options),
                            at::empty({m, key_heads, size}, options),
                            at::empty({m, key_heads, size}, options),
                            false,
                            0,
                            1.0};
  const AttentionBlock block = device_attend(x);
  EXPECT_EQ(block.log_sum_exp.sizes(), at::IntArrayRef({n, heads}));
  const at::Tensor d = at::empty_like(x.q);
  reset_peak(at::kMeta);
  const int64_t before = read_meter(at::kMeta).live_bytes;
  const AttentionBlockGradients gradients = device_attend_backward(x, d, block);
  // Rows to 128, heads of 40 to 64 numbers; keys' and values' gradients of each query head.
  const int64_t sums = 4 * (1024 * heads * 64 + 1024 * heads), expanded = 2 * 2 * m * heads * size;
  const int64_t results = 2 * (n * heads * size + 2 * m * key_heads * size);
  EXPECT_EQ(read_meter(at::kMeta).peak_bytes - before, results + sums + expanded);
  EXPECT_EQ(read_meter(at::kMeta).live_bytes - before, results);
  EXPECT_EQ(read_meter(at::kMeta).at_peak.at("kernel workspace"), sums + expanded);
}

TEST(AttentionOnMeta, CountsPackedSequencesAndPartsOfARectangle) {
  install_meters();
  const MetaForCuda stands_in;
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const int64_t n = 1000, heads = 4, size = 64;
  const auto rows = [&](int64_t count) { return at::empty({count, heads, size}, options); };
  const AttentionOperands packed{rows(n), rows(n), rows(n), true, 0, 1.0, {0, 10, 700, n}};
  const AttentionBlock block = device_attend(packed);
  const at::Tensor d = at::empty_like(packed.q);
  reset_peak(at::kMeta);
  device_attend_backward(packed, d, block);
  // 128 rows more for each sequence.
  EXPECT_EQ(read_meter(at::kMeta).at_peak.at("kernel workspace"), 4 * (n + 3 * 128) * heads * (size + 1));

  AttentionOperands rectangle{rows(n), rows(kDeviceTile), rows(kDeviceTile), false, 0, 1.0};
  EXPECT_EQ(device_attend(rectangle).output.scalar_type(), at::kBFloat16);
  rectangle.k = rectangle.v = rows(kDeviceTile + 1);
  reset_peak(at::kMeta);
  const int64_t before = read_meter(at::kMeta).live_bytes;
  const AttentionBlock parts = device_attend(rectangle);
  EXPECT_EQ(parts.output.scalar_type(), at::kFloat);
  EXPECT_EQ(read_meter(at::kMeta).peak_bytes - before, n * heads * (6 * size + 4));
}

TEST(AttentionOnMeta, SplitsKeysWhereQueriesDoNotFillTheGpu) {
  EXPECT_EQ(cuda::flash_splits(32, 8192, 32768, 128), 1);
  EXPECT_EQ(cuda::flash_splits(32, 448, 32768, 128), 1) << "224 blocks of 264 slots: enough";
  const int64_t splits = cuda::flash_splits(8, 64, 32768, 128);
  EXPECT_GT(splits, 16);
  EXPECT_LE(splits, 33) << "264 slots for 8 blocks";
  EXPECT_EQ(cuda::flash_splits(8, 64, 128, 128), 1) << "one tile of keys can't be cut";
}

TEST(MetaDevice, StandsForTheCpuOrAGpu) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor q = at::empty({4, 2, 16}, options);
  EXPECT_FALSE(is_for_cuda(q));
  EXPECT_FALSE(has_device_attention(q, {1.0, 0.0}));
  const MetaForCuda stands_in;
  EXPECT_TRUE(is_for_cuda(q));
  EXPECT_TRUE(has_device_attention(q, {1.0, 0.0}));
  EXPECT_FALSE(has_device_attention(q, {1.0, 50.0})) << "a cap on the scores";
  EXPECT_FALSE(has_device_attention(q.to(at::kFloat), {1.0, 0.0})) << "float32";
  EXPECT_FALSE(has_device_attention(at::empty({4, 2, 12}, options), {1.0, 0.0})) << "heads of 12";
  EXPECT_FALSE(is_for_cuda(at::empty({1})));
  EXPECT_THROW(set_backend(c10::DeviceType::XPU, Backend::kCuda), InputError);
}

}  // namespace
}  // namespace streambp
