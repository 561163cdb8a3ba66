// An allocation that fails at any request of a pass: OutOfMemory, nothing left behind, and the next pass is
// what it would have been.
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <c10/core/CPUAllocator.h>

#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/runtime/failure.h"
#include "verify/equality/subject.h"

namespace streambp::verify {
namespace {

/// Hands requests on, but for one.
class FailingAllocator final : public c10::Allocator {
 public:
  explicit FailingAllocator(c10::Allocator& allocator) : allocator_(allocator) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (++requests_ == failing_) throw OutOfMemory(fmt::format("request {} fails", requests_));
    return allocator_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return allocator_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    allocator_.copy_data(to, from, bytes);
  }

  /// The `failing`th request from now on fails; 0: none.
  void fail(int64_t failing) {
    requests_ = 0;
    failing_ = failing;
  }
  int64_t requests() const { return requests_; }

 private:
  c10::Allocator& allocator_;
  int64_t requests_ = 0;
  int64_t failing_ = 0;
};

FailingAllocator& failing_allocator() {
  static FailingAllocator& allocator = [&]() -> FailingAllocator& {
    install_meters();
    constexpr uint8_t kAboveTheMeter = 255;
    auto* const made = new FailingAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, kAboveTheMeter);
    return *made;
  }();
  return allocator;
}

struct Case {
  std::string name;
  RowName row;
  std::function<void(Settings&)> set;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

Settings settings_of(const Case& one) {
  Settings settings;
  one.set(settings);
  if (is_chunked(settings.method)) settings.chunk = 5;
  return settings;
}

std::function<void(Settings&)> by(Method method) {
  return [method](Settings& settings) { settings.method = method; };
}

std::vector<Case> cases() {
  const auto row = [](const char* model, const char* objective, const char* tuning) {
    return RowName{model, objective, {}, tuning, "right", 13};
  };
  const RowName plain = row("qwen3-tiny", "sft", "full");
  return {{"standard", plain, by(Method::kStandard)},
          {"checkpoint", plain, by(Method::kCheckpoint)},
          {"streambp", plain, by(Method::kStreambp)},
          {"tiled", plain, by(Method::kTiled)},
          {"logits_only", plain, by(Method::kLogitsOnly)},
          {"chunk_major", plain, by(Method::kChunkMajor)},
          {"forward_order", plain, [](Settings& settings) { settings.order = Order::kForward; }},
          {"every_second", row("qwen2-tiny", "sft", "full"), [](Settings& settings) { settings.every = 2; }},
          {"offloaded", plain, [](Settings& settings) { settings.offload = Offload::kHost; }},
          {"kept", plain, [](Settings& settings) { settings.keep.attention = kAllLayers; }},
          {"dpo", row("qwen3-tiny", "dpo", "full"), by(Method::kStreambp)},
          {"lora", row("qwen3-tiny", "sft", "lora"), by(Method::kStreambp)},
          {"mixture", row("qwen3-moe-tiny", "sft", "full"), by(Method::kStreambp)},
          {"recurrent", row("qwen3-next-tiny", "sft", "full"), by(Method::kStreambp)},
          {"shared_keys", row("gemma4-tiny", "sft", "full"), by(Method::kStreambp)}};
}

/// A backward pass that fails leaves what was ready to be run in autograd's queue of this thread, which the
/// next one empties first (torch/csrc/autograd/engine.cpp).
void empty_queue_of_autograd() {
  at::ones({1}).set_requires_grad(true).sum().backward();
}

class FailingAllocation : public testing::TestWithParam<Case> {};

TEST_P(FailingAllocation, LeavesNothingBehind) {
  FailingAllocator& allocator = failing_allocator();
  EqualitySubject subject = make_subject(GetParam().row, 11);
  const Settings settings = settings_of(GetParam());
  Model& model = subject.model;
  const auto pass = [&] {
    model.zero_gradients();
    return backpropagate(model, subject.batch, *subject.objective, settings).loss;
  };
  pass();  // caches that a first pass fills
  const double loss = pass();
  const Tensors gradients = gradients_of(model);
  allocator.fail(0);
  pass();
  const int64_t requests = allocator.requests();
  const int64_t alive = read_meter(at::kCPU).live_bytes;
  ASSERT_GT(requests, 20);

  // In ctest some requests of each case, in the nightly run all of them.
  const bool all = std::getenv("STREAMBP_EVERY_REQUEST") != nullptr;
  const int64_t stride = all ? 1 : std::max<int64_t>(1, requests / 13);
  int64_t tried = 0;
  for (int64_t failing = 1; failing <= requests; failing += stride, ++tried) {
    allocator.fail(failing);
    try {
      pass();
      ADD_FAILURE() << "request " << failing << " of " << requests << " failed, and nobody minded";
    } catch (const std::exception& error) {
      EXPECT_TRUE(is_out_of_memory(error)) << "request " << failing << ": " << error.what();
    }
    allocator.fail(0);
    empty_queue_of_autograd();
    ASSERT_EQ(read_meter(at::kCPU).live_bytes, alive) << "request " << failing << " of " << requests;
    ASSERT_EQ(pass(), loss) << "request " << failing << " of " << requests;
    const Tensors again = gradients_of(model);
    for (const auto& [name, gradient] : gradients)
      ASSERT_TRUE(at::equal(again.at(name), gradient)) << name << ", request " << failing;
  }
  std::printf("%s: %ld of %ld requests failed\n", GetParam().name.c_str(), static_cast<long>(tried),
              static_cast<long>(requests));
}

INSTANTIATE_TEST_SUITE_P(Passes, FailingAllocation, testing::ValuesIn(cases()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace streambp::verify
