// A table as a Parquet file, as data frames read it: one row group, plain encoding, nothing compressed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace streambp::bench {

struct ParquetColumn {
  std::string name;
  /// A value for each row. All booleans, all whole numbers or all numbers make a column of these; anything
  /// else makes one of text, of which values have to be strings. Null is null.
  std::vector<nlohmann::json> values;
};

/// Whether `values` make a column of text.
bool is_text(const std::vector<nlohmann::json>& values);

/// The bytes of the file; all columns are of one length.
std::string parquet_file(const std::vector<ParquetColumn>& columns);

}  // namespace streambp::bench
