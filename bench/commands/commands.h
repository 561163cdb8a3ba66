// The commands of streambp-bench. Each adds its flags to `app`; its callback puts into `action` what is to be
// run, which returns an exit code. `argc` and `argv` go into the records.
#pragma once

#include <functional>
#include <vector>

namespace CLI {
class App;
}

namespace streambp::bench {

using Action = std::function<int()>;

struct SweepOptions;

/// `run` is what the action does with the options: run_sweep, or, where only the reading of a command line is
/// tested, something else.
void add_sweep_command(CLI::App& app, Action& action, int argc, const char* const* argv,
                       const std::function<int(const SweepOptions&)>& run);
void add_max_length_command(CLI::App& app, Action& action);
void add_records_command(CLI::App& app, Action& action);
void add_report_command(CLI::App& app, Action& action);
void add_models_command(CLI::App& app, Action& action);
void add_bytes_per_token_command(CLI::App& app, Action& action, int argc, const char* const* argv);
void add_linear_command(CLI::App& app, Action& action, int argc, const char* const* argv);
void add_paper_command(CLI::App& app, Action& action, int argc, const char* const* argv);
void add_ranks_command(CLI::App& app, Action& action, int argc, const char* const* argv);
void add_export_command(CLI::App& app, Action& action);
void add_train_command(CLI::App& app, Action& action, int argc, const char* const* argv);

struct CommandKind {
  const char* name;
  std::function<void(CLI::App& app, Action& action, int argc, const char* const* argv)> add;
};

/// All of them, in the order of --help.
const std::vector<CommandKind>& command_kinds();

}  // namespace streambp::bench
