// A report as a file.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "streambp/error.h"

namespace streambp::bench {

/// Creates the folder of `--out` where it is missing. Throws InputError.
inline void create_out(const std::filesystem::path& out) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) throw InputError("--out {}: {}", out.string(), error.message());
}

/// Replaces the file. Throws InputError where it can't be written.
inline void write_text_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw InputError("{}: can't be written", path.string());
}

}  // namespace streambp::bench
