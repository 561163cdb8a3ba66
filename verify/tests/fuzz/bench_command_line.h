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

/// Reads `arguments` (those after the program's name) as streambp-bench does. Commands that neither they nor
/// `file`, the text of their --config, names are left out, as they cost more time than all the rest. Bad
/// usage and InputErrors are expected answers; anything else that is thrown comes out.
CommandLine read_command_line(const std::vector<std::string>& arguments, const std::string& file = "");

/// What is known of `arguments` from flags of all commands that are made once, which costs far less than to
/// make them anew: CLI11 refuses them, or what --write-config would write was the same for others before
/// them.
enum class Glance { kRefused, kSeen, kNew };
Glance glance_at(const std::vector<std::string>& arguments);

/// Whether flags are to be made anew for `text`: for all that is new, and for one in 16 of the rest, which
/// most mutations are; to make them costs far more than a glance.
bool is_worth_reading(Glance glance, const std::string& text);

/// Aborts unless `options` keep what sweep_options.h and the checks of the flags promise.
void require_promises(const streambp::bench::SweepOptions& options);

/// What a sweep is asked to do, in words: equal for two command lines that say the same.
std::string in_words(const streambp::bench::SweepOptions& options);

}  // namespace streambp::fuzz
