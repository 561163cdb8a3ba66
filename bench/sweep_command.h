// The flags of `streambp-bench sweep`.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::bench {

/// Adds the subcommand to `app`. When it is the one that is called, `action` receives its work.
void add_sweep_command(CLI::App& app, std::function<int()>& action, int argc, const char* const* argv);

}  // namespace streambp::bench
