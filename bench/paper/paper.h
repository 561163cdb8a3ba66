// The paper's tables next to what the engine predicts on the meta device and what a GPU has measured.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/paper/measured.h"

namespace streambp::bench {

/// One figure of the paper and ours for one configuration.
struct PaperCell {
  std::string table;    // "3", "curves", "8", "9"
  std::string section;  // a table of its own in the report: an objective, a model
  std::string row;
  std::string column;
  std::string configuration;  // what was run
  std::string unit;
  bool more_is_better = false;
  std::optional<double> published = std::nullopt;  // none: "-", did not fit
  std::optional<double> predicted = std::nullopt;
  std::optional<double> measured = std::nullopt;
  bool testable = true;  // false: nothing here gives this figure
};

/// How near a figure has to be to count as reproduced.
inline constexpr double kPaperTolerance = 0.08;

/// Of the measured figure where there is one, else of the predicted: "reproduced" within kPaperTolerance of
/// the published one, "less memory" or "contradicted" beyond it, "not testable here" where there is none.
std::string paper_verdict(const PaperCell& cell);

/// A table of the report, with what was assumed to fill it.
struct PaperTable {
  std::string name;
  std::string title;
  std::vector<std::string> assumptions;
  std::vector<PaperCell> cells;
  std::vector<nlohmann::json> records;  // of the predictions
};

/// What the tables are filled from.
struct PaperRun {
  int64_t budget = 0;  // bytes of the card that tensors can have
  Measured measured;
  std::function<void(const std::string&)> progress;
};

/// Table 3: the longest sequence that fits with optimizer states; and which optimizer the published lengths
/// agree with.
PaperTable paper_lengths(const PaperRun& run);
/// The figure of peak memory against length, of three models.
PaperTable paper_curves(const PaperRun& run);
/// Table 8: the linear example.
PaperTable paper_linear(const PaperRun& run);
/// Table 9: peaks of two further models.
PaperTable paper_peaks(const PaperRun& run);

/// The report: a summary of the verdicts, then every table with its assumptions.
std::string paper_markdown(const std::vector<PaperTable>& tables, int64_t budget);
/// A line for each cell, after a header.
std::string paper_csv(const std::vector<PaperTable>& tables);

}  // namespace streambp::bench
