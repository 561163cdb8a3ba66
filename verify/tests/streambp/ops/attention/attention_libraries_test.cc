// Attention by library_attention(), its calls of FlashAttention and cuDNN as they are on a GPU, answered on
// the host by attention_libraries.h; and that those would notice what is wrong with a call.
#include "verify/tests/streambp/ops/attention/attention_libraries.h"

#include <cmath>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <vector>

#include "streambp/ops/attention/attention.h"
#include "streambp/ops/attention/attention_device.h"
#include "verify/tests/streambp/ops/attention/attention_device_testing.h"

namespace streambp {
namespace {

struct HostRun {
  std::vector<int64_t> offsets;
  int64_t prefix;
  int64_t window;
};

void PrintTo(const HostRun& run, std::ostream* out) {
  *out << fmt::format("sequences {}, prefix {}, window {}", run.offsets, run.prefix, run.window);
}

class LibrariesOnHost : public testing::TestWithParam<HostRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, LibrariesOnHost,
                         testing::Values(HostRun{{0, 40}, 0, 0}, HostRun{{0, 40}, 40, 0},
                                         HostRun{{0, 40}, 77, 0}, HostRun{{0, 1}, 5, 0},
                                         HostRun{{0, 13, 40}, 9, 0}, HostRun{{0, 13, 14, 40}, 0, 0},
                                         HostRun{{0, 1, 2}, 0, 0}, HostRun{{0, 40}, 0, 7},
                                         HostRun{{0, 40}, 30, 35}, HostRun{{0, 13, 40}, 5, 7},
                                         HostRun{{0, 8}, 2 * kDeviceTile + 5, 0}));

TEST_P(LibrariesOnHost, GiveValuesAndGradientsOfFloat64) {
  const auto& [offsets, prefix_rows, window] = GetParam();
  const int64_t rows = offsets.back();
  const auto run = [&](at::ScalarType dtype) {
    // Side by side, as a fused projection leaves them; rounded alike in both precisions.
    const auto sample = [&](at::IntArrayRef shape, uint64_t seed) {
      return random(shape, seed).to(at::kBFloat16).to(dtype);
    };
    const at::Tensor all = sample({rows, 8, 16}, 1).requires_grad_();
    Prefix prefix;
    if (prefix_rows > 0) {
      prefix = {sample({prefix_rows, 2, 16}, 4), sample({prefix_rows, 2, 16}, 5),
                at::zeros({prefix_rows, 2, 16}, at::kDouble), at::zeros({prefix_rows, 2, 16}, at::kDouble)};
    }
    AttentionBlock known;
    const at::Tensor y = attention(all.narrow(1, 0, 4), all.narrow(1, 4, 2), all.narrow(1, 6, 2), offsets,
                                   prefix, {{0.25, 0.0}, window}, known);
    const at::Tensor d = torch::autograd::grad({y}, {all}, {sample({rows, 4, 16}, 6)}).front();
    std::vector<at::Tensor> results{y.detach(), known.log_sum_exp, d};
    if (prefix_rows > 0) results.insert(results.end(), {prefix.key_gradients, prefix.value_gradients});
    return results;
  };
  const std::vector<at::Tensor> expected = run(at::kDouble);
  std::vector<DeviceAttention> libraries = library_attention();
  libraries.front() = slow(libraries.front(), 0.01);  // cuDNN serves what it can
  const ServeAttention serve(libraries, Served::kAsOnGpus);
  const libraries_on_host::Calls before = libraries_on_host::calls();
  const char* const names[] = {"output", "log-sum-exps", "gradients", "prefix keys", "prefix values"};
  for (int again = 0; again < 3; ++again) {  // before, while and after a choice is made
    const std::vector<at::Tensor> got = run(at::kBFloat16);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), expected[i].sizes()) << names[i];
      const double error =
          (got[i].to(at::kDouble) - expected[i]).norm().item<double>() / expected[i].norm().item<double>();
      EXPECT_TRUE(error <= 1.5e-2) << names[i] << ": " << error;
    }
  }
  const libraries_on_host::Calls after = libraries_on_host::calls();
  EXPECT_GT(after.flash_forward, before.flash_forward);
  EXPECT_GT(after.flash_backward, before.flash_backward);
  // Squares of one sequence and rectangles are cuDNN's, windows and packed sequences are not; sequences of
  // one token each are not packed.
  const bool is_packed =
      offsets.size() > 2 && prefix_rows == 0 && rows > static_cast<int64_t>(offsets.size()) - 1;
  EXPECT_EQ(after.cudnn_forward > before.cudnn_forward, window == 0 && !is_packed);
}

