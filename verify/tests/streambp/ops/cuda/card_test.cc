// Kernels and predictions by the GPU at hand: whether the library has code for it, and what follows from its
// multiprocessors, shared memory and compute capability.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/plan/cards.h"
#include "streambp/plan/longest.h"
#include "streambp/runtime/device.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

TEST(CudaLibrary, AsksEachGpuOnceWhetherThereIsCodeForIt) {
  const cuda::KernelTable* const outer = cuda::set_kernels(nullptr);
  const std::string refusal = cuda::load_kernels(STREAMBP_NO_CUDA_CODE, 50);
  EXPECT_NE(refusal.find("no code for GPU 50: no kernel image is available"), std::string::npos) << refusal;
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
  EXPECT_EQ(cuda::kernels(), nullptr);
  EXPECT_EQ(cuda::load_kernels(STREAMBP_NO_CUDA_CODE, 51), "");
  EXPECT_NE(cuda::kernels(), nullptr);
  EXPECT_FALSE(has_kernels(c10::Device(c10::kCUDA, 50))) << "ATen serves it";
  EXPECT_TRUE(has_kernels(c10::Device(c10::kCUDA, 51)));
  EXPECT_EQ(cuda::load_kernels(STREAMBP_NO_CUDA_CODE, 50), refusal);
  void* const library = dlopen(STREAMBP_NO_CUDA_CODE, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(library, "times_asked"))(), 2);
  cuda::set_kernels(outer);
}

/// The limits of `name` while it lives, on the meta device that stands for CUDA.
struct AsCard {
  explicit AsCard(const char* name) : outer(cuda::card()) { cuda::set_card(plan::find_card(name)->limits); }
  ~AsCard() { cuda::set_card(outer); }
  GpuLimits outer;
  const MetaStandIn stand_in{c10::kCUDA};
};

TEST(Cards, HaveWhatTorchCountsLessContextAndReserve) {
  EXPECT_EQ(plan::find_card("rtx-5090"), nullptr);
  EXPECT_EQ(plan::cards().size(), 8U);
  for (const plan::Card& card : plan::cards()) {
    EXPECT_EQ(plan::find_card(card.name), &card);
    EXPECT_EQ(card.usable(), card.memory - plan::usual_margin(card.memory, c10::kCUDA));
    EXPECT_NE(plan::describe_cards().find(card.name), std::string::npos);
    // The name's number counts gigabytes that no program sees all of.
    const std::string name = card.name;
    for (const int64_t said : {40, 80}) {
      if (name.ends_with(fmt::format("-{}", said))) {
        EXPECT_LT(card.memory, said << 30) << name;
      }
    }
  }
  EXPECT_LT(plan::find_card("h100-80")->usable(),
            plan::less_margin(int64_t{80} << 30, std::nullopt, c10::kCUDA));
}

TEST(Cards, DecideScratch) {
  const auto workspace = [](const char* name) {
    const AsCard as(name);
    return cuda::blas_workspace_bytes();
  };
  EXPECT_EQ(workspace("h200"), 64 << 20);
  EXPECT_EQ(workspace("b200"), 64 << 20);
  EXPECT_EQ(workspace("a100-80"), 2 * 8519680) << ":4096:2:16:8";
  const auto splits = [](const char* name) {
    const AsCard as(name);
    return cuda::flash_splits(/*heads=*/16, /*queries=*/64, /*keys=*/65536, /*head_size=*/128);
  };
  EXPECT_EQ(splits("h200"), 14) << "16 blocks each fill 264 slots to 85 %";
  EXPECT_LT(splits("rtx-3090"), splits("h200")) << "82 multiprocessors are filled by fewer parts";
  const auto sums = [](const char* name) {
    const AsCard as(name);
    return cuda::flash_deterministic_sums(16);
  };
  EXPECT_EQ(sums("h200"), 9);
  EXPECT_EQ(sums("a100-40"), 7);
}

TEST(Cards, DecideKernels) {
  const auto rows = [](const char* name, int64_t size, at::ScalarType dtype) {
    const AsCard as(name);
    return NormAndRope{}.is_fused(
        at::empty({2, 1, size}, at::TensorOptions().device(at::kMeta).dtype(dtype)));
  };
  EXPECT_TRUE(rows("h200", 24576, at::kDouble));
  EXPECT_FALSE(rows("h200", 24577, at::kFloat));
  EXPECT_TRUE(rows("rtx-4090", 24576, at::kBFloat16)) << "96 KiB of 99";
  EXPECT_TRUE(rows("rtx-4090", 12656, at::kDouble));
  EXPECT_FALSE(rows("rtx-4090", 12657, at::kDouble));
  EXPECT_FALSE(rows("a100-40", 24576, at::kDouble)) << "192 KiB of 163";
  const auto attention = [](const char* name, int64_t size) {
    const AsCard as(name);
    return has_device_attention(
        at::empty({2, 1, size}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16)), {});
  };
  for (const int64_t size : {64, 128, 192, 224, 256}) EXPECT_TRUE(attention("a100-80", size)) << size;
  EXPECT_FALSE(attention("rtx-4090", 224)) << "its backward kernels need more shared memory";
  EXPECT_TRUE(attention("rtx-4090", 192) && attention("rtx-4090", 256));
  EXPECT_FALSE(attention("h200", 264) || attention("h200", 100));
  const GpuLimits outer = cuda::card();
  cuda::set_card({75, 40, 64 * 1024});
  EXPECT_FALSE(cuda::has_library_attention(128)) << "a T4";
  cuda::set_card(outer);
}

}  // namespace
}  // namespace streambp
