// The attention kernels of GPU libraries: themselves, where there is a CUDA device; as attention_libraries.h
// has them, on the host; on the meta device what they take.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <vector>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/device.h"
#include "verify/tests/streambp/ops/attention/attention_device_testing.h"

namespace streambp {
namespace {

struct LibraryCase {
  const char* name;
  int64_t queries, keys, heads, key_heads, size;
  bool causal = false;
  int64_t window = 0;
  std::vector<int64_t> offsets = {};
};

struct LibrarySubject {
  const char* library;
  LibraryCase block;
  bool on_host = false;  // by attention_libraries.h
};

void PrintTo(const LibrarySubject& subject, std::ostream* out) {
  *out << subject.library << ' ' << subject.block.name;
}

/// Squares and rectangles are every library's; what is causal beyond squares is FlashAttention's alone, and
/// so are large heads on the host, where cuDNN is as it was first.
std::vector<LibrarySubject> library_subjects(bool on_host) {
  std::vector<LibrarySubject> all;
  for (const LibraryCase& block :
       {LibraryCase{"square", 300, 300, 4, 2, 64, true}, LibraryCase{"rectangle", 200, 1500, 4, 2, 128},
        LibraryCase{"few_queries", 3, 4000, 8, 1, 128}, LibraryCase{"large_heads", 130, 257, 2, 2, 256}}) {
    all.push_back({"flash", block, on_host});
    if (!on_host || block.size <= 128) all.push_back({"cudnn", block, on_host});
  }
  for (const LibraryCase& block : {LibraryCase{"lower_right", 100, 333, 4, 2, 64, true},
                                   LibraryCase{"window", 200, 327, 4, 2, 64, true, 128},
                                   LibraryCase{"packed", 300, 300, 4, 2, 64, true, 0, {0, 1, 130, 130, 300}},
                                   LibraryCase{"packed_window", 300, 300, 4, 2, 64, true, 40, {0, 9, 300}}})
    all.push_back({"flash", block, on_host});
  return all;
}

class DeviceLibrary : public testing::TestWithParam<LibrarySubject> {};

std::string library_name_of(const testing::TestParamInfo<LibrarySubject>& subject) {
  return std::string(subject.param.library) + "_" + subject.param.block.name;
}
INSTANTIATE_TEST_SUITE_P(cuda, DeviceLibrary, testing::ValuesIn(library_subjects(/*on_host=*/false)),
                         library_name_of);
INSTANTIATE_TEST_SUITE_P(host, DeviceLibrary, testing::ValuesIn(library_subjects(/*on_host=*/true)),
                         library_name_of);

/// Forward, and backward as a block of rows that have seen other keys too, against the formula in float64.
TEST_P(DeviceLibrary, GivesTheFormulasValuesAndGradients) {
  const auto& [name, block, on_host] = GetParam();
  c10::Device device = at::kCPU;
  try {
    if (!on_host) device = open_device("cuda");
  } catch (const InputError& error) {
    GTEST_SKIP() << "needs a CUDA device: " << error.what();
  }
  const auto all = library_attention();
  const DeviceAttention& library = *std::find_if(
      all.begin(), all.end(), [&, &wanted = name](const DeviceAttention& one) { return one.name == wanted; });
  // Heads strided by others', as a fused projection leaves them.
  const auto sample = [&](int64_t rows, int64_t heads, uint64_t seed) {
    return random({rows, heads + 3, block.size}, seed).to(at::kBFloat16).to(device).narrow(1, 2, heads);
  };
  const AttentionOperands x{.q = sample(block.queries, block.heads, 1),
                            .k = sample(block.keys, block.key_heads, 2),
                            .v = sample(block.keys, block.key_heads, 3),
                            .causal = block.causal,
                            .window = block.window,
                            .scale = 1.0 / std::sqrt(static_cast<double>(block.size)),
                            .offsets = block.offsets};
  AttentionOperands exact = x;
  for (at::Tensor* each : {&exact.q, &exact.k, &exact.v}) *each = each->to(at::kCPU, at::kDouble);
  const Formula formula(exact);
  const at::Tensor d = random({block.heads, block.queries, block.size}, 4).transpose(0, 1).contiguous();
  const at::Tensor rest =
      random({block.queries, block.heads, block.size}, 5).to(at::kBFloat16).to(at::kDouble);
  // Half of each row's weight lies with keys of which this block knows nothing.
  const AttentionBlock whole{0.5 * (formula.output.detach() + rest),
                             formula.log_sum_exp.detach() + std::log(2.0)};
  const AttentionBlock saved{whole.output.to(at::kBFloat16).to(device).contiguous(),
                             whole.log_sum_exp.to(at::kFloat).to(device).contiguous()};
  const at::Tensor dy = d.to(at::kBFloat16);
  AttentionBlock got;
  AttentionBlockGradients gradients;
  try {
    got = library.forward(x);
    gradients = library.backward(x, dy.to(device), saved);
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::Error& error) {
    if (library.lower_right) throw;  // it takes everything
    GTEST_SKIP() << name << " has no kernel for it: " << error.what_without_backtrace();
  }
  const auto check = [](const at::Tensor& value, const at::Tensor& expected, double limit, const char* what) {
    const at::Tensor wide = value.to(at::kCPU, at::kDouble);
    ASSERT_EQ(wide.sizes(), expected.sizes()) << what;
    const double error = (wide - expected).norm().item<double>() / expected.norm().item<double>();
    EXPECT_TRUE(error <= limit) << what << ": " << error;
  };
  // A result in bfloat16 is rounded by up to 2^-9, and what it is made of before.
  check(got.output, formula.output.detach(), 8e-3, "output");
  check(got.log_sum_exp, formula.log_sum_exp.detach().t(), 1e-3, "log-sum-exps");
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
