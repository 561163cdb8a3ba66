// `streambp-verify precision`: a row for each dtype, gradient dtype, method and chunk.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "streambp/cli/command_line.h"
#include "streambp/cli/print.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"
#include "verify/checked_device.h"
#include "verify/command_flags.h"
#include "verify/commands.h"
#include "verify/precision.h"
#include "verify/streaming_table.h"

namespace streambp::verify {
namespace {

struct Flags : CommonFlags {
  std::string model = "qwen3-tiny";
  std::string objective = "sft";
  std::string methods;
  std::string chunks = "8,32";
  std::string lengths = "64";
  std::string dtype;
  std::string device = "cpu";
  int64_t batches = 24;
  uint64_t seed = 0;
};

constexpr const char* kExamples = R"(Examples:
  streambp-verify precision
  streambp-verify precision --objective dpo --dtype bfloat16 --method streambp,chunk-major --chunk 8

x standard: the parameter whose error is the most times standard back-propagation's own in the same precision, at
most 1.25.
)";

/// Standard back-propagation first, then the others.
std::vector<Settings> read_configurations(const Flags& flags) {
  std::vector<Settings> configurations(1);
  configurations[0].method = Method::kStandard;
  const std::vector<int64_t> chunks = parse_chunks(flags.chunks, "--chunk");
  for (const std::string& name : words_or(flags.methods, "--method", method_names())) {
    Settings settings;
    settings.method = parse_method(name);
    if (settings.method == configurations.front().method) continue;
    for (const int64_t chunk : is_chunked(settings.method) ? chunks : std::vector<int64_t>{0}) {
      settings.chunk = settings.head_chunk = chunk;
      if (!settings.streams_head()) settings.head_chunk = 0;
      configurations.push_back(settings);
    }
  }
  return configurations;
}

PrecisionSubject read_subject(const Flags& flags) {
  PrecisionSubject subject;
  subject.model = flags.model;
  subject.objective = flags.objective;
  subject.device = checked_device();
  subject.seq_len = parse_integers(flags.lengths, "--seq-len", 4).front();
  if (flags.batches < 1) throw InputError("--repeats {}: expected 1 or more batches", flags.batches);
  subject.batches = flags.batches;
  subject.seed = flags.seed;
  return subject;
}

/// One configuration in one pair of dtypes.
struct Row {
  const PrecisionSubject& subject;
  const Settings& settings;
  const Precision& precision;
  std::string worst_ratio_of;  // the parameter
  double worst_ratio = 0.0;    // of its error to standard's

  bool within() const { return worst_ratio <= kPrecisionFactor; }
};

void print_json(const Row& row) {
  const auto [worst, error] = row.precision.worst();
  fmt::print("{}\n", json_text({{"model", row.subject.model},
                                {"objective", row.subject.objective},
                                {"seq_len", row.subject.seq_len},
                                {"batches", row.subject.batches},
                                {"dtype", dtype_name(row.subject.dtype)},
                                {"gradient_dtype", dtype_name(row.subject.gradient_dtype)},
                                {"method", method_name(row.settings.method)},
                                {"chunk", row.settings.chunk},
                                {"loss_error", row.precision.loss},
                                {"worst_parameter", worst},
                                {"worst_error", error},
                                {"times_standard", row.worst_ratio},
                                {"times_standard_in", row.worst_ratio_of},
                                {"limit", kPrecisionFactor},
                                {"verdict", row.within() ? "ok" : "worse"}}));
  std::fflush(stdout);
}

StreamingTable make_table() {
  using enum StreamingTable::Align;
  return StreamingTable({{"dtype", 8, kLeft},
                         {"gradients", 0, kLeft},
                         {"method", 11, kLeft},
                         {"chunk", 0, kRight},
                         {"loss", 7, kRight},
                         {"worst gradient", 0, kRight},
                         {"x standard", 0, kRight},
                         {"worst gradient of", 45, kLeft},
                         {"x standard in", 0, kLeft}});
}

std::vector<std::string> table_row(const Row& row) {
  const auto [worst, error] = row.precision.worst();
  return {dtype_name(row.subject.dtype),
          dtype_name(row.subject.gradient_dtype),
          method_name(row.settings.method),
          row.settings.chunk > 0 ? std::to_string(row.settings.chunk) : "-",
          error_text(row.precision.loss),
          error_text(error),
          fmt::format("{:.2f}", row.worst_ratio),
          worst,
          row.worst_ratio_of};
}

int run_precision(const Flags& flags) {
  open_checked_device(flags.device);
  PrecisionSubject subject = read_subject(flags);
  const std::vector<Settings> configurations = read_configurations(flags);
  std::vector<at::ScalarType> dtypes{at::kFloat, at::kBFloat16};
  if (!flags.dtype.empty()) {
    require_known({flags.dtype}, "--dtype", {"float32", "bfloat16"});
    dtypes = {parse_dtype(flags.dtype)};
  }
  StreamingTable table = make_table();
  bool good = true;
  for (const at::ScalarType dtype : dtypes) {
    std::vector<at::ScalarType> gradient_dtypes{dtype};
    if (dtype != at::kFloat) gradient_dtypes.push_back(at::kFloat);
    for (const at::ScalarType gradient_dtype : gradient_dtypes) {
      subject.dtype = dtype;
      subject.gradient_dtype = gradient_dtype;
      const std::vector<Precision> all = measure_precision(subject, configurations);
      for (size_t i = 0; i < configurations.size(); ++i) {
        const auto [name, ratio] = times_standard(all[i], all[0], rounding_of(gradient_dtype));
        const Row row{subject, configurations[i], all[i], name, ratio};
        good = good && row.within();
        if (flags.json) {
          print_json(row);
        } else {
          table.add(table_row(row));
        }
      }
    }
  }
  if (!flags.json) {
    fmt::print(
        "\nx standard: the parameter whose error is the most times standard back-propagation's own; {}\n",
        good ? fmt::format("all within {}", kPrecisionFactor)
             : fmt::format("FAILED: beyond {}", kPrecisionFactor));
  }
  return good ? kExitGood : kExitCheckFailed;
}

}  // namespace

void add_precision_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = app.add_subcommand(
      "precision", "Errors of float32 and bfloat16 against the float64 truth, method by method");
  command->footer(std::string(kExamples) + "\n" + kExitCodes);
  command->add_option("--model", flags->model, "A folder or a preset")->capture_default_str();
  command->add_option("--objective", flags->objective, "Any but distill, with its default options")
      ->capture_default_str();
  command->add_option("--method", flags->methods, "Methods next to standard (default: all)");
  command->add_option("--chunk", flags->chunks, "Chunks of methods and heads that have them")
      ->capture_default_str();
  command->add_option("--seq-len", flags->lengths, "Tokens of each of two sequences")->capture_default_str();
  command->add_option("--repeats", flags->batches, "Batches, over which errors are root mean squares")
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16 (default: both)");
  add_device_flag(*command, flags->device);
  add_seed_flag(*command, flags->seed, "Of weights and tokens");
  set_action(*command, flags, action, run_precision);
}

}  // namespace streambp::verify
