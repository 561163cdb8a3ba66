// The file of records: what a killed run leaves is repaired, everything else that is wrong is refused.
#include "bench/cli/records.h"

#include <csignal>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json record(int64_t seq_len) {
  return {{"schema", kRecordSchema}, {"key", record_key(seq_len)}, {"seq_len", seq_len}};
}

std::string lines(std::initializer_list<int64_t> lengths) {
  std::string text;
  for (const int64_t length : lengths) text += record_line(record(length)) + '\n';
  return text;
}

TEST(RecordFile, CreatesTheFolderAndAppendsWholeLines) {
  const TempFolder folder;
  const auto nested = folder.path() / "a" / "b";
  {
    RecordFile file(nested);
    EXPECT_TRUE(file.records().empty());
    file.append(record(7));
    file.append(record(33));
    EXPECT_EQ(file.records().size(), 2u);
  }
  EXPECT_EQ(read_bytes(nested / "results.jsonl"), lines({7, 33}));
  RecordFile again(nested);
  ASSERT_EQ(again.records().size(), 2u);
  EXPECT_EQ(again.records()[1], record(33));
}

TEST(RecordFile, DropsATornLastLineWhereverItWasTorn) {
  const std::string last = lines({33});
  for (size_t kept = 1; kept + 1 < last.size(); ++kept) {
    const TempFolder folder;
    folder.write("results.jsonl", lines({7}) + last.substr(0, kept));
    {
      RecordFile file(folder.path());
      // Without its newline alone the record is whole; with any less it is none.
      ASSERT_EQ(file.records().size(), 1u) << kept << " bytes kept";
      file.append(record(65));
    }
    ASSERT_EQ(read_bytes(folder.path() / "results.jsonl"), lines({7, 65})) << kept << " bytes kept";
  }
}

TEST(RecordFile, ChangesNothingBeforeItStartsAndKeepsWhatWasTorn) {
  const std::string torn = lines({33}).substr(0, 20), nuls(4096, '\0');
  std::string kept;
  const TempFolder folder;
  for (const std::string& tail : {torn, nuls, std::string("{\"batch\":1,\"b")}) {
    const auto path = folder.write("results.jsonl", lines({7}) + tail);
    { const RecordFile only_read(folder.path()); }
    EXPECT_EQ(read_bytes(path), lines({7}) + tail);
    EXPECT_EQ(read_bytes(torn_lines_path(path)), kept);
    RecordFile file(folder.path());
    file.start();
    file.start();
    kept += tail + '\n';
    EXPECT_EQ(read_bytes(path), lines({7}));
    EXPECT_EQ(read_bytes(torn_lines_path(path)), kept);
  }
}

TEST(RecordFile, RefusesALastLineThatIsNotOurs) {
  for (const std::string foreign :
       {"notes", "{\"note\": \"two hours", "[", "\"", " {\"key\":", "{ ", "{\"b"}) {
    for (const std::string& before : {std::string(), lines({7})}) {
      if (before.empty() && foreign == "{\"b") continue;  // {"batch":
      const TempFolder folder;
      const auto path = folder.write("results.jsonl", before + foreign);
      EXPECT_EQ(
          static_cast<bool>(refused([&] { RecordFile file(folder.path()); }, path.string(), "JSON object")),
          foreign != "{\"b")
          << foreign;
      EXPECT_EQ(read_bytes(path), before + foreign);
      EXPECT_EQ(folder.count(), 1);
    }
  }
}

TEST(RecordFile, GivesALastLineItsEndBack) {
  const TempFolder folder;
  const std::string text = lines({7, 33});
  folder.write("results.jsonl", text.substr(0, text.size() - 1));
  {
    RecordFile file(folder.path());
    EXPECT_EQ(file.records().size(), 2u);
    file.append(record(65));
  }
  EXPECT_EQ(read_bytes(folder.path() / "results.jsonl"), lines({7, 33, 65}));
}

TEST(RecordFile, RefusesOtherDamageNamingFileAndLine) {
  const std::string good = lines({7});
  for (const std::string bad : {"{\"schema\": 1", "nonsense", "[1]", "1", "null", "\xff\xfe", ""}) {
    const TempFolder folder;
    const auto path = folder.write("results.jsonl", good + bad + "\n" + good);
    EXPECT_TRUE(refused([&] { RecordFile file(folder.path()); }, path.string(), "line 2", "JSON object"))
        << bad;
    EXPECT_EQ(read_bytes(path), good + bad + "\n" + good) << "a refused file must stay as it was";
  }
  for (const std::string other : {"{}", "{\"schema\": 2}", "{\"schema\": \"1\"}", "{\"schema\": null}"}) {
    const TempFolder folder;
    folder.write("results.jsonl", good + other + "\n");
    EXPECT_TRUE(refused([&] { RecordFile file(folder.path()); }, "line 2", "schema 1")) << other;
  }
}

TEST(RecordFile, RefusesFoldersThatCannotBeWritten) {
  const TempFolder folder;
  const auto file = folder.write("file", "");
  EXPECT_TRUE(refused([&] { RecordFile records(file); }, file.string(), "can't be"));
  EXPECT_TRUE(refused([&] { RecordFile records(file / "below"); }, "can't be created"));
  std::filesystem::create_directories(folder.path() / "taken" / "results.jsonl");
  EXPECT_TRUE(
      refused([&] { RecordFile records(folder.path() / "taken"); }, "results.jsonl", "can't be written"));
}

TEST(RecordFile, BelongsToOneRunAtATime) {
  const TempFolder folder;
  {
    const RecordFile first(folder.path());
    EXPECT_TRUE(refused([&] { RecordFile second(folder.path()); }, "another run"));
  }
  EXPECT_TRUE(RecordFile(folder.path()).records().empty());
}

TEST(RecordFile, SaysThatItWasRemovedOrReplaced) {
  const TempFolder folder;
  RecordFile file(folder.path());
  file.append(record(7));
  std::filesystem::rename(file.path(), folder.path() / "moved");
  EXPECT_TRUE(refused([&] { file.append(record(33)); }, "results.jsonl", "removed or replaced"));
  folder.write("results.jsonl", "");
  EXPECT_TRUE(refused([&] { file.append(record(33)); }, "results.jsonl", "removed or replaced"));
  EXPECT_EQ(read_bytes(folder.path() / "moved"), lines({7}));
  EXPECT_EQ(read_bytes(file.path()), "");
}

TEST(RecordFile, TakesBackWhatAFullDiskCutOff) {
  const TempFolder folder;
  RecordFile file(folder.path());
  file.append(record(7));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full{lines({7}).size() + 10, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_THROW(file.append(record(33)), std::runtime_error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_bytes(file.path()), lines({7}));
  file.append(record(65));
  EXPECT_EQ(read_bytes(file.path()), lines({7, 65}));
}

}  // namespace
}  // namespace streambp
