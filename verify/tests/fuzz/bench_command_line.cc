#include "verify/tests/fuzz/bench_command_line.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/ranges.h>
#include <unordered_set>
#include <utility>

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

/// The flags of the commands that `has` wants, and what they lead to.
struct Program {
  Program(std::vector<std::string> words, const std::function<bool(const char*)>& has)
      : arguments(std::move(words)) {
    app.set_version_flag("--version", "fuzz");
    app.require_subcommand(1);
    bench::add_config_flags(app, write_config);
    static const char* const argv[] = {"streambp-bench"};
    for (const bench::CommandKind& kind : bench::command_kinds()) {
      if (!has(kind.name)) continue;
      if (kind.name != std::string("sweep")) {
        kind.add(app, action, 1, argv);
        continue;
      }
      bench::add_sweep_command(app, action, 1, argv, [this](const SweepOptions& options) {
        sweep = options;
        return 0;
      });
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void parse() {
    std::vector<const char*> argv{"streambp-bench"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    app.parse(static_cast<int>(argv.size()), argv.data());
  }

  std::vector<std::string> arguments;
  CLI::App app{"", "streambp-bench"};
  std::string write_config;
  bench::Action action;
  std::optional<SweepOptions> sweep;
};

}  // namespace

CommandLine read_command_line(const std::vector<std::string>& arguments, const std::string& file) {
  CommandLine line;
  Program program(
      arguments, [&](const char* name) { return is_named(name, arguments) || file.find(name) != file.npos; });
  try {
    program.parse();
    line.parsed = true;
  } catch (const CLI::ParseError&) {  // --help and --version too
    return line;
  }
  try {
    line.config = bench::config_text(program.app);
  } catch (const InputError&) {  // a value that a file can't hold
    return line;
  }
  if (program.app.get_subcommands().front()->get_name() != "sweep")
    return line;  // others go on to read files, or run
  try {
    program.action();
  } catch (const InputError&) {
  }
  line.sweep = program.sweep;
  return line;
}

Glance glance_at(const std::vector<std::string>& arguments) {
  static Program program({}, [](const char*) { return true; });
  static std::unordered_set<size_t> seen;
  try {
    program.arguments = arguments;
    program.parse();
    return seen.insert(std::hash<std::string>()(bench::config_text(program.app))).second ? Glance::kNew
                                                                                         : Glance::kSeen;
  } catch (const CLI::ParseError&) {
    return Glance::kRefused;
  } catch (const InputError&) {  // a value that a file can't hold
    return Glance::kNew;
  }
}

bool is_worth_reading(Glance glance, const std::string& text) {
  return glance == Glance::kNew || std::hash<std::string>()(text) % 16 == 0;
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
  if (options.setup.head_dtype) words += fmt::format("head {} ", c10::toString(*options.setup.head_dtype));
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
