// The reader refuses what the reference reader (huggingface/safetensors) refuses, and the writer's files read
// back exactly. The byte strings named after a test of the reference are that test's.
#include "streambp/model/files/safetensors.h"

#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

using namespace std::string_literals;

std::span<const std::byte> as_span(std::string_view bytes) {
  return std::as_bytes(std::span(bytes));
}

SafetensorsHeader parse(std::string_view bytes) {
  return parse_safetensors(as_span(bytes), "test");
}

// A file with the right header length in front and `data_bytes` zeros behind.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// One tensor called "test".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                std::size_t data_bytes) {
  return file_of(R"({"test":)" + entry(dtype, shape, offsets) + "}", data_bytes);
}

std::string valid() {
  return one("I32", "[2,2]", "[0,16]", 16);
}

TEST(SafetensorsReader, AcceptsWhatTheReferenceAccepts) {
  const auto deserialization = parse(valid());
  ASSERT_EQ(deserialization.entries.size(), 1u);
  const SafetensorsEntry& test = deserialization.entries.at("test");
  EXPECT_EQ(test.dtype, "I32");
  EXPECT_EQ(test.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(test.begin, 0u);
  EXPECT_EQ(test.end, 16u);
  EXPECT_EQ(deserialization.data_begin, 8u + 60u);

  const auto empty_shapes_allowed =
      parse("8\0\0\0\0\0\0\0{\"test\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]}}\0\0\0\0"s);
  EXPECT_TRUE(empty_shapes_allowed.entries.at("test").shape.empty());
  EXPECT_EQ(empty_shapes_allowed.entries.at("test").end, 4u);

  EXPECT_TRUE(parse("\x06\0\0\0\0\0\0\0{}\x0D\x20\x09\x0A"s).entries.empty());
  EXPECT_TRUE(parse("\x06\0\0\0\0\0\0\0\x09\x0A{}\x0D\x20"s).entries.empty());

  const auto zero_sized =
      parse("<\0\0\0\0\0\0\0{\"test\":{\"dtype\":\"I32\",\"shape\":[2,0],\"data_offsets\":[0, 0]}}"s);
  EXPECT_EQ(zero_sized.entries.at("test").shape, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(zero_sized.entries.at("test").end, 0u);

  // fp4: four elements of four bits. The offsets' order, not the header's, counts; empty tensors may lie
  // between.
  EXPECT_EQ(parse(one("F4", "[1,4]", "[0,2]", 2)).entries.size(), 1u);
  const auto shuffled =
      parse(file_of(R"({"c":)" + entry("U8", "[3]", "[2,5]") + R"(,"b":)" + entry("F32", "[0,7]", "[2,2]") +
                        R"(,"a":)" + entry("F16", "[]", "[0,2]") + R"(,"__metadata__":{"format":"pt"}})",
                    5));
  EXPECT_EQ(shuffled.entries.size(), 3u);
  EXPECT_EQ(shuffled.metadata.at("format"), "pt");
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":null})", 0)).metadata.empty());
}

TEST(SafetensorsReader, RefusesWhatTheReferenceRefuses) {
  const auto refuses = [](const std::string& bytes, const std::string& part) {
    return refused([&] { parse(bytes); }, "test: ", part);
  };
  EXPECT_TRUE(refuses(""s, "0 bytes"));  // header_too_small
  EXPECT_TRUE(refuses("<\0\0\0\0\0\0"s, "7 bytes"));
  EXPECT_TRUE(refuses("<\0\0\0\0\xff\xff\xff{\"test\":{}}"s, "at most 100000000"));  // header_too_large
  EXPECT_TRUE(refuses("\x01\xe1\xf5\x05\0\0\0\0{}"s, "header length 100000001, expected at most 100000000"));
  EXPECT_TRUE(refuses("\xff\xff\xff\xff\xff\xff\xff\xff{}"s, "expected at most"));
  EXPECT_TRUE(refuses("<\0\0\0\0\0\0\0"s, "only 0 bytes follow"));  // invalid_header_length
  EXPECT_TRUE(refuses("\x03\0\0\0\0\0\0\0{}"s, "header length 3, but only 2 bytes follow"));
  EXPECT_TRUE(refuses("\x01\0\0\0\0\0\0\0\xff"s, "not valid JSON"));  // invalid_header_non_utf8
  EXPECT_TRUE(refuses("\x01\0\0\0\0\0\0\0{"s, "not valid JSON"));     // invalid_header_not_json
  EXPECT_TRUE(
      refuses(valid() + "extra_bogus_data_for_polyglot_file", "50 bytes after the header, expected 16"));
  EXPECT_TRUE(refuses(valid().substr(0, 8 + 60 + 14), "14 bytes after the header, expected 16"));
  EXPECT_TRUE(refuses(one("I32", "[2,2]", "[0, 4]", 0), "hold 4 bytes, expected 16"));  // invalid_info
  EXPECT_TRUE(refuses(one("I32", "[2,18446744073709551614]", "[0,16]", 16), "overflows"));
  EXPECT_TRUE(refuses(one("I32", "[2,9223372036854775807]", "[0,16]", 16), "overflows 64 bits"));
  EXPECT_TRUE(refuses(one("I32", "[4,9223372036854775807,0]", "[0,0]", 0), "overflows 64 bits"));
  EXPECT_TRUE(refuses(one("F4", "[1,3]", "[0,1]", 1), "do not end on a byte"));  // fp4_misaligned
  EXPECT_TRUE(refuses(one("F6_E2M3", "[3]", "[0,2]", 2), "do not end on a byte"));
}

