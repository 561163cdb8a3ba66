// What the equality sweep prints.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "streambp/backprop/settings.h"
#include "verify/equality/subject.h"
#include "verify/error_measure.h"
#include "verify/streaming_table.h"

namespace streambp::verify {

struct EqualityFailure {
  std::string what;    // "streambp chunk 7, head chunk 3, against standard"
  std::string error;   // "3 of 27 beyond 1.0e-12, worst model.norm.weight 2.1e-03"
  std::string repeat;  // command line
};

/// What a table row says.
struct EqualityRow {
  RowName name;
  std::vector<int64_t> lengths;
  int64_t comparisons = 0;
  int64_t failed = 0;
  double standard_error = 0.0;
  double reference_error = 0.0;
  ParameterError worst;            // against standard
  std::set<std::string> settings;  // that ran, chunk sizes aside
  std::vector<EqualityFailure> failures;

  std::string verdict() const { return failures.empty() ? "pass" : "FAIL"; }
};

/// "loss_type=ipo,beta=0.3", as --set takes it.
std::string settings_text(const std::map<std::string, std::string>& settings);

/// What repeats a run of `settings` on a row. `alone`: without its variants, with `micro_batches`
/// (EqualityOptions).
std::string repeat_command(const RowName& name, uint64_t seed, const Settings& settings, bool alone,
                           int64_t micro_batches);

/// One JSON object on a line of its own.
void print_json(const EqualityRow& row);

/// A table with a row for each name, as wide as they need.
StreamingTable equality_table(const std::vector<RowName>& names);

/// The row of equality_table.
std::vector<std::string> table_row(const EqualityRow& row);

/// What failed and how to repeat it, which settings ran with which models, objectives and batches, then the
/// number of comparisons.
void print_summary(const std::vector<EqualityRow>& rows);

}  // namespace streambp::verify
