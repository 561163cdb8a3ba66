// The flags of `streambp-verify long`.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::verify {

/// Adds the subcommand to `app`. When it is the one that is called, `action` receives its work.
void add_long_command(CLI::App& app, std::function<int()>& action);

}  // namespace streambp::verify
