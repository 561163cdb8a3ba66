#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/cli/threads.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/ranks/ranks_longest.h"
#include "bench/ranks/ranks_report.h"
#include "bench/ranks/ranks_run.h"
#include "bench/ranks/ranks_start.h"
#include "bench/sweep/budget.h"
#include "bench/sweep/cells/sweep_cells.h"
#include "streambp/distributed/sequence/sequence_split.h"
#include "streambp/distributed/transport/agreement.h"
#include "streambp/distributed/transport/local_ranks.h"
#include "streambp/distributed/transport/process_ranks.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/runtime/bytes.h"
#include "streambp/runtime/failure.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

struct TypedRanks {
  std::string ranks = "2";
  std::string stages = "none,zero-1,zero-2,zero-3";
  std::string divide = "sequences";
  std::string exchanges = "gather";
  std::string lengths = "1024";
  std::string device = "cpu";
  std::string out = "out/ranks";
  int threads = 1;
  int64_t repeats = 3;
  bool overlaps = false;
  std::string trace;
  std::string memory_limit;
  std::string budget;
  double teraflops = 0.0;
  std::string link;
  bool json = false;
  bool resume = false;
  std::vector<std::string> arguments;
};

constexpr const char* kRanksExamples = R"(Examples:
  streambp-bench ranks --ranks 2 --method streambp --optimizer adamw --out out/two
  streambp-bench ranks --model qwen3-8b --dtype bfloat16 --device meta --ranks 8,64,1024 --optimizer adamw --out out/many
  streambp-bench ranks --model qwen3-8b --dtype bfloat16 --device meta --ranks 3,8 --zero zero-2 --optimizer adamw --budget 80GB
    --method checkpoint,streambp --teraflops 400 --link 50GB --out out/longest
  streambp-bench ranks --ranks 2 --method checkpoint,streambp --seq-len 1024,2048 --zero zero-2 --resume --out out/table
  streambp-bench ranks --ranks 2 --method streambp --zero zero-2 --overlap --link 200MB --out out/hidden
  streambp-bench ranks --ranks 2 --dtype bfloat16 --method streambp --optimizer adamw --master-weights --out out/masters
  torchrun --no-python --nproc-per-node 2 streambp-bench ranks --method streambp --out out/two
  mpirun -n 2 streambp-bench ranks --method streambp --out out/two
  streambp-bench ranks --divide rows --model qwen3-8b --dtype bfloat16 --device meta --ranks 8,64 --method streambp
    --seq-len 1048576 --out out/long
  streambp-bench ranks --divide rows --exchange gather,ring,ulysses --model qwen3-cpu --method streambp --seq-len 512 --repeats 1
    --out out/exchanges

On the CPU it starts its own processes, or is one of torchrun's or mpirun's; they exchange messages over Gloo, and rank 0 prints and
writes. On meta one of any number of ranks is run, memory is predicted and messages are counted; with --budget the longest sequence that
fits is found, and with --teraflops and --link a step has a time on paper; the paper's tables 4 and 5 stand next to runs of Qwen3-8B
under ZeRO-2. On the CPU --link is a simulated one: threads that send sleep as long as it would take.
--resume runs what --out has no record of; `report` and scripts/plot.py draw the records as those of a sweep.
--batch is each rank's, so that P ranks train on P times as many tokens; each cuts its own into --micro-batches. With --divide rows it
is all ranks': one sequence may then be as long as all of them have memory for. On meta the first and the last rank are run, of which one
looks at the most rows and one sends the most: the larger numbers are printed.
--exchange says how these rows attend to those of other ranks: gather (a rank gathers the keys and values of a layer that it looks at),
ring (they come block by block, and once more in the backward pass), ulysses (ranks divide the heads of all rows; their number has to
divide the heads). Latent attention and keys and values that layers share are gathered, recurrent layers pass their states, whichever.

Where a rank runs out of memory all end, that is recorded with status oom, and they are started again for the rest (ranks that torchrun or
mpirun started end without it).

