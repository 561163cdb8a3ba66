// A golden case's result: what is run for it, and what of it is counted.
#include "verify/golden_cases/check_case.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp::verify {
namespace {

GoldenCase golden_case(const std::string& name) {
  return find_golden_cases(std::string(STREAMBP_GOLDENS) + "/cases/" + name).front();
}

using Chunks = std::set<int64_t>;

/// The chunks of the runs of chunk-major, where every run is among the failures.
Chunks chunks_run(const GoldenCase& golden, GoldensOptions options, size_t turn = 0) {
  options.methods = {"chunk-major"};
  options.limit = -1.0;
  Chunks chunks;
  for (const GoldenFailure& failure : check_golden_case(golden, options, turn).failures) {
    std::smatch match;
    if (std::regex_search(failure.run, match, std::regex("^chunk-major, chunk ([0-9]+),")))
      chunks.insert(std::stoll(match[1]));
  }
  return chunks;
}

TEST(GoldenCheck, ChunksAreThoseNearTheCasesLengths) {
  const GoldenCase golden = golden_case("qwen3-sft-b3_left");
  const Batch batch = load_golden_case(golden).tasks.front().batch;
  const int64_t columns = batch.padded_columns, tokens = batch.size();
  const Chunks all{1, 7, 16, columns - 1, columns, columns + 5, tokens - 1, tokens};
  EXPECT_EQ(chunks_run(golden, {}), all);
  // Of a quick run one, of the next case the next.
  GoldensOptions quick;
  quick.quick = true;
  ASSERT_EQ(all.size(), 8u);
  for (size_t turn = 0; turn < 10; ++turn) {
    const int64_t chunk = *std::next(all.begin(), static_cast<int64_t>(turn % all.size()));
    EXPECT_EQ(chunks_run(golden, quick, turn), Chunks{chunk}) << turn;
  }
  quick.chunks = {3};
  EXPECT_EQ(chunks_run(golden, quick, 1), Chunks{3});
}

TEST(GoldenCheck, EveryMethodAndTheReferenceAreRun) {
  GoldensOptions options;
  options.chunks = {7};
  options.limit = -1.0;
  const GoldenResult result = check_golden_case(golden_case("qwen3-sft-b1"), options);
  EXPECT_EQ(result.model, "qwen3");
  // Every check is beyond -1 but that of config.legacy.json, which has no error.
  EXPECT_EQ(result.checks, static_cast<int64_t>(result.failures.size()) + 1);
  std::set<std::string> methods;
  double worst = 0.0;
  for (const GoldenFailure& failure : result.failures) {
    methods.insert(failure.run.substr(0, failure.run.find(',')));
    if (failure.of.name.ends_with(".weight")) worst = std::max(worst, failure.of.error);
  }
  for (const std::string& method : method_names()) EXPECT_TRUE(methods.contains(method)) << method;
  EXPECT_TRUE(methods.contains(kReferenceName));
  EXPECT_GT(worst, 0.0);
  EXPECT_EQ(result.worst.error, worst);
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
