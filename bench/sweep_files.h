// The files that a sweep reads and writes: what stands for the contents of the former, and that no two are
// the same.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/sweep_options.h"

namespace streambp::bench {

struct NamedFile {
  std::string flag;  // that names it, or the folder that it is in
  std::filesystem::path path;
};

struct InputFiles {
  std::vector<NamedFile> files;
  /// content_key() of what model, adapter, reference, teacher and tokens are read from, by these names;
  /// presets have none.
  std::map<std::string, std::string> keys;
};

/// With `config_only` no weights of models are read. Throws InputError for a file that can't be read.
InputFiles input_files(const SweepOptions& options, bool config_only);

/// results.jsonl, what a torn line of it is moved to, and the files of the flags.
std::vector<NamedFile> output_files(const SweepOptions& options);

/// Throws InputError naming both where one of the `outputs` is also an input or another output: the same file
/// by whatever name, or, where there is none yet, the same name in the same folder.
void check_distinct(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace streambp::bench
