// streambp-bench: what each method of back-propagation costs.
#include <string>
#include <utility>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/cli/standard_streams.h"
#include "bench/commands/commands.h"
#include "bench/commands/config_file.h"
#include "bench/commands/help_format.h"
#include "bench/commands/run_flags.h"
#include "streambp/backprop/method_kind.h"
#include "streambp/memory/meter.h"
#include "streambp/runtime/output_file.h"

int main(int argc, char** argv) {
  streambp::open_standard_streams();
  streambp::install_meters();
  CLI::App app("Measures memory and time of exact back-propagation: standard, checkpointed, streamed",
               "streambp-bench");
  app.set_version_flag("--version",
                       "streambp-bench " + streambp::version_text() + "\n" + streambp::libraries_text());
  app.require_subcommand(1);
  std::string write_config;
  streambp::bench::add_config_flags(app, write_config);
  streambp::bench::Action action;
  for (const streambp::bench::CommandKind& kind : streambp::bench::command_kinds())
    kind.add(app, action, argc, argv);
  streambp::bench::format_help(app);
  const std::pair<const char*, std::string (*)()> topics[] = {
      {"objectives", streambp::bench::describe_objectives}, {"methods", streambp::describe_methods}};
  for (const auto& [topic, describe] : topics) {
    if (!streambp::bench::asks_for(topic, argc, argv)) continue;
    fmt::print("{}", streambp::bench::help_text(describe()));
    streambp::end_program("streambp-bench", streambp::kExitGood);
  }
  const auto run = [&] {
    if (write_config.empty()) return action();
    streambp::write_file(write_config, streambp::bench::config_text(app));
    streambp::print_line(stdout, "written: {}", write_config);
    return streambp::kExitGood;
  };
  streambp::end_program("streambp-bench", streambp::run_command_line(app, argc, argv, run));
}
