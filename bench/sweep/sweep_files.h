// The files that a sweep reads and writes, and what stands for the contents of the former.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/commands/output_rules.h"
#include "bench/sweep/sweep_options.h"

namespace streambp::bench {

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

}  // namespace streambp::bench
