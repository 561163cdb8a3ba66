// Ranks over NCCL: one on one GPU, two where there are two.
#include <gtest/gtest.h>
#include <thread>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "streambp/distributed/transport/nccl_backend.h"
#include "streambp/distributed/transport/process_ranks.h"
#include "streambp/error.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"

namespace streambp {
namespace {

/// 0 where CUDA is not open.
int devices() {
  return at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

/// NCCL itself: a communicator of one, and a kernel of its own on the GPU.
TEST(NcclRanks, open_on_a_device) {
  if (devices() < 1) GTEST_SKIP() << "no CUDA device";
  const auto backend = open_nccl(c10::make_intrusive<c10d::HashStore>(), 0, 1, kPatience);
  std::vector<at::Tensor> numbers{at::arange(1000, at::TensorOptions(at::kCUDA).dtype(at::kFloat))};
  const at::Tensor before = numbers.front().clone();
  backend->allreduce(numbers, c10d::AllreduceOptions())->wait(kPatience);
  EXPECT_TRUE(at::equal(numbers.front(), before));
}

/// One step under ZeRO-2 of the ranks' model on their GPUs, and the weights of all.
Tensors stepped(Communicator& communicator, c10::Device device) {
  const Work work{"sft", unbalanced("qwen3-tiny", device), "sft", thirteen_texts(), chunks_of(5)};
  Model model = work.model();
  ReducedGradients gradients(communicator, model, ZeroStage::kGradients);
  const auto optimizer = adamw();
  Batch own = part_of(work, communicator.rank(), communicator.size());
  const auto objective = objective_of_ranks(communicator, model, work.objective, own);
  backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients);
  gradients.step(*optimizer);
  Tensors weights = weights_of(model);
  for (auto& [name, weight] : weights) weight = weight.cpu();
  return weights;
}

/// Each rank a thread with a GPU of its own, at a store of this process.
void step_on_devices(int64_t ranks) {
  const Tensors expected =
      in_one_process({"sft", unbalanced("qwen3-tiny"), "sft", thirteen_texts(), chunks_of(5)}).weights;
  const StoreServer store;
  std::vector<Tensors> weights(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Rendezvous at;
      at.rank = rank;
      at.size = ranks;
      at.port = store.port();
      const auto communicator = connect(at, kPatience, BetweenGpus::kNccl);
      weights[static_cast<size_t>(rank)] =
          stepped(*communicator, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(rank)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensors& of_rank : weights) {
    const double error = worst_error(of_rank, expected);
    EXPECT_TRUE(error <= 1e-10) << error;
  }
}

TEST(NcclRanks, step_on_one_device) {
  if (devices() < 1) GTEST_SKIP() << "no CUDA device";
  step_on_devices(1);
}

TEST(NcclRanks, step_on_two_devices) {
  if (devices() < 2) GTEST_SKIP() << "fewer than two CUDA devices";
  step_on_devices(2);
}

/// Without torch's CUDA libraries, or without a build of ours, the message says what is missing.
TEST(NcclWithoutDevice, SaysWhyThereIsNone) {
  if (devices() > 0) GTEST_SKIP() << "there is a CUDA device";
  try {
    open_nccl(c10::make_intrusive<c10d::HashStore>(), 0, 1, kPatience);
    FAIL() << "NCCL without a GPU";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("NCCL can't be loaded"), std::string::npos) << error.what();
  } catch (const c10::Error& error) {  // its libraries are all there
    EXPECT_NE(std::string(error.what()).find("GPU"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace streambp
