// The flags of `streambp-bench max-length`.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::bench {

/// Adds the subcommand to `app`. When it is the one that is called, `action` receives its work.
void add_max_length_command(CLI::App& app, std::function<int()>& action);

}  // namespace streambp::bench
