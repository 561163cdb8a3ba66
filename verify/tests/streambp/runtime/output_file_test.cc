// Files that replace others: whole or not at all, over regular files only, nothing left behind.
#include "streambp/runtime/output_file.h"

#include <csignal>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode : 0;
}

/// While it lives no file grows beyond `bytes`: what a full disk does, without one.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(OutputFile, WritesTextsAndStreams) {
  const TempFolder folder;
  const auto path = folder.path() / "file";
  write_file(path, "one");
  EXPECT_EQ(read_bytes(path), "one");
  std::string expected;
  write_file(path, [&](std::ostream& out) {
    for (int i = 0; i < 50'000; ++i) {
      out << i << '\n';
      expected += std::to_string(i) + '\n';
    }
  });
  EXPECT_EQ(read_bytes(path), expected);
  write_file(path, "");
  EXPECT_EQ(read_bytes(path), "");
  EXPECT_EQ(folder.count(), 1);
}

TEST(OutputFile, TakesTheNameOnlyWhenCommitted) {
  const TempFolder folder;
  const auto path = folder.write("file", "old");
  {
    OutputFile file(path);
    file.write(std::as_bytes(std::span(std::string_view("new"))));
    EXPECT_EQ(read_bytes(path), "old");
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_THROW(write_file(path,
                          [](std::ostream& out) {
                            out << std::string(1 << 20, 'x');
                            throw std::logic_error("half of it");
                          }),
               std::logic_error);
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.count(), 1);
}

TEST(OutputFile, KeepsTheOldFileOnAFullDisk) {
  const TempFolder folder;
  const auto path = folder.write("file", "old");
  const std::string large(1 << 20, 'x');
  {
    const FullDisk full(1 << 18);
    EXPECT_TRUE(refused([&] { write_file(path, large); }, path.string(), "can't be written", "too large"));
    EXPECT_TRUE(refused([&] { write_file(path, [&](std::ostream& out) { out << large; }); }, path.string(),
                        "can't be written", "too large"));
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.count(), 1);
}

TEST(OutputFile, ReplacesRegularFilesAlone) {
  const TempFolder folder;
  const auto target = folder.write("target", "precious");
  const auto link = folder.path() / "link", dangling = folder.path() / "dangling",
             loop = folder.path() / "loop", fifo = folder.path() / "fifo",
             folder_inside = folder.path() / "folder", socket = folder.path() / "socket";
  std::filesystem::create_symlink(target, link);
  std::filesystem::create_symlink(folder.path() / "nothing", dangling);
  std::filesystem::create_symlink("loop", loop);
  std::filesystem::create_directory(folder_inside);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket.string().size(), sizeof(address.sun_path));
  socket.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ::close(descriptor);
  std::vector<std::pair<std::filesystem::path, const char*>> others = {
      {link, "a symbolic link"}, {dangling, "a symbolic link"}, {loop, "a symbolic link"},
      {fifo, "a FIFO"},          {folder_inside, "a folder"},   {socket, "a socket"}};
  // A node of our own, for whoever may make one: nobody's /dev/null is at stake.
  const auto device = folder.path() / "null";
  if (::mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) others.push_back({device, "a device"});
  const auto entries = folder.count();
  for (const auto& [path, kind] : others) {
    const mode_t before = mode_of(path);
    EXPECT_TRUE(refused([&] { write_file(path, "x"); }, path.string(), kind, "regular file")) << path;
    EXPECT_TRUE(refused([&] { check_output_file("--trace", path); }, "--trace " + path.string(), kind))
        << path;
    EXPECT_EQ(mode_of(path), before) << path;
  }
  EXPECT_EQ(read_bytes(target), "precious");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "nothing"));
  EXPECT_EQ(folder.count(), entries);
}

TEST(OutputFile, RefusesWhatBecameALinkMeanwhile) {
  const TempFolder folder;
  const auto target = folder.write("target", "precious"), path = folder.path() / "file";
  EXPECT_TRUE(refused(
      [&] {
        write_file(path, [&](std::ostream& out) {
          out << "x";
          std::filesystem::create_symlink(target, path);
        });
      },
      "a symbolic link"));
  EXPECT_EQ(read_bytes(target), "precious");
  EXPECT_EQ(folder.count(), 2);
}

TEST(OutputFile, KeepsPermissions) {
  const TempFolder folder;
  const auto path = folder.write("file", "old");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  write_file(path, "new");
  EXPECT_EQ(mode_of(path) & 07777, 0640u);
}

TEST(OutputFile, RemovesWhatKilledWritersLeft) {
  const TempFolder folder;
  const auto path = folder.path() / "file";
  folder.write("file.123-0.tmp", "of a killed one");
  folder.write("file.tmp", "not ours");
  folder.write("file.1-2-x.tmp", "not ours");
  folder.write("other.123-0.tmp", "of another file");
  const auto living = folder.write("file.124-0.tmp", "being written");
  const int descriptor = ::open(living.c_str(), O_RDONLY);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  OutputFile first(path);
  OutputFile second(path);  // of the same process
  EXPECT_EQ(folder.count(), 6);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "file.123-0.tmp"));
  ::close(descriptor);
  first.commit();
  second.commit();
  write_file(path, "x");
  EXPECT_FALSE(std::filesystem::exists(living));
  EXPECT_EQ(folder.count(), 4);
}

TEST(OutputFile, ChecksAheadWhetherItCanBeWritten) {
  const TempFolder folder;
  check_output_file("--trace", folder.path() / "free");
  EXPECT_EQ(folder.count(), 0);
  EXPECT_TRUE(refused([&] { check_output_file("--trace", folder.path() / "no" / "x"); }, "--trace", "no/x",
                      "No such file"));
  EXPECT_TRUE(refused([&] { check_output_file("--trace", ""); }, "--trace", "not the name of a file"));
  EXPECT_TRUE(
      refused([&] { check_output_file("--trace", folder.path() / std::string(300, 'n')); }, "too long"));
  EXPECT_TRUE(refused([&] { check_output_file("--trace", "/proc/streambp"); }, "/proc/streambp"));
}

}  // namespace
}  // namespace streambp
