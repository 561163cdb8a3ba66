#include "streambp/distributed/transport/local_ranks.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "streambp/distributed/transport/process_ranks.h"
#include "streambp/error.h"

extern char** environ;

namespace streambp {
namespace {

constexpr int kCannotStart = 127;
constexpr int64_t kOwnDescriptors = 48, kDescriptorsOfRank = 3;

/// The texts as exec wants them.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// This process's environment with that of a rank.
std::vector<std::string> environment_of(int64_t rank, int64_t ranks, int64_t port) {
  std::vector<std::string> variables{fmt::format("RANK={}", rank),        fmt::format("LOCAL_RANK={}", rank),
                                     fmt::format("WORLD_SIZE={}", ranks), "MASTER_ADDR=127.0.0.1",
                                     fmt::format("MASTER_PORT={}", port), "TORCHELASTIC_USE_AGENT_STORE=True",
                                     "TORCHELASTIC_RESTART_COUNT=0"};
  const size_t ours = variables.size();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    bool is_ours = false;
    for (size_t i = 0; i < ours; ++i)
      is_ours = is_ours || text.starts_with(variables[i].substr(0, variables[i].find('=') + 1));
    if (!is_ours) variables.push_back(text);
  }
  return variables;
}

/// Says in a process between fork and exec what has failed there, and ends it.
[[noreturn]] void give_up(int errors, const char* what) {
  const int error = errno;
  for (const char* text : {"this rank can't be started: ", what, ": ", strerrordesc_np(error), "\n"})
    if (write(errors, text, std::strlen(text)) < 0) break;
  _exit(kCannotStart);
}

/// One process, ended at the latest with this object.
class RankProcess {
 public:
  RankProcess(int64_t rank, int64_t ranks, int64_t port, std::vector<std::string> command)
      : errors_(memfd_create("stderr", MFD_CLOEXEC)) {
    if (errors_ < 0) fail(rank, ranks, "a file for what it writes to stderr");
    std::vector<std::string> environment = environment_of(rank, ranks, port);
    const std::vector<char*> arguments = pointers(command), variables = pointers(environment);
    const pid_t parent = getpid();
    process_ = fork();
    if (process_ < 0) fail(rank, ranks, "a process");
    if (process_ == 0) {  // from here to exec: only what is safe while other threads held locks
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kCannotStart);
      if (dup2(errors_, STDERR_FILENO) < 0) give_up(errors_, "stderr");
      if (rank > 0 && dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO) < 0) give_up(errors_, "/dev/null");
      execve(arguments[0], arguments.data(), variables.data());
      give_up(errors_, arguments[0]);
    }
  }
  ~RankProcess() {
    end();
    close(errors_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Its status once it has ended.
  std::optional<int> status() {
    if (process_ <= 0) return status_;
    int raw = 0;
    if (waitpid(process_, &raw, WNOHANG) != process_) return std::nullopt;
    process_ = 0;
    status_ = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
    return status_;
  }

  std::string errors() const {
    std::string text(static_cast<size_t>(lseek(errors_, 0, SEEK_END)), '\0');
    const ssize_t count = pread(errors_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  [[noreturn]] void fail(int64_t rank, int64_t ranks, const char* what) const {
    const int error = errno;
    if (errors_ >= 0) close(errors_);
    throw InputError(
        "rank {} of {} can't be started: {}: {}; expected fewer ranks, or higher limits (ulimit)", rank,
        ranks, what, std::strerror(error));
  }

  int errors_;  // a file in memory
  pid_t process_ = -1;
  int status_ = kCannotStart;
};

RanksEnd end_of(int64_t rank, int status, const std::string& errors) {
  if (status <= 128) return {status, rank, errors};
  return {status, rank, errors + fmt::format("rank {} was ended by signal {}\n", rank, status - 128)};
}

/// Waits for all; after the first failure at most for `grace`.
RanksEnd wait_for(std::vector<std::unique_ptr<RankProcess>>& processes, std::chrono::milliseconds grace) {
  using Clock = std::chrono::steady_clock;
  std::optional<RanksEnd> failure;
  Clock::time_point deadline{};
  for (bool running = true; running; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    running = false;
    for (size_t rank = 0; rank < processes.size(); ++rank) {
      const std::optional<int> status = processes[rank]->status();
      running = running || !status;
      if (!status || *status == 0 || failure) continue;
      failure = end_of(static_cast<int64_t>(rank), *status, processes[rank]->errors());
      deadline = Clock::now() + grace;
    }
    if (failure && Clock::now() > deadline) break;
  }
  return failure ? *failure : RanksEnd{0, 0, processes.front()->errors()};
}

/// The descriptors that this process and its ranks need, each rank a connection to every other: libraries
/// end a process that gets none.
void require_descriptors(int64_t ranks) {
  const auto needed = static_cast<rlim_t>(kOwnDescriptors + kDescriptorsOfRank * ranks);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  const rlim_t given = std::exchange(limit.rlim_cur, needed);
  if (limit.rlim_max >= needed && setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw InputError(
      "{} ranks: a process needs {} open files and may have {}; expected fewer ranks, or a higher limit "
      "(ulimit -n)",
      ranks, needed, given);
}

}  // namespace

RanksEnd run_local_ranks(int64_t ranks, const std::vector<std::string>& command,
                         std::chrono::milliseconds grace) {
  if (ranks < 1 || ranks > kMostLocalRanks)
    throw InputError("{} ranks, expected 1 to {} processes of one machine", ranks, kMostLocalRanks);
  if (access(command.front().c_str(), X_OK) != 0)
    throw InputError("{}: {}, expected a program to start {} times", command.front(), std::strerror(errno),
                     ranks);
  require_descriptors(ranks);
  const StoreServer store;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int64_t rank = 0; rank < ranks; ++rank)
    processes.push_back(std::make_unique<RankProcess>(rank, ranks, store.port(), command));
  return wait_for(processes, grace);
}

}  // namespace streambp