The store at which ranks meet has no secret. It listens at this machine's loopback alone, or at MASTER_ADDR; where that is no address of
rank 0's own, at STREAMBP_STORE_ADDRESS (0.0.0.0: at all of them).

Exit codes: 0 all good; 1 a cell failed; 2 bad usage or input, another run in --out, or records there without --resume; 3 a rank ran out
of memory and nothing else went wrong; of a rank that fails, its own.)";

/// The ranks of a run on meta: a step makes as many messages to count as there are others.
constexpr int64_t kMostCountedRanks = int64_t{1} << 16;

/// --ranks, each number once.
std::vector<int64_t> read_ranks(const std::string& list, int64_t most, const char* of_what) {
  std::vector<int64_t> ranks;
  for (const int64_t count : parse_integers(list, "--ranks", 1)) {
    if (count > most) throw InputError("--ranks {}: expected at most {} {}", count, most, of_what);
    if (std::find(ranks.begin(), ranks.end(), count) == ranks.end()) ranks.push_back(count);
  }
  return ranks;
}

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

std::vector<Exchange> read_exchanges(const std::string& list) {
  std::vector<Exchange> exchanges;
  for (const std::string& word : parse_words(list, "--exchange")) {
    const size_t known = exchanges.size();
    for (const Exchange exchange : {Exchange::kGather, Exchange::kRing, Exchange::kUlysses})
      if (word == exchange_name(exchange)) exchanges.push_back(exchange);
    if (exchanges.size() == known)
      throw InputError("--exchange '{}': expected gather, ring or ulysses", word);
  }
  return exchanges;
}

Division read_division(const std::string& word) {
  if (word == "sequences") return Division::kSequences;
  if (word == "rows") return Division::kRows;
  throw InputError("--divide '{}': expected sequences or rows", word);
}

SweepOptions read_options(const RunFlags& flags, const TypedRanks& typed) {
  SweepOptions options;
  flags.read(options);
  options.lengths = parse_integers(typed.lengths, "--seq-len", 1);
  options.device = typed.device;
  options.threads = typed.threads;
  options.repeats = typed.repeats;
  options.out = typed.out;
  options.json = typed.json;
  if (!typed.memory_limit.empty()) options.memory_limit = parse_bytes(typed.memory_limit, "--memory-limit");
  options.resume = typed.resume;
  options.arguments = typed.arguments;
  if (!typed.trace.empty()) options.trace = typed.trace;
  const bool predicts = options.device == "meta";
  for (const auto& [flag, is_given] :
       {std::pair{"--budget", !typed.budget.empty()}, std::pair{"--teraflops", typed.teraflops > 0.0},
        std::pair{"--link with --teraflops", typed.teraflops > 0.0 && !typed.link.empty()}}) {
    if (is_given && !predicts) throw InputError("{}: of predictions alone, expected --device meta", flag);
  }
  if (predicts && (typed.teraflops > 0.0) != !typed.link.empty())
    throw InputError("--teraflops and --link: one without the other, expected both");
  if (!typed.budget.empty() && options.lengths.size() > 1)
    throw InputError("--seq-len {} with --budget: the longest length is found, expected one of the two",
                     typed.lengths);
  if (typed.resume && !typed.budget.empty())
    throw InputError("--resume with --budget: what is longest is not known before it is found, expected one");
  if (predicts && options.memory_limit)
    throw InputError("--memory-limit: of measured runs, expected --budget on meta");
  if (options.device != "cpu" && options.device != "meta")
    throw InputError("--device {}: expected cpu or meta", options.device);
  if (options.picks_method) throw InputError("--method auto: expected methods by name");
  if (options.setup.trainer != plan::Trainer::kNone || options.setup.optimizer.foreach)
    throw InputError("--trainer and adamw-foreach: of one process, which sweep and max-length predict");
  if (options.micro_batches != 1 && read_division(typed.divide) == Division::kRows)
    throw InputError("--micro-batches {} with --divide rows: expected 1, a pass over all rows",
                     options.micro_batches);
  if (read_exchanges(typed.exchanges) != std::vector{Exchange::kGather} &&
      read_division(typed.divide) != Division::kRows)
    throw InputError("--exchange {}: of ranks that divide rows, expected --divide rows", typed.exchanges);
  if (options.setup.fused_optimizer)
    throw InputError("--fuse-optimizer {}: expected --optimizer, whose states ranks divide",
                     options.setup.fused_optimizer->name);
  if (options.setup.weights_on_host)
    throw InputError(
        "--weights host: expected resident weights on ranks, or --zero zero-3, which divides them");
  if (options.setup.quantization && typed.stages.find("zero-3") != std::string::npos)
    throw InputError(
        "--quantize with --zero zero-3: frozen weights in 4 or 8 bits are not divided, expected zero-2");
  if (options.setup.optimizer.master_weights && options.setup.optimizer.name == "none")
    throw InputError("--master-weights: steps are taken of them, expected --optimizer with it");
  if (options.setup.optimizer.dtype == at::kByte)
    throw InputError("--optimizer-bits 8: expected 32 or 16 on ranks");
  if (read_division(typed.divide) == Division::kRows && options.methods != std::vector{Method::kStreambp})
    throw InputError("--divide rows: expected --method streambp");
  return options;
}

