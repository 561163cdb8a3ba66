// `streambp-verify precision`: a row for each precision, method and chunk.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

#include <ATen/Parallel.h>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "streambp/error.h"
#include "verify/checked_device.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/precision_report.h"

namespace streambp::verify {
namespace {

struct PrecisionFlags : CommonFlags {
  std::string model = "qwen3-tiny";
  std::string objective = "sft";
  std::string methods;
  std::string chunks = "8,32";
  std::string lengths = "64";
  std::string precisions;
  std::string device = "cpu";
  std::string out;
  std::vector<std::string> arguments;  // the command line
  int64_t batches = 24;
  int64_t seeds = 1;
  uint64_t seed = 0;
  double lead = 0.0;
  bool curve = false;
  bool histogram = false;
};

constexpr const char* kPrecisionExamples = R"(Examples:
  streambp-verify precision
  streambp-verify precision --objective dpo --dtype bfloat16 --method streambp,chunk-major --chunk 8 --histogram
  streambp-verify precision --dtype float32 --lead 20
  streambp-verify precision --method streambp --curve --seeds 3 --out out/precision

x standard: the parameter whose error is the most times standard back-propagation's own in the same precision, at
most 1.25; of several seeds the median, parameter by parameter, with the most of any seed next to it. gradient: the
error of the worst parameter. mixed: bfloat16 with gradients summed in float32, and lm_head and its logits in
float32; the sums of a log-softmax are float32 everywhere. With --curve chunk-major in bfloat16 has no limit: its
chunks go through all layers one after another, and each one's part of a weight's gradient is rounded.

--histogram counts the entries of all gradients by their distance from the truth, in units in the last place of the
truth in the precision that was computed in (mixed: bfloat16): columns are upper ends, shares are in percent, and
entries that are 0 as the truth is are left out.
)";

std::vector<int64_t> halves(int64_t tokens) {
  std::vector<int64_t> chunks;
  for (int64_t count = 1; count < tokens; count *= 2) chunks.push_back((tokens + count - 1) / count);
  chunks.push_back(1);
  return chunks;
}

/// Of a method, 1, 2, 4, ... chunks and as many as tokens with the head at once; then the same of the head
/// with the layers at once.
std::vector<Settings> curve_of(Method method, int64_t tokens) {
  std::vector<Settings> curve;
  Settings settings;
  settings.method = method;
  if (settings.streams_head()) settings.head_chunk = tokens;
  for (const int64_t chunk : is_chunked(method) ? halves(tokens) : std::vector<int64_t>{0}) {
    settings.chunk = chunk;
    curve.push_back(settings);
  }
  if (!settings.streams_head()) return curve;
  settings.chunk = is_chunked(method) ? tokens : 0;
  for (const int64_t head_chunk : halves(tokens)) {
    settings.head_chunk = head_chunk;
    if (head_chunk < tokens) curve.push_back(settings);
  }
  return curve;
}

std::vector<Settings> at_chunks(Method method, const std::vector<int64_t>& chunks) {
  std::vector<Settings> all;
  Settings settings;
  settings.method = method;
  for (const int64_t chunk : is_chunked(method) ? chunks : std::vector<int64_t>{0}) {
    settings.chunk = settings.head_chunk = chunk;
    if (!settings.streams_head()) settings.head_chunk = 0;
    all.push_back(settings);
  }
  return all;
}

/// Standard back-propagation first, then the others.
std::vector<Settings> read_configurations(const PrecisionFlags& flags, int64_t tokens) {
  std::vector<Settings> configurations(1);
  configurations[0].method = Method::kStandard;
  const std::vector<int64_t> chunks = parse_chunks(flags.chunks, "--chunk");
  for (const std::string& name : words_or(flags.methods, "--method", method_names())) {
    const Method method = parse_method(name);
    if (method == configurations.front().method) continue;
    for (const Settings& settings : flags.curve ? curve_of(method, tokens) : at_chunks(method, chunks))
      configurations.push_back(settings);
  }
  return configurations;
}

PrecisionSubject read_subject(const PrecisionFlags& flags) {
  PrecisionSubject subject;
  subject.model = flags.model;
  subject.objective = flags.objective;
  subject.device = checked_device();
  subject.seq_len = parse_integers(flags.lengths, "--seq-len", 4).front();
  if (flags.batches < 1) throw InputError("--repeats {}: expected 1 or more batches", flags.batches);
  subject.batches = flags.batches;
  subject.seed = flags.seed;
  subject.lead = flags.lead;
  subject.entries = true;
  return subject;
}

std::vector<const PrecisionKind*> read_kinds(const PrecisionFlags& flags) {
  std::vector<std::string> names;
  for (const PrecisionKind& kind : precision_kinds()) names.push_back(kind.name);
  const std::vector<std::string> asked = words_or(flags.precisions, "--dtype", names);
  require_known(asked, "--dtype", names);
  std::vector<const PrecisionKind*> kinds;
  for (const PrecisionKind& kind : precision_kinds()) {
    if (std::find(asked.begin(), asked.end(), kind.name) != asked.end()) kinds.push_back(&kind);
  }
  return kinds;
}

/// All configurations in one precision.
std::vector<PrecisionRow> rows_of(const PrecisionKind& kind, const PrecisionFlags& flags,
                                  const std::vector<Settings>& configurations) {
  PrecisionSubject subject = read_subject(flags);
  subject.dtype = kind.dtype;
  subject.gradient_dtype = kind.gradient_dtype;
  subject.head_dtype = kind.head_dtype;
  std::vector<std::vector<Precision>> by_configuration(configurations.size());
  for (int64_t i = 0; i < flags.seeds; ++i) {
    PrecisionSubject seeded = subject;
    // Far apart: a seed's batches have the next ones.
    seeded.seed += static_cast<uint64_t>(i) * 1000;
    std::vector<Precision> all = measure_precision(seeded, configurations);
    for (size_t c = 0; c < all.size(); ++c) by_configuration[c].push_back(std::move(all[c]));
  }
  std::vector<PrecisionRow> rows;
  for (size_t c = 0; c < configurations.size(); ++c) {
    rows.push_back(
        precision_row(kind, subject, configurations[c], by_configuration[c], by_configuration.front()));
    rows.back().gated = !flags.curve || kind.gradient_dtype != at::kBFloat16 ||
                        configurations[c].method != Method::kChunkMajor;
  }
  return rows;
}

void print_ends(const std::vector<PrecisionRow>& rows, bool good) {
  fmt::print(
      "\nThe paper's table 6 next to the same here: mean |error| of an entry, and sum |error| / sum |truth| "
      "in "
      "%. It does\nnot say of which model, length and mean its figures are; its truth is float32, ours "
      "float64.\n\n");
  print_published(rows);
  fmt::print(
      "\nx standard: the parameter whose error is the most times standard back-propagation's own; {}\n",
      good ? fmt::format("all within {}", kPrecisionFactor)
           : fmt::format("FAILED: beyond {}", kPrecisionFactor));
  for (const PrecisionRow& row : rows) {
    if (row.gated || row.within()) continue;
    fmt::print("{} {}, {} chunks: beyond it, by sums rounded to bfloat16 (no limit)\n", row.kind->name,
               method_name(row.settings.method), std::max(row.chunks(), row.head_chunks()));
  }
}

int run_precision(const PrecisionFlags& flags) {
  open_checked_device(flags.device);
  if (flags.seeds < 1 || flags.seeds > 1000) throw InputError("--seeds {}: expected 1 to 1000", flags.seeds);
  const std::vector<Settings> configurations = read_configurations(flags, read_subject(flags).tokens());
  const std::vector<const PrecisionKind*> kinds = read_kinds(flags);
  std::optional<RecordFile> file;
  if (!flags.out.empty()) {
    file.emplace(flags.out);
    if (!file->records().empty())
      throw InputError("--out {}: holds records already, expected another folder", flags.out);
    file->start();
  }
  StreamingTable table = precision_table(flags.seeds > 1);
  std::vector<PrecisionRow> all;
  const c10::Device device = checked_device();
  for (const PrecisionKind* kind : kinds) {
    const nlohmann::json environment =
        describe_environment(at::get_num_threads(), device.is_cuda() ? device.index() : -1, flags.arguments);
    for (PrecisionRow& row : rows_of(*kind, flags, configurations)) {
      if (file) file->append(row_record(row, environment));
      if (flags.json) {
        fmt::print("{}\n", json_text(row_members(row)));
        std::fflush(stdout);
      } else {
        table.add(table_cells(row));
      }
      all.push_back(std::move(row));
    }
  }
  const bool good =
      std::all_of(all.begin(), all.end(), [](const PrecisionRow& row) { return row.within() || !row.gated; });
  if (flags.json) return good ? kExitGood : kExitCheckFailed;
  if (flags.histogram) {
    fmt::print(
        "\nEntries by distance from the truth, in units in the last place (up to 1/2: rounded right), %\n\n");
    StreamingTable ulps = ulp_table();
    for (const PrecisionRow& row : all) ulps.add(ulp_cells(row));
  }
  print_ends(all, good);
  return good ? kExitGood : kExitCheckFailed;
}

}  // namespace

