#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "bench/commands.h"
#include "bench/ranks_run.h"
#include "bench/run_flags.h"
#include "bench/sweep_cells.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/environment.h"
#include "streambp/cli/print.h"
#include "streambp/cli/records.h"
#include "streambp/cli/table.h"
#include "streambp/cli/threads.h"
#include "streambp/distributed/agreement.h"
#include "streambp/distributed/local_ranks.h"
#include "streambp/distributed/process_ranks.h"
#include "streambp/error.h"
#include "streambp/runtime/bytes.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

struct Typed {
  std::string ranks = "2";
  std::string stages = "none,zero-1,zero-2,zero-3";
  std::string lengths = "1024";
  std::string device = "cpu";
  std::string out = "out/ranks";
  int threads = 1;
  int64_t repeats = 3;
  bool json = false;
  std::vector<std::string> arguments;
};

constexpr const char* kExamples = R"(Examples:
  streambp-bench ranks --ranks 2 --method streambp --optimizer adamw --out out/two
  streambp-bench ranks --model qwen3-8b --dtype bfloat16 --device meta --ranks 8,64,1024 --optimizer adamw --out out/many
  torchrun --no-python --nproc-per-node 2 streambp-bench ranks --method streambp --out out/two

On the CPU it starts its own processes, or is one of torchrun's; they exchange messages over Gloo, and rank 0 prints and
writes. On meta one of any number of ranks is run, memory is predicted and messages are counted.
--batch is each rank's, so that P ranks train on P times as many tokens.

Exit codes: 0 all good; 2 bad usage or input; of a rank that fails, its own.)";

std::vector<ZeroStage> read_stages(const std::string& list) {
  std::vector<ZeroStage> stages;
  for (const std::string& word : parse_words(list, "--zero")) {
    bool known = false;
    for (const ZeroStage stage :
         {ZeroStage::kNone, ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kWeights}) {
      if (word != stage_name(stage)) continue;
      stages.push_back(stage);
      known = true;
    }
    if (!known) throw InputError("--zero '{}': expected none, zero-1, zero-2 or zero-3", word);
  }
  return stages;
}

SweepOptions read_options(const RunFlags& flags, const Typed& typed) {
  SweepOptions options;
  flags.read(options);
  options.lengths = parse_integers(typed.lengths, "--seq-len", 1);
  options.device = typed.device;
  options.threads = typed.threads;
  options.repeats = typed.repeats;
  options.out = typed.out;
  options.arguments = typed.arguments;
  if (options.device != "cpu" && options.device != "meta")
    throw InputError("--device {}: expected cpu or meta", options.device);
  if (options.picks_method) throw InputError("--method auto: expected methods by name");
  if (options.micro_batches != 1)
    throw InputError("--micro-batches {}: expected 1, ranks divide the batch", options.micro_batches);
  if (options.setup.fused_optimizer)
    throw InputError("--fuse-optimizer {}: expected --optimizer, whose states ranks divide",
                     options.setup.fused_optimizer->name);
  if (options.setup.weights_on_host)
    throw InputError(
        "--weights host: expected resident weights on ranks, or --zero zero-3, which divides them");
  if (options.setup.optimizer.master_weights)
    throw InputError("--master-weights: not divided among ranks, expected a run without");
  if (options.setup.optimizer.dtype == at::kByte)
    throw InputError("--optimizer-bits 8: expected 32 or 16 on ranks");
  return options;
}

/// The bytes of what was sent, over all kinds.
int64_t bytes_of(const std::map<Collective, Traffic>& sent) {
  int64_t bytes = 0;
  for (const auto& [collective, traffic] : sent) bytes += traffic.bytes;
  return bytes;
}

/// Where the records and the table go; of ranks but the first, nowhere.
class Report {
 public:
  Report(const SweepOptions& options, bool is_json)
      : options_(options),
        is_json_(is_json),
        file_(options.out),
        table_({"ranks", "zero", "method", "length", "tokens", "resident", "peak", "pass sends", "step sends",
                "seconds", "loss"}) {
    file_.start();
  }

  void add(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks) {
    json record = ranks_record(bench, cell, run, ranks);
    record["environment"] = describe_environment(options_.threads, /*cuda_index=*/-1, options_.arguments);
    file_.append(record);
    if (is_json_) return fmt::print("{}\n", record_line(record));
    const bool predicted = bench.device.is_meta();
    table_.add({fmt::format("{}", ranks), stage_name(run.stage), method_name(cell.settings.method),
                fmt::format("{}", cell.seq_len), fmt::format("{}", run.tokens),
                format_bytes(run.resident_bytes), format_bytes(run.peak_bytes),
                format_bytes(bytes_of(run.pass)), format_bytes(bytes_of(run.step)),
                predicted ? "-" : fmt::format("{:.3f}", record.at("seconds_median").get<double>()),
                predicted ? "-" : fmt::format("{:.6f}", run.loss)});
  }

