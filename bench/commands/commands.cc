#include "bench/commands/commands.h"

#include "bench/cli/completion.h"
#include "bench/sweep/sweep.h"

namespace streambp::bench {
namespace {

/// Of a command that has no use for the command line as it was typed.
CommandKind kind(const char* name, void (*add)(CLI::App&, Action&)) {
  return {name, [add](CLI::App& app, Action& action, int, const char* const*) { add(app, action); }};
}

void add_sweep(CLI::App& app, Action& action, int argc, const char* const* argv) {
  add_sweep_command(app, action, argc, argv, run_sweep);
}

}  // namespace

const std::vector<CommandKind>& command_kinds() {
  static const std::vector<CommandKind> kinds{{"sweep", add_sweep},
                                              kind("max-length", add_max_length_command),
                                              kind("records", add_records_command),
                                              kind("report", add_report_command),
                                              kind("models", add_models_command),
                                              {"bytes-per-token", add_bytes_per_token_command},
                                              {"linear", add_linear_command},
                                              {"paper", add_paper_command},
                                              {"ranks", add_ranks_command},
                                              {"train", add_train_command},
                                              kind("export", add_export_command),
                                              kind("completion", add_completion_command)};
  return kinds;
}

}  // namespace streambp::bench