TEST(SafetensorsReader, RefusesTheRest) {
  const auto refuses = [](const std::string& header, std::size_t data_bytes, const std::string& part) {
    return refused([&] { parse(file_of(header, data_bytes)); }, "test: ", part);
  };
  const std::string four = entry("U8", "[4]", "[0,4]");
  EXPECT_TRUE(refuses("", 0, "not valid JSON"));
  EXPECT_TRUE(refuses("[]", 0, "not a JSON object"));
  EXPECT_TRUE(refuses("null", 0, "not a JSON object"));
  EXPECT_TRUE(refuses("{}{}", 0, "not valid JSON"));
  EXPECT_TRUE(refuses("{}\0"s, 0, "NUL byte"));
  EXPECT_TRUE(refuses("\xEF\xBB\xBF{}", 0, "byte order mark"));
  EXPECT_TRUE(refuses("{\"a\xC3\":" + four + "}", 4, "not valid JSON"));
  EXPECT_TRUE(refuses(R"({"\ud800":)" + four + "}", 4, "not valid JSON"));
  EXPECT_TRUE(refuses(R"({"a":)" + four + R"(,"a":)" + four + "}", 4, "\"a\" appears twice"));
  EXPECT_TRUE(refuses(R"({"__metadata__":{"k":"1","k":"2"}})", 0, "\"k\" appears twice"));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4,
                      "\"dtype\" appears twice"));
  EXPECT_TRUE(refuses(std::string(200, '[') + std::string(200, ']'), 0, "nested deeper"));
  EXPECT_TRUE(refuses(R"({"__metadata__":[]})", 0, "__metadata__ is not an object"));
  EXPECT_TRUE(refuses(R"({"__metadata__":{"k":1}})", 0, "expected a string"));
  EXPECT_TRUE(refuses(R"({"a":["U8",[4],[0,4]]})", 4, "expected an object"));
  EXPECT_TRUE(refuses(R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4, "dtype is missing"));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, "shape is missing"));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"U8","shape":[4]}})", 4, "data_offsets is missing"));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, "not a string"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("F33", "[4]", "[0,4]") + "}", 4, "unknown dtype \"F33\""));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("f32", "[1]", "[0,4]") + "}", 4, "unknown dtype"));
  for (const char* size : {"-1", "-0", "4.0", "4e0", "\"4\"", "null", "18446744073709551616", "[4]"}) {
    EXPECT_TRUE(
        refuses(R"({"a":)" + entry("U8", "["s + size + "]", "[0,4]") + "}", 4, "not a non-negative integer"))
        << size;
    EXPECT_TRUE(
        refuses(R"({"a":)" + entry("U8", "[4]", "[0,"s + size + "]") + "}", 4, "not a non-negative integer"))
        << size;
  }
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "4", "[0,4]") + "}", 4, "not an array"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "[4]", "[0,4,4]") + "}", 4, "not an array of two"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "[4]", "[0]") + "}", 4, "not an array of two"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "[4]", "[4,0]") + "}", 4, "run backwards"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "[4]", "[1,5]") + "}", 5, "hole"));
  EXPECT_TRUE(refuses(R"({"a":)" + four + R"(,"b":)" + entry("U8", "[1]", "[5,6]") + "}", 6, "hole"));
  EXPECT_TRUE(refuses(R"({"a":)" + four + R"(,"b":)" + entry("U8", "[2]", "[3,5]") + "}", 5, "overlap"));
  EXPECT_TRUE(refuses(R"({"a":)" + four + R"(,"b":)" + entry("U8", "[0]", "[2,2]") + "}", 4, "overlap"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "[18446744073709551615]", "[0,18446744073709551615]") + "}", 4,
                      "overflow"));
  EXPECT_TRUE(refuses(R"({"a":)" + entry("U8", "[1]", "[18446744073709551614,18446744073709551615]") + "}", 1,
                      "hole"));
  // A name cannot break the message, and a long one is cut.
  EXPECT_TRUE(refuses("{\"a\\nb\xC3\xA9\":0}", 0, R"("a\nb\u00e9")"));
  EXPECT_TRUE(refuses("{\"" + std::string(5000, 'x') + "\":0}", 0, "xxx..."));
}

