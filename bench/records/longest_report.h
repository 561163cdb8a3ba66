// What max-length answers: its rows as a table that fits a terminal and as JSON, and what was counted.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/sweep/cells/cell.h"
#include "streambp/plan/longest.h"

namespace streambp::bench {

/// A row of the table and an object of --json.
struct LongestRow {
  Cell cell;  // of the longest sequence that fits
  plan::LongestFit fit;
  std::optional<double> cost;       // relative to standard back-propagation; with --suggest
  bool best = false;                // with --suggest: the answer
  bool listed = true;               // in the table
  nlohmann::json choice = nullptr;  // of --method auto: how it was chosen
};

/// What the peaks of some objectives contain, and what they leave out, in a few words each.
struct Counted {
  std::vector<std::string> objectives;
  std::vector<std::string> counted, not_counted;
};

/// Of `bench`, whose objectives take the same models, which are `models`. `default_reference`: the reference
/// was not asked for.
Counted what_is_counted(const Bench& bench, const plan::Models& models, bool default_reference);

/// A device's memory as it was asked for, and what tensors may take of it and of the host's.
struct AskedBudget {
  int64_t bytes = 0;
  plan::Budget usable;

  int64_t margin() const { return bytes - usable.device; }
};

nlohmann::json longest_json(const Bench& bench, const LongestRow& row, const AskedBudget& budget,
                            const Counted& counted);

/// The table, at most 120 columns wide where names allow it: what all rows have in common stands above it,
/// and the parts of the peaks that don't fit are left to --json. With costs (--suggest) the answer comes
/// first, and each row has its flags. Above: model, device and optimizer. Below: what a length means, what is
/// counted, the budget.
std::string longest_text(const SweepOptions& options, const std::vector<LongestRow>& rows,
                         const AskedBudget& budget, const std::vector<Counted>& counted);

}  // namespace streambp::bench
