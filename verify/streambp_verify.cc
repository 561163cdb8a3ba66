// streambp-verify: is it exact?
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "bench/cli/command_line.h"
#include "bench/cli/completion.h"
#include "bench/cli/environment.h"
#include "bench/cli/standard_streams.h"
#include "verify/commands/commands.h"

int main(int argc, char** argv) {
  using namespace streambp;
  open_standard_streams();
  CLI::App app(
      "Checks that back-propagation is exact: against other people's numbers, between methods, and anyone's "
      "gradients.",
      "streambp-verify");
  app.set_version_flag("--version", "streambp-verify " + version_text() + "\n" +
                                        libraries_text({"Eigen " STREAMBP_EIGEN_VERSION}));
  app.require_subcommand(1);
  app.get_formatter()->column_width(32);
  std::function<int()> action;
  verify::add_goldens_command(app, action);
  verify::add_sweep_command(app, action);
  verify::add_gradcheck_command(app, action);
  verify::add_precision_command(app, action, argc, argv);
  verify::add_compare_command(app, action);
  verify::add_rollout_command(app, action);
  verify::add_long_command(app, action);
  add_completion_command(app, action);
  end_program("streambp-verify", run_command_line(app, argc, argv, [&action] { return action(); }));
}