/// Whether the method can have its gradients divided as they are made.
bool can_divide(Method method, ZeroStage stage) {
  return !frees_gradients(stage) || method_kind(method).fuses_optimizer;
}

/// Before processes are started.
void require_stages(const SweepOptions& options, const TypedRanks& typed) {
  for (const ZeroStage stage : read_stages(typed.stages)) {
    if (std::ranges::any_of(options.methods, [&](Method method) { return can_divide(method, stage); }))
      return;
  }
  std::vector<std::string> names;
  for (const Method method : options.methods) names.push_back(method_name(method));
  throw InputError(
      "--zero {}: gradients are divided layer by layer, which --method {} does not; expected none "
      "or zero-1, or another method",
      typed.stages, fmt::join(names, ", "));
}

/// What the first rank, which reads records, says.
bool first_rank_says(Communicator& communicator, bool own) {
  return communicator.all_gather(at::full({1}, own ? 1 : 0, at::kLong))[0].item<int64_t>() != 0;
}

/// Leaves the record of a cell in which this rank ran out of memory.
void leave_out_of_memory(const Communicator& communicator, const Bench& bench, const Cell& cell,
                         const Sharing& sharing, const std::exception& error) {
  MemoryFailure failure = failure_of(error);
  failure.error = fmt::format("rank {}: {}", communicator.rank(), failure.error);
  json record = ranks_record(bench, cell, sharing, communicator.size(), failure);
  record["environment"] =
      describe_environment(bench.options.threads, /*cuda_index=*/-1, bench.options.arguments);
  leave_record(bench.options, record);
}

