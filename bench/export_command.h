// The flags of `streambp-bench export`.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::bench {

/// Adds the subcommand, which writes a preset with random weights as a Hugging Face folder, to `app`. When it
/// is the one that is called, `action` receives its work.
void add_export_command(CLI::App& app, std::function<int()>& action);

}  // namespace streambp::bench
