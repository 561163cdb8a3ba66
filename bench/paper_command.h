// The flags of `streambp-bench paper`: the paper's tables, published beside predicted beside measured.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::bench {

/// Adds the subcommand to `app`. When it is the one that is called, `action` receives its work.
void add_paper_command(CLI::App& app, std::function<int()>& action, int argc, const char* const* argv);

}  // namespace streambp::bench
