// Which files a command may write: one rule for all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace streambp::bench {

struct NamedFile {
  std::string flag;  // that names it, or the folder that it is in
  std::filesystem::path path;
};

/// Throws InputError naming both where one of the `outputs` is also an input or another output: the same file
/// by whatever name, or, where there is none yet, the same name in the same folder.
void check_distinct(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

/// Throws InputError for an output that would replace what sweeps and training runs keep in their folders:
/// records, torn lines of them, the state that training goes on from. For outputs that a flag names, not for
/// a command's own records.
void check_replaces_no_records(const std::vector<NamedFile>& outputs);

}  // namespace streambp::bench
