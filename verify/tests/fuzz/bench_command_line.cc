#include "verify/tests/fuzz/bench_command_line.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/ranges.h>
#include <sstream>

#include "bench/commands.h"
#include "bench/config_file.h"
#include "streambp/error.h"

namespace streambp::fuzz {
namespace {

using streambp::bench::SweepOptions;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_named(const std::string& command, const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument.find(command) != std::string::npos;
  });
}

std::string path_text(const std::optional<std::filesystem::path>& path) {
  return path ? path->string() : "none";
}

}  // namespace

CommandLine read_command_line(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"streambp-bench"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const int argc = static_cast<int>(argv.size());

  CommandLine line;
  CLI::App app("", "streambp-bench");
  app.set_version_flag("--version", "fuzz");
  app.require_subcommand(1);
  std::string write_config;
  bench::add_config_flags(app, write_config);
  bench::Action action;
  for (const bench::CommandKind& kind : bench::command_kinds()) {
    if (!is_named(kind.name, arguments)) continue;
    if (kind.name != std::string("sweep")) {
      kind.add(app, action, argc, argv.data());
      continue;
    }
    bench::add_sweep_command(app, action, argc, argv.data(), [&](const SweepOptions& options) {
      line.sweep = options;
      return 0;
    });
  }
  try {
    app.parse(argc, argv.data());
    line.parsed = true;
  } catch (const CLI::ParseError&) {  // --help and --version too
    return line;
  }
  try {
    line.config = bench::config_text(app);
  } catch (const InputError&) {  // a value that a file can't hold
    return line;
  }
  if (app.get_subcommands().front()->get_name() != "sweep")
    return line;  // others go on to read files, or run
  try {
    action();
  } catch (const InputError&) {
  }
  return line;
}

bool is_refused_file(const std::string& text) {
  struct Sweep {
    CLI::App app{"", "streambp-bench"};
    std::string write_config;
    bench::Action action;
    Sweep() {
      bench::add_config_flags(app, write_config);
      bench::add_sweep_command(app, action, 0, nullptr, [](const SweepOptions&) { return 0; });
    }
  };
  static const Sweep sweep;
  std::istringstream file(text);
  try {
    sweep.app.get_config_formatter()->from_config(file);
    return false;
  } catch (const CLI::ParseError&) {
    return true;
  }
}

void require_promises(const SweepOptions& options) {
  require(!options.objectives.empty() && !options.lengths.empty() && !options.batches.empty());
  require(!options.methods.empty() || options.picks_method);
  for (const int64_t batch : options.batches) {
    for (const int64_t length : options.lengths)
      require(length >= 1 && batch >= 1 && length <= kMaxTokens / batch);
  }
  for (const int64_t chunk : options.chunks) require(chunk >= 0);
  require(options.repeats >= 0 && options.repeats <= 1'000'000);
  require(options.warmup >= 0 && options.warmup <= 1'000'000);
  require(options.prompt >= 0 && options.micro_batches >= 1);
  for (const auto& bytes : {options.budget, options.host_budget, options.memory_limit})
    require(!bytes || *bytes >= 1);
  require(!options.tokens || !options.tokens->empty());
  require(!options.setup.lora || options.setup.lora->r >= 1);
}

std::string in_words(const SweepOptions& options) {
  std::string words = fmt::format(
      "model {} reference {} teacher {} objectives {} options {} lengths {} batches {} chunks {} device {} "
      "threads {} repeats {} warmup {} deterministic {} prompt {} micro-batches {} fixed {} seed {} ",
      options.setup.model, options.setup.reference, options.setup.teacher, options.objectives,
      options.objective_options, options.lengths, options.batches, options.chunks, options.device,
      options.threads, options.repeats, options.warmup, options.deterministic, options.prompt,
      options.micro_batches, options.fixed, options.setup.seed);
  for (const Method method : options.methods) words += method_name(method) + " ";
  for (const auto& bytes : {options.budget, options.host_budget, options.memory_limit})
    words += bytes ? fmt::format("{} B ", *bytes) : "none ";
  for (const auto& path : {options.tokens, options.dump_gradients, options.trace, options.snapshot,
                           options.timeline, std::optional(options.out)})
    words += path_text(path) + " ";
  words += fmt::format("resume {} json {} quiet {} freeze {} dtype {} gradients {} ", options.resume,
                       options.json, options.quiet, options.setup.freeze, c10::toString(options.setup.dtype),
                       c10::toString(options.setup.gradient_dtype));
  words += fmt::format("adapter {} quantized {} host {} release {} ", path_text(options.setup.adapter),
                       options.setup.quantization.has_value(), options.setup.weights_on_host,
                       options.setup.release_reference);
  if (const auto& fused = options.setup.fused_optimizer)
    words += fmt::format("{} rate {} rank {} ", fused->name, fused->learning_rate, fused->rank);
  if (const auto& lora = options.setup.lora)
    words += fmt::format("r {} alpha {} rslora {} targets {}", lora->r, lora->lora_alpha, lora->use_rslora,
                         lora->target_modules);
  return words;
}

}  // namespace streambp::fuzz
