#include "bench/commands/help_format.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

#include "streambp/backprop/settings.h"

namespace streambp::bench {
namespace {

constexpr size_t kNameColumn = 32;

const std::vector<std::pair<const char*, std::set<std::string>>>& groups() {
  static const std::vector<std::pair<const char*, std::set<std::string>>> all{
      {"Model", {"--model", "--dtype", "--grad-dtype", "--head-dtype", "--freeze"}},
      {"Adapters",
       {"--lora-rank", "--lora-alpha", "--lora-targets", "--lora-rslora", "--adapter", "--quantize",
        "--double-quant"}},
      {"Data",
       {"--tokens", "--first-labels", "--documents", "--seq-len", "--batch", "--prompt", "--seed",
        "--micro-batches", "--divisor", "--text", "--data-seed"}},
      {"Objective", {"--objective", "--set", "--reference", "--release-reference", "--teacher"}},
      {"Method", {"--method", "--suggest"}},
      {"Memory",
       {"--weights", "--memory-limit", "--budget", "--margin", "--host-budget", "--trainer", "--optimizer",
        "--optimizer-bits", "--master-weights", "--fuse-optimizer", "--learning-rate", "--galore-rank",
        "--galore-history"}},
      {"Optimizer",
       {"--steps", "--schedule", "--warmup-steps", "--beta1", "--beta2", "--weight-decay", "--clip-norm",
        "--galore-damping"}},
      {"Ranks", {"--ranks", "--zero", "--divide", "--exchange", "--overlap", "--teraflops", "--link"}},
      {"Run", {"--device", "--threads", "--repeats", "--warmup", "--deterministic"}},
      {"Output",
       {"--out", "--resume", "--save-every", "--json", "--quiet", "--trace", "--snapshot", "--timeline",
        "--dump-gradients", "--output", "--markdown", "--flat", "--parquet"}}};
  return all;
}

/// The group of a flag; null where it has none of its own.
const char* group_of(const std::string& flag) {
  for (const auto& [group, flags] : groups()) {
    if (flags.contains(flag)) return group;
  }
  for (const SettingKind& kind : setting_kinds()) {
    if (flag == kind.flag) return "Method";
  }
  return nullptr;
}

std::set<std::string> group_names() {
  std::set<std::string> names;
  for (const auto& [group, flags] : groups()) names.insert(group);
  return names;
}

/// Columns of the terminal on stdout; 0 where it is none.
size_t terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(size_t width) : width_(width) { column_width(kNameColumn); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    if (width_ == 0) return CLI::Formatter::make_option(option, is_positional);
    std::string name = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    if (name.size() >= kNameColumn) {
      name = wrapped(name, width_, kNameColumn) + "\n" + std::string(kNameColumn, ' ');
    } else {
      name.resize(kNameColumn, ' ');
    }
    return name + hanging(make_option_desc(option)) + "\n";
  }

  /// One empty line between groups, where CLI11 leaves two.
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    const bool is_ours = group_names().contains(group);
    const std::string text = CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
    return is_ours ? text.substr(1) : text;
  }

  std::string make_description(const CLI::App* app) const override {
    const std::string text = CLI::Formatter::make_description(app);
    return width_ == 0 ? text : wrapped(text, width_, 0);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    const std::string text = CLI::Formatter::make_subcommand(command);
    return width_ == 0 ? text : wrapped(text, width_, kNameColumn - 2);
  }

  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = CLI::Formatter::make_footer(app);
    return width_ == 0 ? footer : wrapped(footer, width_, 2);
  }

 private:
  /// A description that stands right of the names.
  std::string hanging(const std::string& text) const {
    const std::string lines = wrapped(std::string(kNameColumn, ' ') + text, width_, 0);
    return lines.substr(kNameColumn);
  }

  size_t width_;  // 0: of no terminal
};

}  // namespace

std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    const size_t first = std::min(line.find_first_not_of(' '), line.size());
    const std::string margin(first + indent, ' ');
    const bool is_command = line.substr(first).starts_with("streambp-bench ") && first > 0;
    bool continues = false;
    while (!is_command && line.size() + (continues ? margin.size() : 0) > width) {
      const size_t room = width > margin.size() && continues ? width - margin.size() : width;
      size_t space = line.rfind(' ', room);
      if (space == std::string_view::npos || space <= (continues ? 0 : first))
        space = line.find(' ', continues ? 0 : first + 1);
      if (space == std::string_view::npos) break;
      out += (continues ? margin : "") + std::string(line.substr(0, space)) + "\n";
      line.remove_prefix(space + 1);
      continues = true;
    }
    out += (continues ? margin : "") + std::string(line);
    if (end == text.size()) break;
    out += '\n';
    begin = end + 1;
  }
  return out;
}

bool asks_for(std::string_view topic, int argc, const char* const* argv) {
  const std::vector<std::string_view> words(argv, argv + argc);
  return words.size() > 2 && words.back() == topic &&
         (words[words.size() - 2] == "--help" || words[words.size() - 2] == "-h");
}

std::string help_text(const std::string& text) {
  const size_t width = terminal_width();
  return width == 0 ? text : wrapped(text, width, 2);
}

void format_help(CLI::App& app) {
  const auto format = std::make_shared<HelpFormat>(terminal_width());
  app.formatter(format);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    command->formatter(format);
    for (CLI::Option* option : command->get_options()) {
      if (const char* group = group_of("--" + option->get_single_name())) option->group(group);
    }
  }
}

}  // namespace streambp::bench
