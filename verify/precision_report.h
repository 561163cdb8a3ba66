// What `streambp-verify precision` says of its rows: tables, records, and the paper's table 6 next to them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "verify/precision.h"
#include "verify/streaming_table.h"

namespace streambp::verify {

struct PrecisionKind {
  std::string name;
  at::ScalarType dtype;
  at::ScalarType gradient_dtype;
  at::ScalarType head_dtype;
};

/// float32; bfloat16; mixed: bfloat16 with gradients summed in float32 and lm_head in float32. The sums of a
/// log-softmax are float32 in all three.
const std::vector<PrecisionKind>& precision_kinds();

/// One configuration in one precision, over one or several seeds.
struct PrecisionRow {
  const PrecisionKind* kind = nullptr;
  PrecisionSubject subject;  // with the first seed
  Settings settings;
  std::vector<Precision> seeds;
  /// Of each parameter, the median over the seeds of how many times standard's own its error is.
  std::map<std::string, double> times;
  double most_times = 0.0;  // of any parameter and seed
  /// Whether it has to be within kPrecisionFactor. In bfloat16 chunk-major rounds each chunk's sum, which
  /// many chunks show.
  bool gated = true;

  Precision errors() const { return median_of(seeds); }
  std::pair<std::string, double> worst_times() const { return worst_of(times); }
  bool within() const { return worst_times().second <= kPrecisionFactor; }
  /// "ok", "worse", or, where nothing has to hold, "rounded sums".
  const char* verdict() const;
  /// How many chunks the layers, or the head, are cut into; 0 where they are not.
  int64_t chunks() const;
  int64_t head_chunks() const;
};

/// `of`, one Precision a seed, next to standard's of the same seeds.
PrecisionRow precision_row(const PrecisionKind& kind, const PrecisionSubject& subject,
                           const Settings& settings, std::vector<Precision> of,
                           const std::vector<Precision>& standard);

StreamingTable precision_table(bool several_seeds);
std::vector<std::string> table_cells(const PrecisionRow& row);

/// Shares of all entries of all gradients by their distance from the truth.
StreamingTable ulp_table();
std::vector<std::string> ulp_cells(const PrecisionRow& row);

/// "head" (LM head), "layers" or "other": the paper's parts of a model.
std::string part_of(const std::string& parameter);

/// Prints the paper's table 6 with the rows here that it has one of.
void print_published(const std::vector<PrecisionRow>& rows);

/// What --json prints of a row.
nlohmann::json row_members(const PrecisionRow& row);

/// A record of a row: its members, each parameter's error and ratio, each part's histogram, and what made it.
nlohmann::json row_record(const PrecisionRow& row, const nlohmann::json& environment);

}  // namespace streambp::verify
