// The flags of `streambp-bench linear`: the paper's linear example, predicted at its size or run at any.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::bench {

/// Adds the subcommand to `app`. When it is the one that is called, `action` receives its work.
void add_linear_command(CLI::App& app, std::function<int()>& action);

}  // namespace streambp::bench