  void print() const {
    if (is_json_) return;
    fmt::print("{}", table_.text());
    print_line(stdout, "records: {}", file_.path().string());
  }

 private:
  const SweepOptions& options_;
  bool is_json_;
  RecordFile file_;
  Table table_;
};

/// Every cell and stage on this rank.
void run_cells(Communicator& communicator, const Bench& bench, const std::vector<ZeroStage>& stages,
               Report* report) {
  for (const Cell& cell : list_cells(bench)) {
    for (const ZeroStage stage : stages) {
      const bool frees = stage == ZeroStage::kGradients || stage == ZeroStage::kWeights;
      if (frees && !method_kind(cell.settings.method).fuses_optimizer) continue;
      const RanksRun run = run_on_rank(communicator, bench, cell, stage, bench.options.repeats);
      if (report != nullptr) report->add(bench, cell, run, communicator.size());
    }
  }
}

int predict_ranks(const SweepOptions& options, const Typed& typed) {
  const plan::DryRunScope scope(at::kMeta);
  const Bench bench = open_bench(options);
  Report report(options, typed.json);
  for (const int64_t ranks : parse_integers(typed.ranks, "--ranks", 1))
    run_cells(*counted_rank(0, ranks), bench, read_stages(typed.stages), &report);
  report.print();
  return kExitGood;
}

/// As one of several processes.
int run_as_rank(const Rendezvous& rendezvous, const SweepOptions& options, const Typed& typed) {
  const auto communicator = connect(rendezvous);
  std::string arguments;
  for (const std::string& argument : options.arguments) arguments += argument + " ";
  require_agreement(*communicator, {{"the version", version_text()}, {"the command line", arguments}});
  set_threads(options.threads, "streambp-bench");
  const Bench bench = open_bench(options);
  std::string shapes;
  for (const ParameterShape& shape : parameter_shapes(bench.config))
    shapes += fmt::format("{} [{}] ", shape.name, fmt::join(shape.shape, ", "));
  require_agreement(*communicator, {{"the model's shapes", shapes}});
  std::optional<Report> report;
  if (rendezvous.rank == 0) report.emplace(options, typed.json);
  run_cells(*communicator, bench, read_stages(typed.stages), report ? &*report : nullptr);
  communicator->barrier();
  if (report) report->print();
  return kExitGood;
}

/// This command line again, as processes.
int start_ranks(const SweepOptions& options, const Typed& typed) {
  const std::vector<int64_t> ranks = parse_integers(typed.ranks, "--ranks", 1);
  if (ranks.size() != 1)
    throw InputError("--ranks {}: expected one number of processes on the CPU", typed.ranks);
  std::vector<std::string> command = options.arguments;
  command.front() = "/proc/self/exe";
  const RanksEnd end = run_local_ranks(ranks.front(), command);
  fmt::print(stderr, "{}", end.message);
  return end.status;
}

int run_ranks(const RunFlags& flags, const Typed& typed) {
  const SweepOptions options = read_options(flags, typed);
  read_stages(typed.stages);
  if (options.device == "meta") return predict_ranks(options, typed);
  const std::optional<Rendezvous> rendezvous = rendezvous_of_environment();
  return rendezvous ? run_as_rank(*rendezvous, options, typed) : start_ranks(options, typed);
}

}  // namespace

void add_ranks_command(CLI::App& app, Action& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<Typed>();
  typed->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "ranks", "Data-parallel training steps over several processes, with ZeRO-1, 2 and 3");
  command->footer(describe_objectives() + "\n" + kExamples);
  const auto flags = std::make_shared<RunFlags>(*command, RunFlags::Defaults{"qwen3-cpu", "float32"});
  const auto text = [&](const char* flag, std::string& value, const char* help) {
    command->add_option(flag, value, help)->capture_default_str();
  };
  text("--ranks", typed->ranks, "Processes of this machine; on meta any numbers of ranks");
  text("--zero", typed->stages,
       "What ranks divide: none, zero-1 (optimizer states), zero-2 (gradients, too), zero-3 (the layers' "
       "weights, "
       "too)");
  text("--seq-len", typed->lengths, "Tokens of a sequence");
  text("--device", typed->device, "cpu, or meta: memory is predicted, messages are counted");
  command->add_option("--threads", typed->threads, "Threads of each process")->capture_default_str();
  command->add_option("--repeats", typed->repeats, "Timed steps of each cell")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  text("--out", typed->out, "Folder for results.jsonl");
  command->add_flag("--json", typed->json, "Print the records instead of the table");
  command->callback(
      [typed, flags, &action] { action = [typed, flags] { return run_ranks(*flags, *typed); }; });
}

}  // namespace streambp::bench
