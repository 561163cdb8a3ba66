// The folder of a report: its files replace those of an earlier one.
#pragma once

#include <filesystem>
#include <initializer_list>

#include "bench/cli/records.h"
#include "streambp/error.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {

/// Creates the folder of `--out` where it is missing. Throws InputError, before anything is computed, where
/// one of the `files` could not be written, or where the folder's results.jsonl holds measured records.
inline void open_report_folder(const std::filesystem::path& out, std::initializer_list<const char*> files) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) throw InputError("--out {}: {}", out.string(), error.message());
  for (const char* file : files) check_output_file("--out:", out / file);
  check_only_predicted(out);
}

}  // namespace streambp::bench
