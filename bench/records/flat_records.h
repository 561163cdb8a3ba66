// Records as a table that spreadsheets and data frames read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace streambp::bench {

/// A record and the results.jsonl that it comes from.
struct FiledRecord {
  std::string file;
  nlohmann::json record;
};

/// CSV (RFC 4180, LF): a header and a row for each record, in their order. The first column is `file`; each
/// other one is a member that some record has, in alphabetical order, those of objects with their path
/// ("settings.chunk", "breakdown_at_peak.weights"). What a record lacks, and null, is empty; lists of numbers
/// are joined by ";", other lists are JSON. Numbers keep all their digits.
std::string flat_csv(const std::vector<FiledRecord>& records);

/// The same table by columns, as render.py makes a Parquet file of it: an array of {"name", "values"}. A
/// column is of truth values, of whole numbers, of numbers or, where its records differ in this, of texts as
/// CSV has them; what a record lacks is null.
nlohmann::json flat_columns(const std::vector<FiledRecord>& records);

}  // namespace streambp::bench