TEST(SafetensorsReader, KnowsTheDtypesOfTheReference) {
  const std::map<std::string, int> bits = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, expected] : bits) {
    EXPECT_EQ(safetensors_bits(name), expected) << name;
    const std::string bytes =
        std::to_string(expected);  // eight elements take as many bytes as one takes bits
    EXPECT_EQ(
        parse(one(name, "[2,4]", "[0," + bytes + "]", static_cast<std::size_t>(expected))).entries.size(), 1u)
        << name;
  }
  EXPECT_EQ(safetensors_bits("F128"), 0);
  EXPECT_EQ(safetensors_bits(""), 0);
}

TEST(SafetensorsReader, RefusesEveryPrefixAndEveryExtension) {
  const std::string bytes =
      file_of(R"({"a":)" + entry("F16", "[3]", "[0,6]") + R"(,"b":)" + entry("U8", "[1]", "[6,7]") + "}", 7);
  ASSERT_EQ(parse(bytes).entries.size(), 2u);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(refused([&] { parse(std::string_view(bytes).substr(0, size)); })) << size << " bytes";
  }
  EXPECT_TRUE(refused([&] { parse(bytes + '\0'); }, "8 bytes after the header, expected 7"));
}

TEST(SafetensorsReader, RefusesAbuseFast) {
  std::string lying = valid();  // safetensors_abuse_attempt_1.py
  lying[0] = '\xe8';
  lying[1] = '\x03';
  EXPECT_TRUE(refused([&] { parse(lying); }, "header length 1000"));

  std::string header = "{";  // safetensors_abuse_attempt_3.py
  for (int i = 0; i < 100'000; ++i) {
    header += (i > 0 ? ",\"weight_" : "\"weight_") + std::to_string(i) +
              "\":" + entry("F32", "[200,200]", "[0,160000]");
  }
  const std::string bytes = file_of(header + "}", 160'000);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(refused([&] { parse(bytes); }, "tensors overlap"));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("100,000 overlapping tensors refused in %.2f s\n", seconds.count());
  EXPECT_LT(seconds.count(), 30.0);  // quadratic work would take minutes
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const auto open = [&] { SafetensorsFile::open(path); };
  EXPECT_TRUE(refused(open, path.string(), "No such file"));
  std::filesystem::create_symlink(path, path);
  EXPECT_TRUE(refused(open, path.string(), "cannot be opened"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_TRUE(refused(open, path.string(), "not a regular file"));
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(refused(open, path.string(), "not a regular file"));
  std::filesystem::remove(path);
  folder.write("x.safetensors", "");
  EXPECT_TRUE(refused(open, path.string(), "0 bytes"));
  folder.write("x.safetensors", valid().substr(1));
  EXPECT_TRUE(refused(open, path.string()));
}

TEST(SafetensorsFile, OutlivesItsNameAndItsFirstCopy) {
  const TempFolder folder;
  std::optional<SafetensorsFile> copy;
  {
    std::string text = valid();
    text.back() = '\x7f';
    const SafetensorsFile file = SafetensorsFile::open(folder.write("x", text));
    copy = file;
    EXPECT_TRUE(refused([&] { file.bytes("Test"); }, "no tensor \"Test\"", file.path().string()));
    EXPECT_TRUE(refused([&] { file.entry("__metadata__"); }, "no tensor"));
  }
  std::filesystem::remove(folder.path() / "x");
  const std::vector<std::byte> bytes = copy->bytes("test");
  ASSERT_EQ(bytes.size(), 16u);
  EXPECT_EQ(bytes.back(), std::byte{0x7f});
  std::array<std::byte, 3> part{};
  copy->read("test", 13, part);
  EXPECT_EQ(part.back(), std::byte{0x7f});
  EXPECT_THROW(copy->read("test", 14, part), std::out_of_range);
  EXPECT_THROW(copy->read("test", 17, {}), std::out_of_range);
}

// A map of it would end the process with a bus error.
TEST(SafetensorsFile, SaysThatItWasTruncatedMeanwhile) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const std::vector<std::byte> zeros(1'000'000);
  write_safetensors(path, {{"a", "U8", {1'000'000}, zeros}, {"b", "U8", {8}, std::span(zeros).first(8)}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, 500'000);
  EXPECT_TRUE(refused([&] { file.bytes("a"); }, ": 500000 bytes, it had 10", "truncated meanwhile"));
  EXPECT_TRUE(refused([&] { file.bytes("b"); }, path.string(), "truncated meanwhile"));
}

TEST(SafetensorsWriter, SortsAlignsAndReadsBack) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::string data = "0123456789abcdefghijklmnopqrstuvwxyz";
  const auto bytes = [&](std::size_t n) { return as_span(data).subspan(0, n); };
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"quote\"\n", "\xC3\xA9"}};
  write_safetensors(path,
                    {{"z.u8", "U8", {3}, bytes(3)},
                     {"b.f16", "F16", {5}, bytes(10)},
                     {"a.bf16", "BF16", {1, 1, 1}, bytes(2)},
                     {"f4", "F4", {2, 3}, bytes(3)},
                     {"empty", "I64", {4, 0, 2}, bytes(0)},
                     {"scalar \"\xE2\x82\xAC\"", "F64", {}, bytes(8)},
                     {"f32", "F32", {2, 1}, bytes(8)}},
                    metadata);
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.entries().size(), 7u);
  const auto check = [&](const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                         uint64_t begin, std::size_t n) {
    const SafetensorsEntry& found = file.entry(name);
    EXPECT_EQ(found.dtype, dtype) << name;
    EXPECT_EQ(found.shape, shape) << name;
    EXPECT_EQ(found.begin, begin) << name;
    ASSERT_EQ(file.bytes(name).size(), n) << name;
    EXPECT_TRUE(std::ranges::equal(file.bytes(name), bytes(n))) << name;
  };
  check("empty", "I64", {4, 0, 2}, 0, 0);
  check("scalar \"\xE2\x82\xAC\"", "F64", {}, 0, 8);
  check("f32", "F32", {2, 1}, 8, 8);
  check("a.bf16", "BF16", {1, 1, 1}, 16, 2);
  check("b.f16", "F16", {5}, 18, 10);
  check("z.u8", "U8", {3}, 28, 3);
  check("f4", "F4", {2, 3}, 31, 3);
  EXPECT_EQ(parse_safetensors(as_span(read_bytes(path)), "x").data_begin % 8, 0u);
  EXPECT_EQ(read_bytes(path)[8], '{');
  EXPECT_EQ(folder.count(), 1);

  write_safetensors(path, {});
  EXPECT_EQ(read_bytes(path), "\x08\0\0\0\0\0\0\0{}      "s);
  EXPECT_TRUE(SafetensorsFile::open(path).entries().empty());
}

