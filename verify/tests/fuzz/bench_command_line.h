// The command line of streambp-bench, read without anything being run, for the targets that fuzz it.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/sweep_options.h"

namespace streambp::fuzz {

/// One reading of a command line.
struct CommandLine {
  bool parsed = false;                                 // by CLI11: every flag is known and has a value
  std::optional<streambp::bench::SweepOptions> sweep;  // of a `sweep` whose values are good as well
  std::string config;                                  // what --write-config would write
};

/// Reads `arguments` (those after the program's name) as streambp-bench does. Commands that none of
/// `arguments` names are left out, as they cost more time than all the rest. Bad usage and InputErrors are
/// expected answers; anything else that is thrown comes out.
CommandLine read_command_line(const std::vector<std::string>& arguments);

/// Whether `text`, as the file of --config, is refused before any flag of `sweep` has a value from it: no
/// TOML, or a name that no flag has. Costs little, as no flags are made anew.
bool is_refused_file(const std::string& text);

/// Aborts unless `options` keep what sweep_options.h and the checks of the flags promise.
void require_promises(const streambp::bench::SweepOptions& options);

/// What a sweep is asked to do, in words: equal for two command lines that say the same.
std::string in_words(const streambp::bench::SweepOptions& options);

}  // namespace streambp::fuzz
