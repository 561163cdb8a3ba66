#include "streambp/python/ranks.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "streambp/distributed/transport/agreement.h"
#include "streambp/distributed/transport/backend_rank.h"
#include "streambp/error.h"

namespace streambp::python {
namespace {

constexpr int kFirstTag = 0x5b00;  // apart from those of the caller's own messages

c10::intrusive_ptr<c10d::Backend> cpu_backend(const std::string& name) {
  try {
    return c10d::resolve_process_group(name)->getBackend(at::kCPU);
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    throw InputError(
        "process_group '{}': {}, expected a group of this process with a backend for the CPU "
        "(init_process_group(\"gloo\") or \"cpu:gloo,cuda:nccl\")",
        name, reason.substr(0, reason.find('\n')));
  }
}

}  // namespace

std::unique_ptr<Communicator> ranks_of_group(const std::string& name) {
  return std::make_unique<BackendRank>(cpu_backend(name), kNoTimeout, kFirstTag);
}

void begin_together(Communicator& communicator, const std::string& problem,
                    const std::map<std::string, std::string>& facts) {
  const std::vector<std::string> problems = gather_texts(communicator, problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) throw InputError("rank {} of the process group: {}", rank, problems[rank]);
  }
  require_agreement(communicator, facts);
}

}  // namespace streambp::python