TEST(SafetensorsWriter, RandomFilesReadBack) {
  std::mt19937 random(20240607);
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const std::vector<std::string> dtypes = {"F64", "F32", "BF16", "U8", "F4", "F6_E3M2", "I64"};
  for (int round = 0; round < 50; ++round) {
    std::vector<SafetensorsView> views;
    std::vector<std::vector<std::byte>> storage(random() % 9);
    for (auto& bytes : storage) {
      const std::string& dtype = dtypes[random() % dtypes.size()];
      std::vector<int64_t> shape(random() % 4);
      for (auto& size : shape) size = static_cast<int64_t>(random() % 6);
      if (safetensors_bits(dtype) < 8) shape.push_back(4);
      bytes.resize(safetensors_size(dtype, shape));
      for (auto& b : bytes) b = static_cast<std::byte>(random());
      views.push_back({"t" + std::to_string(views.size()), dtype, shape, bytes});
    }
    write_safetensors(path, views);
    const SafetensorsFile file = SafetensorsFile::open(path);
    ASSERT_EQ(file.entries().size(), views.size());
    for (const auto& view : views) {
      EXPECT_EQ(file.entry(view.name).dtype, view.dtype);
      EXPECT_EQ(file.entry(view.name).shape, view.shape);
      EXPECT_TRUE(std::ranges::equal(file.bytes(view.name), view.bytes))
          << "round " << round << " " << view.name;
    }
  }
}

