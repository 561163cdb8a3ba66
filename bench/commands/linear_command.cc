#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "bench/cli/table.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/paper/linear_example.h"
#include "bench/paper/published.h"
#include "bench/records/json_members.h"
#include "bench/report_pages/statistics.h"
#include "streambp/error.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/runtime/device.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

struct TypedLinear {
  int64_t rows = kLinearRows;
  int64_t size = kLinearSize;
  std::string chunks = "20,50,100,200,500";
  std::string dtype = "float32";
  std::string device = "meta";
  int64_t repeats = 1;
  uint64_t seed = 0;
  bool json = false;
  std::vector<std::string> arguments;
};

constexpr const char* kLinearExamples = R"(Examples:
  streambp-bench linear
  streambp-bench linear --rows 4000 --size 512 --device cpu --dtype float64 --repeats 5

Intermediate: the peak without input, weights and gradients. The paper's figures stand next to those of its own size;
its text says 1,000,000 rows, but its bytes are those of 100,000, as in its authors' script.

Exit codes: 0 all good; 1 gradients differ by more than 4 sqrt(rows) units of rounding; 2 bad usage or input; 3 out of
memory.)";

const PublishedLinear* find_published(const LinearExample& example, const LinearRun& run) {
  if (example.rows != kLinearRows || example.size != kLinearSize || example.dtype != at::kFloat)
    return nullptr;
  for (const PublishedLinear& row : published_linear()) {
    if (row.chunks == run.chunks && run.method != LinearMethod::kInPlace) return &row;
  }
  return nullptr;
}

json to_json(const LinearExample& example, const LinearRun& run, const TypedLinear& typed) {
  return {{"schema", kRecordSchema},
          {"kind", example.device.is_meta() ? "predicted" : "measured"},
          {"example", "linear"},
          {"method", linear_method_name(run.method)},
          {"chunks", positive_or_null(run.chunks)},
          {"rows", example.rows},
          {"size", example.size},
          {"dtype", dtype_name(example.dtype)},
          {"device", typed.device},
          {"peak_bytes", run.peak_bytes},
          {"intermediate_bytes", run.intermediate_bytes},
          {"seconds", run.seconds},
          {"seconds_median", run.seconds.empty() ? json(nullptr) : json(median(run.seconds))},
          {"loss", or_null(run.loss)},
          {"gradient_error", or_null(run.error)},
          {"status", "ok"},
          {"environment",
           describe_environment(default_threads(), example.device.is_cuda() ? example.device.index() : -1,
                                typed.arguments)}};
}

std::string table_of(const LinearExample& example, const std::vector<LinearRun>& runs) {
  Table table(
      {"method", "chunks", "peak", "paper", "intermediate", "paper", "seconds", "paper", "gradient error"});
  for (const LinearRun& run : runs) {
    const PublishedLinear* const published = find_published(example, run);
    const auto of_paper = [&](double PublishedLinear::*figure, const char* unit) {
      return published == nullptr ? "-" : fmt::format("{:.2f} {}", published->*figure, unit);
    };
    table.add({linear_method_name(run.method), run.chunks > 0 ? fmt::format("{}", run.chunks) : "-",
               format_bytes(run.peak_bytes), of_paper(&PublishedLinear::peak, "GB"),
               format_bytes(run.intermediate_bytes), of_paper(&PublishedLinear::intermediate, "GB"),
               run.seconds.empty() ? "-" : fmt::format("{:.3f}", median(run.seconds)),
               of_paper(&PublishedLinear::seconds, "s"),
               run.error ? fmt::format("{:.1e}", *run.error) : "-"});
  }
  return table.text();
}

int run_linear(const TypedLinear& typed) {
  LinearExample example{typed.rows, typed.size, parse_dtype(typed.dtype), open_device(typed.device),
                        typed.seed};
  if (c10::elementSize(example.dtype) < 4) {
    throw InputError("--dtype {}: expected float32 or float64, in which the gradients can be compared",
                     typed.dtype);
  }
  const std::vector<LinearRun> runs =
      run_linear_example(example, parse_integers(typed.chunks, "--chunks", 1), typed.repeats);
  const double limit = linear_error_limit(example.rows, example.dtype);
  bool exact = true;
  for (const LinearRun& run : runs) exact = exact && (!run.error || *run.error <= limit);
  if (typed.json) {
    for (const LinearRun& run : runs) fmt::print("{}\n", json_text(to_json(example, run, typed)));
  } else {
    fmt::print("{}", table_of(example, runs));
  }
  if (exact) return kExitGood;
  fmt::print(stderr, "streambp-bench: gradients differ by more than {:.1e}\n", limit);
  return kExitCheckFailed;
}

}  // namespace

void add_linear_command(CLI::App& app, Action& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<TypedLinear>();
  typed->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "linear", "The paper's linear example: two maps, back-propagated at once and by chunks of rows");
  command->footer(kLinearExamples);
  command->add_option("--rows", typed->rows, "Rows of the input")
      ->capture_default_str()
      ->check(from_to(1, 1 << 30));
  command->add_option("--size", typed->size, "Of a row, and of the maps")
      ->capture_default_str()
      ->check(from_to(1, 1 << 20));
  command->add_option("--chunks", typed->chunks, "Numbers of chunks, comma-separated")->capture_default_str();
  command->add_option("--dtype", typed->dtype, "float32 or float64")->capture_default_str();
  command->add_option("--device", typed->device, "meta (memory is predicted), cpu or cuda")
      ->capture_default_str();
  command->add_option("--repeats", typed->repeats, "Timed passes of each")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  add_seed_flag(*command, "--seed", typed->seed, "Of the random numbers");
  command->add_flag("--json", typed->json, "Print a JSON object for each row instead of the table");
  command->callback([typed, &action] { action = [typed] { return run_linear(*typed); }; });
}

}  // namespace streambp::bench