/// Every cell and stage on this rank; on meta also on `other`, if there is one.
void run_cells(Communicator& communicator, const Bench& bench, const TypedRanks& typed, RanksReport* report,
               Communicator* other = nullptr) {
  const std::vector<ZeroStage> stages = read_stages(typed.stages);
  const std::vector<Cell> cells = list_cells(bench);
  const int64_t link = bench.device.is_meta() || typed.link.empty() ? 0 : parse_bytes(typed.link, "--link");
  std::vector<Sharing> sharings;
  for (const ZeroStage stage : stages) {
    for (const Exchange exchange : read_exchanges(typed.exchanges)) {
      const Sharing sharing{stage, typed.overlaps, read_division(typed.divide), exchange, link};
      if (std::find(sharings.begin(), sharings.end(), sharing) == sharings.end()) sharings.push_back(sharing);
    }
  }
  if (bench.options.trace && cells.size() * sharings.size() != 1)
    throw InputError("--trace {}: {} runs, expected one length, method, objective, --zero and --exchange",
                     bench.options.trace->string(), cells.size() * sharings.size());
  for (const Cell& cell : cells) {
    for (const Sharing& sharing : sharings) {
      if (!can_divide(cell.settings.method, sharing.stage)) continue;
      const bool known = report != nullptr && report->knows(bench, cell, sharing, communicator.size());
      if (first_rank_says(communicator, known)) continue;
      if (report != nullptr) report->begin(cell, sharing, communicator.size());
      if (!typed.budget.empty()) {
        const auto longest = longest_on_ranks(communicator, bench, cell, sharing,
                                              parse_budget(typed.budget, bench.options.device).usable());
        report->add_longest(bench, cell, longest, sharing, communicator.size());
        continue;
      }
      std::optional<Recorder> recorder;
      const bool records = report != nullptr && bench.options.trace;
      RanksRun run;
      try {
        run = run_on_rank(communicator, bench, cell, sharing, bench.options.repeats,
                          records ? &recorder : nullptr);
      } catch (const std::exception& error) {
        if (is_out_of_memory(error)) leave_out_of_memory(communicator, bench, cell, sharing, error);
        throw;
      }
      if (other != nullptr)
        run = most_of(run, run_on_rank(*other, bench, cell, sharing, bench.options.repeats));
      if (report != nullptr)
        report->add(bench, cell, run, communicator.size(), /*is_longest=*/false, recorder);
    }
  }
}

/// Before anything is written.
void require_exchanges(const Bench& bench, const TypedRanks& typed, int64_t ranks) {
  for (const Exchange exchange : read_exchanges(typed.exchanges))
    require_exchange(bench.config, exchange, ranks);
}

Rates rates_of(const TypedRanks& typed) {
  if (typed.teraflops <= 0.0 || typed.link.empty()) return {};
  return {typed.teraflops * 1e12, static_cast<double>(parse_bytes(typed.link, "--link"))};
}

int predict_ranks(const SweepOptions& options, const TypedRanks& typed) {
  const plan::DryRunScope scope(at::kMeta);
  const Bench bench = open_bench(options);
  const std::vector<int64_t> counts =
      read_ranks(typed.ranks, kMostCountedRanks, "ranks, whose messages are counted one by one");
  for (const int64_t ranks : counts) require_exchanges(bench, typed, ranks);
  RanksReport report(bench, typed.json, typed.resume, rates_of(typed));
  for (const int64_t ranks : counts) {
    const bool divides_rows = read_division(typed.divide) == Division::kRows;
    // Whose rows the end of a sequence is among looks at the most; of a zigzag the last rank sends the most.
    const bool ends_last = divides_rows && divides_contiguously(bench.config);
    const auto looking = counted_rank(ends_last ? ranks - 1 : 0, ranks);
    const auto sending = counted_rank(ends_last ? 0 : ranks - 1, ranks);
    run_cells(*looking, bench, typed, &report, divides_rows && ranks > 1 ? sending.get() : nullptr);
  }
  return report.print();
}

/// By default a rank's part of what is free where all of them are on this machine; else there is no limit.
void limit_memory(const SweepOptions& options, int64_t ranks) {
  const int64_t part = is_started_rank() ? usable_part(available_memory()) / ranks : 0;
  if (const int64_t limit = options.memory_limit.value_or(part); limit > 0)
    set_memory_limit(c10::DeviceType::CPU, limit);
}

/// As one of several processes.
int run_as_rank(const Rendezvous& rendezvous, const SweepOptions& options, const TypedRanks& typed) {
  const auto communicator = connect(rendezvous);
  std::string arguments;
  for (const std::string& argument : options.arguments) arguments += argument + " ";
  require_agreement(*communicator, {{"the version", version_text()}, {"the command line", arguments}});
  set_threads(options.threads, "streambp-bench");
  limit_memory(options, communicator->size());
  const Bench bench = open_bench(options);
  std::string shapes;
  for (const ParameterShape& shape : parameter_shapes(bench.config))
    shapes += fmt::format("{} [{}] ", shape.name, fmt::join(shape.shape, ", "));
  require_agreement(*communicator, {{"the model's shapes", shapes}});
  require_exchanges(bench, typed, communicator->size());
  std::optional<RanksReport> report;
  if (rendezvous.rank == 0) report.emplace(bench, typed.json, typed.resume, Rates{});
  run_cells(*communicator, bench, typed, report ? &*report : nullptr);
  communicator->barrier();
  return report ? report->print() : kExitGood;
}

