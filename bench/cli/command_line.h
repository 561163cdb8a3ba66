// What the two programs share on the command line: exit codes, lists, sizes.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "streambp/runtime/bytes.h"

namespace streambp {

/// Exit codes of both programs.
inline constexpr int kExitGood = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitOutOfMemory = 3;

/// Parses and runs: each subcommand's callback has put its work into `action`. Bad usage, InputError and a
/// file or folder that the system refuses end in one line on stderr and exit code 2, running out of memory in
/// 3, any other exception in 1; --help and --version print and return 0.
int run_command_line(CLI::App& app, int argc, const char* const* argv, const std::function<int()>& action);

/// Adds --seed, a whole number of 64 bits.
void add_seed_flag(CLI::App& command, const std::string& flag, uint64_t& seed, const std::string& help);

/// "512,1024" as numbers; `what` names the flag in errors. Throws InputError for an empty list, a number that
/// is not one, or one below `least`.
std::vector<int64_t> parse_integers(const std::string& list, const std::string& what, int64_t least);

/// "a,b,c" as words, none of them empty.
std::vector<std::string> parse_words(const std::string& list, const std::string& what);

/// "beta=0.1,loss_type=ipo" by name; an empty list has none. Throws InputError for an entry that is not
/// name=value, and for a name that is given twice.
std::map<std::string, std::string> parse_settings(const std::string& list, const std::string& what);

/// As parse_integers with `auto` (0) allowed.
std::vector<int64_t> parse_chunks(const std::string& list, const std::string& what);

/// "80GB", "512MiB", "1000B" as bytes: KB, MB, GB, TB (or K, M, G, T) are decimal, KiB, MiB, GiB, TiB binary,
/// whatever the case. Throws InputError, for a number without a unit too.
int64_t parse_bytes(const std::string& text, const std::string& what);

}  // namespace streambp
