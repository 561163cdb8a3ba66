// What stands for the contents of files: every byte of small ones, of large ones what shows at a glance.
#include "streambp/model/files/model_files.h"

#include <chrono>
#include <gtest/gtest.h>
#include <set>
#include <sys/stat.h>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

using std::filesystem::path;

const path kGoldenModels = path(STREAMBP_GOLDENS) / "models";

std::vector<std::string> names(const std::vector<path>& files) {
  std::vector<std::string> all;
  for (const path& file : files) all.push_back(file.filename().string());
  return all;
}

TEST(ModelFiles, AreThoseThatAreRead) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(model_files(kGoldenModels / "qwen3")), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(names(model_files(kGoldenModels / "qwen3", /*config_only=*/true)), Names{"config.json"});
  const auto sharded = names(model_files(kGoldenModels / "qwen3-bf16-sharded"));
  ASSERT_GE(sharded.size(), 4u);
  EXPECT_EQ(sharded[1], "model.safetensors.index.json");
  EXPECT_TRUE(sharded[2].starts_with("model-00001-of-")) << sharded[2];

  const TempFolder folder;
  EXPECT_EQ(names(model_files(folder.path())), Names{"config.json"})
      << "others say that there are no weights";
  EXPECT_TRUE(adapter_files(folder.path()).empty());
  folder.write(
      "model.safetensors.index.json",
      R"({"weight_map": {"a": "../../etc/passwd", "b": 3, "c": "here", "d": "missing", "e": "", "f": "."}})");
  folder.write("here", "");
  EXPECT_EQ(names(model_files(folder.path())),
            (Names{"config.json", "model.safetensors.index.json", "here"}));
  folder.write("model.safetensors.index.json", "{");
  EXPECT_TRUE(refused([&] { model_files(folder.path()); }, "index.json", "not valid JSON"));
}

TEST(ContentKey, SeesEveryByteOfASmallFile) {
  const TempFolder folder;
  const std::string bytes(3000, 'a');
  std::set<std::string> keys{content_key({folder.write("x", bytes)})};
  for (size_t i = 0; i < bytes.size(); i += 7) {
    std::string changed = bytes;
    changed[i] = 'b';
    EXPECT_TRUE(keys.insert(content_key({folder.write("x", changed)})).second) << "byte " << i;
  }
  EXPECT_TRUE(keys.insert(content_key({folder.write("y", bytes)})).second) << "another name";
  EXPECT_TRUE(keys.insert(content_key({folder.path() / "x", folder.path() / "y"})).second) << "two files";
  // Neither its time nor its folder matter.
  const path x = folder.write("x", bytes);
  std::filesystem::last_write_time(x, std::filesystem::file_time_type::clock::now() - std::chrono::hours(5));
  EXPECT_FALSE(keys.insert(content_key({x})).second);
}

TEST(ContentKey, SeesSizeTimeHeadAndPagesOfALargeFile) {
  const TempFolder folder;
  constexpr uint64_t kWhole = 1000;
  const std::string bytes(5 << 20, 'a');
  const path file = folder.write("x", bytes);
  const auto time = std::filesystem::last_write_time(file);
  const auto key_of = [&](const std::string& contents, std::chrono::seconds later = {}) {
    folder.write("x", contents);
    std::filesystem::last_write_time(file, time + later);
    return content_key({file}, kWhole);
  };
  std::set<std::string> keys{key_of(bytes)};
  EXPECT_FALSE(keys.insert(key_of(bytes)).second);
  EXPECT_TRUE(keys.insert(key_of(bytes, std::chrono::seconds(1))).second);
  EXPECT_TRUE(keys.insert(key_of(bytes + "a")).second);
  for (const size_t at : {size_t{0}, size_t{1 << 20} - 1, bytes.size() - 1, bytes.size() - 4096}) {
    std::string changed = bytes;
    changed[at] = 'b';
    EXPECT_TRUE(keys.insert(key_of(changed)).second) << "byte " << at;
  }
  // Other weights differ everywhere.
  std::string changed = bytes;
  for (size_t i = 2 << 20; i < changed.size(); i += 16384)
    changed[i] = changed[i + 4096] = changed[i + 8192] = 'b';
  EXPECT_TRUE(keys.insert(key_of(changed)).second);
}

TEST(ContentKey, RefusesWhatCannotBeRead) {
  const TempFolder folder;
  const path fifo = folder.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(refused([&] { content_key({fifo}); }, "fifo", "not a regular file"));
  EXPECT_TRUE(refused([&] { content_key({folder.path()}); }, "not a regular file"));
  EXPECT_TRUE(refused([&] { content_key({folder.path() / "none"}); }, "none", "No such file"));
}

}  // namespace
}  // namespace streambp
