// Two passes at once in one process, each with a model of its own.
#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "verify/equality/subject.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

TEST(ConcurrentPasses, GiveTheBitsOfPassesOneAfterAnother) {
  install_meters();
  std::vector<std::unique_ptr<EqualitySubject>> subjects;
  for (const char* name : {"qwen3-tiny", "gemma3-tiny"})
    subjects.push_back(
        std::make_unique<EqualitySubject>(make_subject({name, "sft", {}, "full", "three", 13}, 3)));
  Settings settings;
  settings.chunk = 5;
  settings.offload = Offload::kHost;
  const auto run = [&](EqualitySubject& subject) {
    return evaluate(subject.model, subject.batch, *subject.objective, settings);
  };
  const std::vector<Evaluation> alone{run(*subjects[0]), run(*subjects[1])};
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<Evaluation> together(2);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) threads.emplace_back([&, i] { together[i] = run(*subjects[i]); });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(together[i], alone[i])) << i;
  }
}

}  // namespace
}  // namespace streambp::verify