void add_precision_command(CLI::App& app, std::function<int()>& action, int argc, const char* const* argv) {
  const auto flags = std::make_shared<PrecisionFlags>();
  flags->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "precision", "Errors of float32 and bfloat16 against the float64 truth, method by method");
  command->footer(std::string(kPrecisionExamples) + "\n" + kExitCodes);
  command->add_option("--model", flags->model, "A folder or a preset")->capture_default_str();
  command->add_option("--objective", flags->objective, "Any but distill, with its default options")
      ->capture_default_str();
  command->add_option("--method", flags->methods, "Methods next to standard (default: all)");
  CLI::Option* const chunk =
      command->add_option("--chunk", flags->chunks, "Chunks of methods and heads that have them")
          ->capture_default_str();
  command
      ->add_flag("--curve", flags->curve,
                 "In place of --chunk: 1, 2, 4, ... chunks up to one a token, of the layers and of the head")
      ->excludes(chunk);
  command->add_option("--seq-len", flags->lengths, "Tokens of each of two sequences")->capture_default_str();
  command->add_option("--repeats", flags->batches, "Batches, over which errors are root mean squares")
      ->capture_default_str();
  command
      ->add_option("--seeds", flags->seeds, "Models with batches of their own, over which medians are taken")
      ->capture_default_str();
  command
      ->add_option(
          "--lead", flags->lead,
          "Score sft's tokens on the model's best word, where it leads by some N nats: a float32 softmax "
          "keeps no digits of 1 - p beyond 16")
      ->capture_default_str();
  command->add_option("--dtype", flags->precisions, "float32, bfloat16, mixed (default: all)");
  command->add_flag("--histogram", flags->histogram, "Print the distances of single entries as well");
  command->add_option("--out", flags->out, "A folder for results.jsonl, a record of each row");
  add_device_flag(*command, flags->device);
  add_seed_flag(*command, "--seed", flags->seed, "Of weights and tokens");
  set_action(*command, flags, action, run_precision);
}

}  // namespace streambp::verify
