// A golden case's result: what is run for it, and what of it is counted.
#include "verify/golden_cases/check_case.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp::verify {
namespace {

GoldenCase golden_case(const std::string& name) {
  return find_golden_cases(std::string(STREAMBP_GOLDENS) + "/cases/" + name).front();
}

TEST(GoldenCheck, ChunksAreThoseNearTheCasesLengths) {
  GoldensOptions options;
  options.methods = {"chunk-major"};
  options.limit = -1.0;  // so that every run is among the failures
  const GoldenCase golden = golden_case("qwen3-sft-b3_left");
  const Batch batch = load_golden_case(golden).tasks.front().batch;
  const int64_t columns = batch.padded_columns, tokens = batch.size();
  const GoldenResult result = check_golden_case(golden, options);
  std::set<int64_t> chunks;
  for (const GoldenFailure& failure : result.failures) {
    std::smatch match;
    if (std::regex_search(failure.run, match, std::regex("^chunk-major, chunk ([0-9]+),")))
      chunks.insert(std::stoll(match[1]));
  }
  EXPECT_EQ(chunks, (std::set<int64_t>{1, 7, 16, columns - 1, columns, columns + 5, tokens - 1, tokens}));
}

TEST(GoldenCheck, AWrongLossIsSeenByItself) {
  GoldenCase golden = golden_case("qwen3-sft-b1");
  const TempFolder folder;
  std::filesystem::copy(golden.folder / "tensors.safetensors", folder.path() / "tensors.safetensors");
  nlohmann::json file = nlohmann::json::parse(std::ifstream(golden.folder / "case.json"));
  nlohmann::json& loss = file["expected"]["loss_with_num_items_in_batch"];
  loss = loss.get<double>() * 2.0;
  folder.write("case.json", file.dump());
  golden.folder = folder.path();
  GoldensOptions options;
  options.methods = {"standard"};
  const GoldenResult result = check_golden_case(golden, options);
  EXPECT_EQ(result.verdict(), "FAIL");
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures.front().of.name, "(loss)");
  EXPECT_NEAR(result.loss_error, 0.5, 1e-9);
  EXPECT_TRUE(result.log_probability_error <= 1e-10) << result.log_probability_error;
  EXPECT_TRUE(result.worst.error <= 1e-10) << result.worst.error;
}

}  // namespace
}  // namespace streambp::verify
