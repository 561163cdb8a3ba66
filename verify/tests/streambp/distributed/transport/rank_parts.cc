// One of the processes of process_ranks_test.cc: connects as its environment says and plays the part of its
// argument. Exits with 0 where all is as it should be, else with 1 and why on stderr.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>
#include <unistd.h>

#include "streambp/distributed/transport/process_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"

namespace streambp {
namespace {

constexpr std::chrono::seconds kShortPatience{3};

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected " + what);
}

at::Tensor numbers_of(int64_t rank, at::ScalarType dtype) {
  return random({101}, static_cast<uint64_t>(rank)).to(dtype);
}

void sum_as_threads_do(Communicator& communicator) {
  const int64_t ranks = communicator.size();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::Tensor by_threads;
    Traffic of_threads;
    run_on_threads(ranks, [&](Communicator& threads) {
      const at::Tensor sums = numbers_of(threads.rank(), dtype);
      threads.all_reduce(Concatenation(sums));
      if (threads.rank() == communicator.rank()) {
        by_threads = sums;
        of_threads = threads.traffic();
      }
    });
    const at::Tensor sums = numbers_of(communicator.rank(), dtype);
    communicator.reset_traffic();
    communicator.all_reduce(Concatenation(sums));
    require(at::equal(sums, by_threads), "the bits of threads");
    require(communicator.traffic() == of_threads, "the messages of threads");
  }
  communicator.barrier();
}

struct Trained {
  double loss = 0.0;
  std::map<std::string, at::Tensor> weights;
};

/// Two steps under ZeRO-2.
Trained train(const Work& work, Communicator& communicator) {
  Model model = work.model();
  ReducedGradients gradients(communicator, model, ZeroStage::kGradients);
  const auto optimizer = adamw();
  Batch own = part_of(work, communicator.rank(), communicator.size());
  const auto objective = objective_of_ranks(communicator, model, work.objective, own);
  Trained trained;
  for (int step = 0; step < 2; ++step) {
    trained.loss =
        backpropagate_on_ranks(communicator, model, own, *objective, work.settings, gradients).loss;
    gradients.step(*optimizer);
  }
  for (const auto& parameter : model.parameters()) trained.weights[parameter->name] = parameter->value;
  return trained;
}

void train_as_threads_do(Communicator& communicator) {
  const Work work{"dpo", full("qwen3-tiny"), "dpo", pairs_of_texts(), chunks_of(6)};
  const Trained trained = train(work, communicator);
  Trained by_threads;
  run_on_threads(communicator.size(), [&](Communicator& threads) {
    const Trained of_thread = train(work, threads);
    if (threads.rank() == communicator.rank()) by_threads = of_thread;
  });
  require(trained.loss == by_threads.loss, "the loss of threads");
  for (const auto& [name, weight] : by_threads.weights)
    require(at::equal(trained.weights.at(name), weight), "the bits of threads in " + name);
}

/// Returns when the others are gone for this rank; throws unless the message names `lost`.
void expect_loss_of(Communicator& communicator, int64_t lost) {
  try {
    communicator.barrier();
    communicator.barrier();
  } catch (const CommunicationError& error) {
    const std::string expected = fmt::format("rank {} no longer answers", lost);
    return require(std::string(error.what()).find(expected) != std::string::npos,
                   "'" + expected + "' in: " + error.what());
  }
  require(false, "no barrier without a rank");
}

bool is_last(const Communicator& communicator) {
  return communicator.rank() == communicator.size() - 1;
}

void last_leaves(Communicator& communicator) {
  if (is_last(communicator)) _exit(0);
  expect_loss_of(communicator, communicator.size() - 1);
}

void last_is_killed(Communicator& communicator) {
  if (is_last(communicator)) raise(SIGKILL);
  communicator.barrier();
  communicator.barrier();
}

void second_hangs(Communicator& communicator) {
  if (communicator.rank() != 1) return expect_loss_of(communicator, 1);
  std::this_thread::sleep_for(kShortPatience + std::chrono::seconds(2));
}

/// The last rank never connects; the others name it.
void one_is_absent(const Rendezvous& at) {
  if (at.rank == at.size - 1) return;
  const std::string expected = fmt::format("rank {} finds no rank {} at", at.rank, at.size - 1);
  try {
    connect(at, kShortPatience);
  } catch (const CommunicationError& error) {
    return require(std::string(error.what()).find(expected) != std::string::npos,
                   "'" + expected + "' in: " + error.what());
  }
  require(false, "no connection without a rank");
}

int run(const std::string& part) {
  const std::map<std::string, std::function<void(Communicator&)>> parts{{"sum", sum_as_threads_do},
                                                                        {"train", train_as_threads_do},
                                                                        {"leave", last_leaves},
                                                                        {"killed", last_is_killed},
                                                                        {"hang", second_hangs}};
  const std::optional<Rendezvous> at = rendezvous_of_environment();
  if (at.has_value() && part == "absent") return one_is_absent(*at), 0;
  require(at.has_value() && parts.contains(part), "a rank's environment and a part by its name");
  const auto communicator = connect(*at, part == "hang" ? kShortPatience : kPatience);
  parts.at(part)(*communicator);
  return 0;
}

}  // namespace
}  // namespace streambp

int main(int argc, char** argv) {
  try {
    return streambp::run(argc == 2 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
