// Ranks as processes over Gloo: rank_parts.cc, started several times.
#include "streambp/distributed/transport/process_ranks.h"

#include <arpa/inet.h>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "streambp/distributed/transport/local_ranks.h"
#include "streambp/error.h"

namespace {

/// After so many calls of a function of the system one fails with `error`; below zero none does.
struct Failure {
  int calls = -1;
  int error = 0;
};
Failure failing_fork, failing_memfd;

bool fails(Failure& failure) {
  if (failure.calls < 0 || failure.calls-- > 0) return false;
  errno = failure.error;
  return true;
}

}  // namespace

// A program's own stand before those of the C library.
extern "C" pid_t fork() noexcept {
  static const auto theirs = reinterpret_cast<pid_t (*)()>(dlsym(RTLD_NEXT, "fork"));
  return fails(failing_fork) ? -1 : theirs();
}
extern "C" int memfd_create(const char* name, unsigned int flags) noexcept {
  static const auto theirs =
      reinterpret_cast<int (*)(const char*, unsigned int)>(dlsym(RTLD_NEXT, "memfd_create"));
  return fails(failing_memfd) ? -1 : theirs(name, flags);
}

namespace streambp {
namespace {

RanksEnd run_part(int64_t ranks, const std::string& part) {
  return run_local_ranks(ranks, {STREAMBP_RANK_PARTS, part});
}

void expect_good(const RanksEnd& end) {
  EXPECT_EQ(end.status, 0) << "rank " << end.rank << ": " << end.message;
}

TEST(ProcessRanks, SumToTheBitsOfThreads) {
  for (const int64_t ranks : {1, 2, 3}) expect_good(run_part(ranks, "sum"));
}

TEST(ProcessRanks, TrainToTheBitsOfThreads) {
  expect_good(run_part(2, "train"));
}

TEST(ProcessRanks, NameTheOneThatHasLeft) {
  expect_good(run_part(3, "leave"));
}

TEST(ProcessRanks, NameTheOneThatNeverConnects) {
  expect_good(run_part(3, "absent"));
}

TEST(ProcessRanks, NameTheOneThatHangs) {
  expect_good(run_part(3, "hang"));
}

/// The others end long before their patience has.
TEST(ProcessRanks, EndWhenOneIsKilled) {
  const auto start = std::chrono::steady_clock::now();
  const RanksEnd end = run_part(3, "killed");
  EXPECT_EQ(end.status, 128 + SIGKILL) << end.message;
  EXPECT_EQ(end.rank, 2);
  EXPECT_NE(end.message.find("rank 2 was ended by signal 9"), std::string::npos) << end.message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
}

TEST(ProcessRanks, ReportWhatAFailingOneWrote) {
  const RanksEnd end = run_part(2, "no such part");
  EXPECT_EQ(end.status, 1);
  EXPECT_EQ(end.message, "expected a rank's environment and a part by its name\n");
}

TEST(ProcessRanks, RefuseWhatCannotBeStarted) {
  EXPECT_THROW(run_local_ranks(0, {STREAMBP_RANK_PARTS}), InputError);
  EXPECT_THROW(run_local_ranks(2, {"/no/such/program"}), InputError);
  EXPECT_THROW(run_local_ranks(kMostLocalRanks + 1, {STREAMBP_RANK_PARTS}), InputError);
}

/// What can't be had is named, ranks that were started before it are ended and nothing of them is held.
TEST(ProcessRanks, SayWhatTheSystemRefuses) {
  struct {
    Failure& failure;
    int error;
    const char* text;
  } const kinds[] = {
      {failing_fork, EAGAIN, "a process: Resource temporarily unavailable"},
      {failing_fork, ENOMEM, "a process: Cannot allocate memory"},
      {failing_memfd, EMFILE, "a file for what it writes to stderr: Too many open files"},
      {failing_memfd, ENOSYS, "a file for what it writes to stderr: Function not implemented"}};
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  for (const auto& [failure, error, text] : kinds) {
    for (const int rank : {0, 2}) {
      const auto before = descriptors();
      failure = {rank, error};
      try {
        run_part(3, "sum");
        ADD_FAILURE() << "expected a refusal: " << text;
      } catch (const InputError& refusal) {
        const std::string begin = fmt::format("rank {} of 3 can't be started: {}; expected", rank, text);
        EXPECT_TRUE(std::string(refusal.what()).starts_with(begin)) << refusal.what();
      }
      EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a rank is left over";
      EXPECT_EQ(descriptors(), before);
    }
  }
}

/// A program that the system can't run: what failed is in the message.
TEST(ProcessRanks, SayWhatFailedBeforeTheProgram) {
  const std::string file = testing::TempDir() + "no-program";
  std::ofstream(file) << "\x7f"
                         "ELF";
  ASSERT_EQ(::chmod(file.c_str(), 0755), 0);
  const RanksEnd end = run_local_ranks(1, {file});
  EXPECT_EQ(end.status, 127);
  EXPECT_NE(end.message.find(file + ": Exec format error"), std::string::npos) << end.message;
}

/// The addresses, in hexadecimal digits, at which this machine listens on the port.
std::vector<std::string> listening_at(int64_t port) {
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string number, local, remote, state, rest; file >> number >> local >> remote >> state;) {
      std::getline(file, rest);
      if (state == "0A" && local.ends_with(fmt::format(":{:04X}", port)))
        addresses.push_back(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST(ProcessRanks, MeetAtLoopbackAlone) {
  const StoreServer store;
  EXPECT_EQ(listening_at(store.port()), std::vector<std::string>{"0100007F"});
}

/// A socket that accepts connections and says nothing.
struct Mute {
  Mute() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket, 8), 0);
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
  }
  ~Mute() { ::close(socket); }

  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int64_t port = 0;
};

TEST(ProcessRanks, GiveUpOnAStoreThatNeverAnswers) {
  const Mute mute;
  Rendezvous at;
  at.rank = 1;
  at.size = 2;
  at.port = mute.port;
  const auto start = std::chrono::steady_clock::now();
  try {
    connect(at, std::chrono::seconds(1));
    ADD_FAILURE() << "connected";
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find(fmt::format("127.0.0.1:{}", at.port)), std::string::npos)
        << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(ProcessRanks, RefuseAnAddressOfAnotherMachine) {
  Rendezvous at;
  at.size = 2;
  at.host = "192.0.2.1";
  at.serves = true;
  EXPECT_THROW(connect(at, std::chrono::seconds(1)), InputError);
  const Mute taken;
  at.host = "127.0.0.1";
  at.port = taken.port;
  EXPECT_THROW(connect(at, std::chrono::seconds(1)), InputError);
}

}  // namespace
}  // namespace streambp