/// Operands of one block, as the dispatcher gives them.
AttentionOperands block(int64_t queries, int64_t keys, bool causal) {
  const auto sample = [](int64_t rows, int64_t heads, uint64_t seed) {
    return random({rows, heads, 16}, seed).to(at::kBFloat16);
  };
  return {.q = sample(queries, 4, 1),
          .k = sample(keys, 2, 2),
          .v = sample(keys, 2, 3),
          .causal = causal,
          .scale = 0.25};
}

const DeviceAttention& flash() {
  static const DeviceAttention library = library_attention().front();
  return library;
}
const DeviceAttention& cudnn() {
  static const DeviceAttention library = library_attention().back();
  return library;
}

TEST(LibrariesThemselves, AlignCausalBlocksDifferently) {
  const AttentionOperands x = block(5, 9, true);
  AttentionOperands wide = x;
  for (at::Tensor* each : {&wide.q, &wide.k, &wide.v}) *each = each->to(at::kDouble);
  const Formula lower_right(wide);
  const auto distance = [&](const DeviceAttention& library) {
    return (library.forward(x).output.to(at::kDouble) - lower_right.output.detach()).norm().item<double>();
  };
  EXPECT_LT(distance(flash()), 0.02);
  EXPECT_GT(distance(cudnn()), 0.5) << "its first query sees the first key alone";
}

TEST(LibrariesThemselves, RefuseWhatTheyRefuse) {
  AttentionOperands wide = block(5, 5, true);
  for (at::Tensor* each : {&wide.q, &wide.k, &wide.v}) *each = each->to(at::kFloat);
  EXPECT_THROW(flash().forward(wide), c10::Error) << "float32";
  AttentionOperands strided = block(5, 5, true);
  strided.k = strided.k.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_THROW(flash().forward(strided), c10::Error) << "numbers of a head that lie apart";
  EXPECT_THROW(cudnn().forward(strided), c10::Error);
  AttentionOperands odd = block(5, 5, true);
  for (at::Tensor* each : {&odd.q, &odd.k, &odd.v}) *each = each->narrow(2, 0, 12);
  EXPECT_THROW(flash().forward(odd), c10::Error) << "heads of 12";
  AttentionOperands large = block(5, 5, true);
  for (at::Tensor* each : {&large.q, &large.k, &large.v})
    *each = at::cat(std::vector<at::Tensor>(16, *each), 2);
  EXPECT_NO_THROW(flash().forward(large));
  EXPECT_THROW(cudnn().forward(large), c10::Error) << "heads of 256";
}

TEST(LibrariesThemselves, FaultWhereAGpuWouldGoWrongUnseen) {
  const AttentionOperands x = block(6, 6, true);
  const at::Tensor d = random({6, 4, 16}, 4).to(at::kBFloat16);
  for (const DeviceAttention* library : {&flash(), &cudnn()}) {
    const AttentionBlock saved = library->forward(x);
    // As [H, n], contiguous: what device_attend_backward makes of it.
    const AttentionBlock whole{saved.output, saved.log_sum_exp.t().contiguous()};
    EXPECT_NO_THROW(library->backward(x, d, whole)) << library->name;
    EXPECT_THROW(library->backward(x, d, {saved.output, saved.log_sum_exp.contiguous()}), std::exception)
        << library->name << ": log-sum-exps by rows";
    EXPECT_THROW(library->backward(x, d, {saved.output, saved.log_sum_exp.contiguous().t()}),
                 std::logic_error)
        << library->name << ": log-sum-exps by rows under the right shape";
    EXPECT_THROW(library->backward(x, d, {saved.output, whole.log_sum_exp.to(at::kDouble)}), std::logic_error)
        << library->name << ": log-sum-exps in float64";
    AttentionOperands shifted = x;
    shifted.v = at::empty({6 * 2 * 16 + 1}, x.v.options()).narrow(0, 1, 6 * 2 * 16).view({6, 2, 16});
    EXPECT_THROW(library->forward(shifted), std::logic_error) << library->name << ": values within 16 bytes";
  }
  EXPECT_THROW(cudnn().backward(x, at::cat({d, d}, 2).narrow(2, 0, 16), cudnn().forward(x)), std::exception)
      << "a plan by strides of its own";
  AttentionOperands packed = x;
  packed.offsets = {0, 2, 5};
  EXPECT_THROW(flash().forward(packed), std::logic_error) << "offsets of fewer rows";
  packed.offsets = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_THROW(flash().forward(packed), std::logic_error) << "sequences of one query each";
}

}  // namespace
}  // namespace streambp