TEST(SafetensorsWriter, ReplacesAFileThatIsOpen) {  // serialize_to_file_same_path_with_active_mmap
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const std::vector<float> values = {1.0f, 2.0f, 3.0f};
  write_safetensors(path, {{"w", "F32", {3}, std::as_bytes(std::span(values))}});
  const SafetensorsFile old = SafetensorsFile::open(path);
  const std::vector<std::byte> bytes = old.bytes("w");
  write_safetensors(path, {{"v", "F32", {3}, bytes}});
  EXPECT_TRUE(std::ranges::equal(SafetensorsFile::open(path).bytes("v"), std::as_bytes(std::span(values))));
  EXPECT_TRUE(std::ranges::equal(old.bytes("w"), std::as_bytes(std::span(values))));
}

TEST(SafetensorsWriter, RefusesBadTensors) {
  const TempFolder folder;
  const std::string data(64, 'x');
  const auto refuses = [&](std::vector<SafetensorsView> tensors, const std::string& part) {
    return refused([&] { write_safetensors(folder.path() / "x", tensors); }, "/x: ", part);
  };
  const auto four = as_span(data).subspan(0, 4);
  EXPECT_TRUE(refuses({{"a", "F33", {1}, four}}, "unknown dtype"));
  EXPECT_TRUE(refuses({{"a", "F32", {2}, four}}, "4 bytes, expected 8"));
  EXPECT_TRUE(refuses({{"a", "F32", {-1}, four}}, "negative"));
  EXPECT_TRUE(refuses({{"a", "F32", {int64_t{1} << 62, 4}, four}}, "overflows"));
  EXPECT_TRUE(refuses({{"a", "F32", {1}, four}, {"a", "U8", {4}, four}}, "taken"));
  EXPECT_TRUE(refuses({{"__metadata__", "F32", {1}, four}}, "reserved"));
  EXPECT_TRUE(refuses({{"\xff", "F32", {1}, four}}, "not UTF-8"));
  EXPECT_TRUE(refused([&] { write_safetensors(folder.path() / "x", {}, {{"k", "\xC3"}}); }, "not UTF-8"));
  // invalid_header_size_serialization
  const std::string large(kMaxSafetensorsHeader, 'a');
  EXPECT_TRUE(refused(
      [&] {
        write_safetensors(folder.path() / "x", {}, {{"k", large}});
      },
      "expected at most 100000000"));
  EXPECT_EQ(folder.count(), 0);
}

TEST(SafetensorsWriter, LeavesTheOldFileAndNothingElseWhenItFails) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const std::string data(1 << 20, 'x');
  const std::vector<SafetensorsView> tensors = {{"a", "U8", {1 << 20}, as_span(data)}};
  EXPECT_TRUE(refused([&] { write_safetensors(folder.path() / "no" / "x", tensors); }, "can't be written",
                      "No such file"));
  std::filesystem::create_directory(folder.path() / "d");
  EXPECT_TRUE(refused([&] { write_safetensors(folder.path() / "d", tensors); }, "can't be written"));
  std::filesystem::remove(folder.path() / "d");

  write_safetensors(path, {});
  const std::string before = read_bytes(path);
  // A limit on file sizes stands in for a full disk: the write fails in the middle.
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const struct rlimit limit = {300'000, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto result =
      refused([&] { write_safetensors(path, tensors); }, path.string(), "can't be written", "too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(result);
  EXPECT_EQ(read_bytes(path), before);
  EXPECT_EQ(folder.count(), 1);
}

}  // namespace
}  // namespace streambp
