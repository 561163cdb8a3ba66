// Completion of a program's command line by bash: a script made of its own commands and flags.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

namespace streambp {

/// The command `completion bash`, which prints the script. `app` is to outlive it; commands that are added
/// to it later are in the script as well.
void add_completion_command(CLI::App& app, std::function<int()>& action);

/// The script. Values are completed of the flags for which the library has a list: presets, methods,
/// objectives, the words of settings.
std::string completion_script(const CLI::App& app);

}  // namespace streambp
