#include "bench/cli/environment.h"

#include <gtest/gtest.h>

namespace streambp {
namespace {

using nlohmann::json;

TEST(Environment, NamesTheMachineAndTheProgram) {
  const json environment = describe_environment(3, -1, {"program", "--flag"});
  EXPECT_EQ(environment.at("threads"), 3);
  EXPECT_TRUE(environment.at("gpu").is_null());
  EXPECT_FALSE(environment.contains("gpu_driver"));
  EXPECT_EQ(environment.at("argv"), json({"program", "--flag"}));
  EXPECT_GE(environment.at("cores"), 1);
  EXPECT_GT(environment.at("host_memory_bytes"), 0);
  EXPECT_FALSE(environment.at("cpu").get<std::string>().empty());
  const std::string commit = environment.at("commit");
  EXPECT_TRUE(commit == "unknown" ||
              (commit.size() == 40 && commit.find_first_not_of("0123456789abcdef") == std::string::npos))
      << commit;
  const std::string date = environment.at("date");
  EXPECT_EQ(date.size(), std::string("2026-01-02T03:04:05Z").size()) << date;
  EXPECT_EQ(date.back(), 'Z') << date;
}

TEST(Environment, DriverOfAGpuIsTheNumberInItsFirstLine) {
  EXPECT_EQ(driver_version_in(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"),
            "550.54.15");
  EXPECT_EQ(
      driver_version_in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"),
      "580.95.05");
  EXPECT_EQ(driver_version_in(""), "unknown");
}

}  // namespace
}  // namespace streambp
