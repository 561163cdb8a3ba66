// What the paper's tables 4 and 5 say of runs on ranks, next to the runs.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/paper/published.h"
#include "bench/ranks/ranks_longest.h"

namespace streambp::bench {

class PublishedRows {
 public:
  /// The row of the paper that `run` stands next to, if it is of Qwen3-8B in bfloat16, trained in full under
  /// ZeRO-2: table 4's where `is_longest`, table 5's where a step has a time on paper (`step`). Its members
  /// for a record; null without one.
  nlohmann::json add(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks,
                     bool is_longest, const std::optional<StepOnPaper>& step);

  /// A line for each row, and for each length of table 5 that two methods have the ratio of their times.
  std::vector<std::string> lines() const;

 private:
  struct Times {
    double published = 0.0, on_paper = 0.0;
  };
  std::vector<std::string> rows_;
  std::map<std::pair<int64_t, int64_t>, std::map<std::string, Times>> times_;  // by ranks and length
};

}  // namespace streambp::bench
