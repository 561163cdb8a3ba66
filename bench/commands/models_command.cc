#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "bench/commands/commands.h"
#include "streambp/model/config/config.h"

namespace streambp::bench {
namespace {

constexpr const char* kModelsExamples = R"(Examples:
  streambp-bench models
  streambp-bench models --json

Published sizes under their names; those that end in -cpu are small enough for a CPU, those in -tiny for a test. Their weights
are random. --model also takes the name of a repository (Qwen/Qwen3-4B is qwen3-4b), and a Hugging Face folder with weights.

Exit codes: 0 printed; 2 bad usage.)";

std::string count_text(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (count >= 1e9) return fmt::format("{:.2f} B", count * 1e-9);
  return count >= 1e6 ? fmt::format("{:.1f} M", count * 1e-6) : fmt::format("{:.1f} K", count * 1e-3);
}

struct Preset {
  std::string name;
  Config config;
  int64_t parameters;
};

std::vector<Preset> presets_by_size() {
  std::vector<Preset> presets;
  for (const std::string& name : preset_names()) {
    Config config = preset(name);
    const int64_t parameters = parameter_count(config);
    presets.push_back({name, std::move(config), parameters});
  }
  std::ranges::stable_sort(presets, {}, &Preset::parameters);
  return presets;
}

int run_models(bool as_json) {
  Table table(
      {"preset", "parameters", "layers", "hidden", "heads", "kv heads", "MLP", "vocabulary", "dtype"});
  for (const auto& [name, config, parameters] : presets_by_size()) {
    if (as_json) {
      fmt::print("{}\n", json_text({{"preset", name},
                                    {"family", config.family},
                                    {"parameters", parameters},
                                    {"layers", config.num_hidden_layers},
                                    {"hidden_size", config.hidden_size},
                                    {"heads", config.num_attention_heads},
                                    {"key_value_heads", config.num_key_value_heads},
                                    {"intermediate_size", config.intermediate_size},
                                    {"vocab_size", config.vocab_size},
                                    {"dtype", config.dtype}}));
      continue;
    }
    table.add({name, count_text(parameters), fmt::to_string(config.num_hidden_layers),
               fmt::to_string(config.hidden_size), fmt::to_string(config.num_attention_heads),
               fmt::to_string(config.num_key_value_heads), fmt::to_string(config.intermediate_size),
               fmt::to_string(config.vocab_size), config.dtype});
  }
  if (!as_json) fmt::print("{}", table.text());
  return kExitGood;
}

}  // namespace

void add_models_command(CLI::App& app, Action& action) {
  const auto as_json = std::make_shared<bool>(false);
  CLI::App* const command = app.add_subcommand("models", "The presets that --model takes, by size");
  command->footer(kModelsExamples);
  command->add_flag("--json", *as_json, "Print a JSON object for each instead of the table");
  command->callback([as_json, &action] { action = [as_json] { return run_models(*as_json); }; });
}

}  // namespace streambp::bench
