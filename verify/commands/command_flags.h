// What the commands of streambp-verify share: flags that several of them have, and the reading of their
// values.
#pragma once

#include <CLI/App.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace streambp::verify {

/// The flags of every command. Lists come as text and are cut after parsing, so that their errors are ours.
struct CommonFlags {
  std::optional<int> threads;
  bool json = false;
};

/// Adds --json and --threads to `command`.
void add_common_flags(CLI::App& command, CommonFlags& flags);

/// Sets the number of CPU threads that --threads asks for. Throws InputError for a number out of range.
void use_threads(const CommonFlags& flags);

/// Adds the flags of every command, and makes `run` with `flags` the `action` of a command line that calls
/// `command`.
template <class Flags>
void set_action(CLI::App& command, const std::shared_ptr<Flags>& flags, std::function<int()>& action,
                int (*run)(const Flags&)) {
  add_common_flags(command, *flags);
  command.callback([flags, &action, run] {
    action = [flags, run] {
      use_threads(*flags);
      return run(*flags);
    };
  });
}

/// Adds --device, of checks that compare values.
void add_device_flag(CLI::App& command, std::string& device);

/// Puts the models of the checks on `name`, the value of --device. repeats_bits: a GPU's passes give equal
/// bits when they are repeated, as the CPU's do anyway (DeviceOptions::deterministic). Throws InputError for
/// a device without values.
void open_checked_device(const std::string& name, bool repeats_bits = false);

/// A share of a list, so that processes may divide it: every count-th entry, from the index-th on.
struct Part {
  size_t index = 1;
  size_t count = 1;

  bool holds(size_t i) const { return i % count == index - 1; }
};

/// Adds --part, whose values parse_part reads.
void add_part_flag(CLI::App& command, std::string& part, const std::string& of_what);

/// "2/4"; empty: all. Throws InputError.
Part parse_part(const std::string& text);

/// Adds --jobs: how many checks run at the same time.
void add_jobs_flag(CLI::App& command, int& jobs);

/// Throws InputError for a number of jobs out of range, or for more than one together with --threads.
void check_jobs(int jobs, const CommonFlags& flags);

/// The words of a list, or `otherwise` if it is empty.
std::vector<std::string> words_or(const std::string& list, const std::string& flag,
                                  std::vector<std::string> otherwise);

/// Throws InputError for a word that is not among `known`.
void require_known(const std::vector<std::string>& words, const std::string& flag,
                   const std::vector<std::string>& known);

/// The end of every command's --help.
inline constexpr const char* kExitCodes =
    "Exit codes: 0 every check holds; 1 a check fails; 2 bad usage or input; 3 out of memory.";

}  // namespace streambp::verify