/// This command line again, as processes.
int start_local_ranks(const SweepOptions& options, const TypedRanks& typed) {
  const std::vector<int64_t> ranks = read_ranks(typed.ranks, kMostLocalRanks, "processes of one machine");
  if (ranks.size() != 1)
    throw InputError("--ranks {}: expected one number of processes on the CPU", typed.ranks);
  return start_ranks(ranks.front(), options);
}

int run_ranks(const RunFlags& flags, const TypedRanks& typed) {
  const SweepOptions options = read_options(flags, typed);
  require_stages(options, typed);
  if (options.device == "meta") return predict_ranks(options, typed);
  const std::optional<Rendezvous> rendezvous = rendezvous_of_environment();
  return rendezvous ? run_as_rank(*rendezvous, options, typed) : start_local_ranks(options, typed);
}

}  // namespace

void add_ranks_command(CLI::App& app, Action& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<TypedRanks>();
  typed->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "ranks",
      "Training steps over several processes that divide sequences or their rows, with ZeRO-1, 2 and 3");
  command->footer(kRanksExamples);
  const auto flags = std::make_shared<RunFlags>(*command, RunFlags::Defaults{"qwen3-cpu", "float32"});
  const auto text = [&](const char* flag, std::string& value, const char* help) {
    command->add_option(flag, value, help)->capture_default_str();
  };
  text("--ranks", typed->ranks, "Processes of this machine; on meta any numbers of ranks");
  text("--zero", typed->stages,
       "What ranks divide: none, zero-1 (optimizer states), zero-2 (gradients, too), zero-3 (the layers' "
       "weights, "
       "too)");
  text("--divide", typed->divide, "What they divide the batch into: sequences, or rows of each sequence");
  text("--exchange", typed->exchanges,
       "With --divide rows, how they attend to other ranks' rows: gather (keys and values of a layer), ring "
       "(block by block), ulysses (ranks divide heads)");
  text("--seq-len", typed->lengths, "Tokens of a sequence");
  text("--device", typed->device, "cpu, or meta: memory is predicted, messages are counted");
  command->add_option("--threads", typed->threads, "Threads of each process")->capture_default_str();
  command->add_option("--repeats", typed->repeats, "Timed steps of each cell")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  command->add_flag("--overlap", typed->overlaps,
                    "Sum gradients over ranks on a thread of its own while the pass goes on: where a rank "
                    "has a core to spare");
  text("--trace", typed->trace,
       "Write rank 0's last step, layers and messages over time, as JSON for ui.perfetto.dev; for one run");
  text("--memory-limit", typed->memory_limit,
       "Bytes of a rank's tensors, such as 2GB, past which a run counts as out of memory (default: its part "
       "of 95 % of what is free)");
  text("--budget", typed->budget,
       "On meta: memory of a rank's device, such as 80GB or 80GiB, or a card by name, such as h100-80; the "
       "longest "
       "sequence that fits, instead of --seq-len");
  command->add_option(
      "--teraflops", typed->teraflops,
      "On meta, with --link: what a rank's matrix products do in a second, in 10^12 operations");
  text(
      "--link", typed->link,
      "Bytes that a rank sends in a second, such as 50GB: on meta for a time on paper, on the CPU simulated");
  text("--out", typed->out, "Folder for results.jsonl");
  command->add_flag("--json", typed->json, "Print the records instead of the table");
  command->add_flag("--resume", typed->resume, "Run only what --out has no record of");
  command->callback(
      [typed, flags, &action] { action = [typed, flags] { return run_ranks(*flags, *typed); }; });
}

}  // namespace streambp::bench
