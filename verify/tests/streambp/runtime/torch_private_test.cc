// The parts of torch that are no public interface, as the library calls them: whichever version it is built
// with. FlashAttention's and cuDNN's calls are in ops/attention_libraries_test.cc, a GPU's allocator in
// memory/meter_test.cc.
#include "streambp/runtime/torch_private.h"

#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp::torch_private {
namespace {

TEST(TorchPrivate, AGradientFunctionIsCalledOnceAndThenGone) {
  const auto held = std::make_shared<int>(2);
  const at::Tensor x = random({3, 2}, 1).requires_grad_(), unused = random({2}, 2);
  const at::Tensor y = (x.detach() * 2).detach(), z = x.detach() + 1;
  set_backward({x, unused}, {y, z}, "twice", [held](std::vector<at::Tensor>&& gradients) {
    return std::vector<at::Tensor>{gradients[0] * *held + gradients[1], {}};
  });
  EXPECT_EQ(held.use_count(), 2);
  EXPECT_TRUE(y.requires_grad() && z.requires_grad());
  const at::Tensor dy = random({3, 2}, 3), dz = random({3, 2}, 4);
  const auto run = [&] {
    return torch::autograd::grad({y, z}, {x}, {dy, dz}, /*retain_graph=*/true).front();
  };
  EXPECT_TRUE(at::equal(run(), dy * 2 + dz));
  EXPECT_EQ(held.use_count(), 1) << "what the closure held lives as long as the graph";
  try {
    run();
    FAIL() << "a second backward pass";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("twice: a second backward pass"), std::string::npos);
  }
}

TEST(TorchPrivate, TheGradientFunctionOfAnOutputOutlivesIt) {
  const at::Tensor x = random({4}, 1).requires_grad_();
  at::Tensor y = x.exp();
  const at::Tensor value = y.detach().clone();
  const auto backward = backward_of(y);
  y.reset();
  const at::Tensor d = random({4}, 2);
  EXPECT_TRUE(at::equal(backward(d), d * value));
}

TEST(TorchPrivate, AGuestHearsNoAutocastAndNoHooks) {
  const at::Tensor a = at::ones({2, 2}), b = at::ones({2, 2});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  {
    const WithoutAutocastOrHooks quiet;
    EXPECT_EQ(at::mm(a, b).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(at::mm(a, b).scalar_type(), at::kBFloat16) << "the caller's own is back";
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();

  auto hooks = at::SavedTensorDefaultHooks::get_tls_state();
  hooks.disabled_error_message = "a caller's";
  at::SavedTensorDefaultHooks::set_tls_state(hooks);
  {
    const WithoutAutocastOrHooks quiet;
    EXPECT_FALSE(at::SavedTensorDefaultHooks::get_tls_state().disabled_error_message.has_value());
  }
  EXPECT_EQ(at::SavedTensorDefaultHooks::get_tls_state().disabled_error_message, "a caller's");
  at::SavedTensorDefaultHooks::set_tls_state({});
}

TEST(TorchPrivate, ProductsOfBfloat16AreAddedInFloat32) {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "no products of bfloat16 on this processor";
#endif
  constexpr int64_t kRows = 3, kColumns = 5, kDepth = 32;
  const at::Tensor a = integers({kRows, kDepth}, 1, at::kBFloat16),
                   b = integers({kDepth, kColumns}, 2, at::kBFloat16);
  // [depth / 2, columns, 2]: rows of b two by two.
  const at::Tensor pairs = b.view({kDepth / 2, 2, kColumns}).transpose(1, 2).contiguous();
  const at::Tensor c = at::ones({kRows, kColumns});
  add_bfloat16_product(kRows, kColumns, kDepth, kDepth, kColumns, kColumns, a.const_data_ptr<at::BFloat16>(),
                       pairs.const_data_ptr<at::BFloat16>(), c.data_ptr<float>());
  release_bfloat16_product();
  EXPECT_TRUE(at::equal(c, at::mm(a.to(at::kFloat), b.to(at::kFloat)) + 1));
}

TEST(TorchPrivate, FailuresOfADeviceAreToldApart) {
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  const c10::OutOfMemoryError full(here, "full");
  const c10::AcceleratorError lost(here, 700, "lost");
  const c10::Error other(here, "other");
  EXPECT_TRUE(is_out_of_device_memory(full) && !is_device_lost(full));
  EXPECT_TRUE(is_device_lost(lost) && !is_out_of_device_memory(lost));
  EXPECT_FALSE(is_out_of_device_memory(other) || is_device_lost(other));
  EXPECT_FALSE(is_out_of_device_memory(std::runtime_error("out of memory")));
}

TEST(TorchPrivate, KernelsForTheMetaDeviceAreMissedByName) {
  EXPECT_FALSE(lacks_meta_kernel("mm"));
  EXPECT_FALSE(lacks_meta_kernel("index_select")) << "registered by dry_run.cc";
  EXPECT_TRUE(lacks_meta_kernel("_flash_attention_forward"));
  EXPECT_FALSE(lacks_meta_kernel("no_such_op")) << "nothing can be registered for it";
}

}  // namespace
}  // namespace streambp::torch_private
