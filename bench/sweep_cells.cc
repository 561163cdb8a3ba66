#include "bench/sweep_cells.h"

#include <algorithm>
#include <set>
#include <unistd.h>

#include "streambp/model/scored.h"
#include "streambp/runtime/device.h"
#include "streambp/model/open_model.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/cli/records.h"
#include "streambp/error.h"
#include "streambp/objective/terms.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

void check_freeze(const SweepOptions& options, const Config& config) {
  const auto shapes = parameter_shapes(config);
  for (const std::string& pattern : options.freeze) {
    const bool used = std::any_of(shapes.begin(), shapes.end(),
                                  [&](const auto& s) { return contains_any(s.name, {pattern}); });
    if (!used) throw InputError("--freeze '{}': no parameter of the model has this in its name", pattern);
  }
}

/// Everything about adapters, reference and teacher that can be known before anything is run.
void check_models(const SweepOptions& options, const Config& config) {
  if (options.adapter) read_lora_config(*options.adapter, config);
  if (options.lora) lora_extras(config, *options.lora);
  if (!options.reference.empty()) {
    const int64_t vocabulary = open_config(options.reference).vocab_size;
    if (vocabulary != config.vocab_size) {
      throw InputError("model '{}': its vocabulary has {} tokens, that of {} has {}", options.reference,
                       vocabulary, options.model, config.vocab_size);
    }
  }
  for (const std::string& name : options.objectives) {
    if (name == "distill" && options.teacher.empty()) throw InputError("distill: expected a --teacher model");
  }
}

/// Makes every objective once, on the given tokens or on a few made-up ones: what is wrong with options or
/// inputs shows now.
void check_objectives(const Bench& bench) {
  constexpr int64_t kSequences = 2, kTokens = 16;
  for (const std::string& name : bench.options.objectives) {
    const ObjectiveKind& kind = objective_kind(name);
    const auto given = options_of(name, bench.options.objective_options);
    const Options options = complete_options(kind, given);
    Batch batch = bench.batch ? *bench.batch
                              : synthetic_batch(kind, options, kSequences, kTokens, bench.config.vocab_size,
                                                /*seed=*/0);
    const bool has_reference =
        !bench.options.reference.empty() || bench.options.lora || bench.options.adapter;
    if (stand_in_for_reference(name, given, batch) && !has_reference) {
      throw InputError(
          "{}: no reference log-probabilities; expected them in --tokens, a --reference model, or LoRA",
          name);
    }
    const HeadRequest request = make_objective(name, batch, given)->request();
    if (!bench.options.teacher.empty())
      check_vocabularies(request, bench.config.vocab_size, open_config(bench.options.teacher).vocab_size);
    const bool balances = router_loss(kind, options).of(bench.config.mixture) != 0.0;
    if (balances && bench.options.micro_batches > 1) {
      throw InputError(
          "--micro-batches {}: {} balances the experts of {} over the whole batch; expected 1, or "
          "router_aux_loss_coef=0",
          bench.options.micro_batches, name, bench.options.model);
    }
  }
}

/// Files that hold one cell's gradients or memory: `flag` and the file it names, if any.
void check_output(const char* flag, const std::optional<std::filesystem::path>& file,
                  const SweepOptions& options, size_t cells) {
  if (!file) return;
  if (cells != 1) throw InputError("{}: expected a sweep of exactly one cell, this one has {}", flag, cells);
  if (options.resume)
    throw InputError("{}: what it writes is not in the records, so it can't be used with --resume", flag);
  const std::filesystem::path folder = file->has_parent_path() ? file->parent_path() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) != 0 || std::filesystem::is_directory(*file)) {
    throw InputError("{} {}: can't be written", flag, file->string());
  }
}

void check_outputs(const Bench& bench, size_t cells) {
  const SweepOptions& options = bench.options;
  check_output("--dump-gradients", options.dump_gradients, options, cells);
  check_output("--trace", options.trace, options, cells);
  check_output("--snapshot", options.snapshot, options, cells);
  check_output("--timeline", options.timeline, options, cells);
  if (options.dump_gradients && bench.device.is_meta())
    throw InputError("--dump-gradients: the meta device has no values");
}

}  // namespace

bool contains_any(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& p) { return name.find(p) != std::string::npos; });
}

Bench open_bench(const SweepOptions& options) {
  DeviceOptions device;
  if (options.device.starts_with("cuda")) device.memory_limit = options.memory_limit;
  device.deterministic = options.deterministic;
  Bench bench{options, open_config(options.model), open_device(options.device, device), {}, {}, false};
  check_freeze(options, bench.config);
  // Nothing is timed on the meta device: one pass tells all there is to tell.
  if (bench.device.is_meta()) {
    bench.options.repeats = 1;
    bench.options.warmup = 0;
  }
  check_models(options, bench.config);
  const bool any_keeps =
      options.picks_method || std::any_of(options.methods.begin(), options.methods.end(),
                                          [](Method method) { return takes(method, "keep_attention"); });
  if (!any_keeps && (options.keep_attention || options.every > 1 || options.offload != Offload::kNone ||
                        options.order != Order::kReverse)) {
    throw InputError(
        "--keep-attention, --every, --offload, --order: settings of streambp, which is not in --method");
  }
  if (options.fused_optimizer) {
    const bool others = std::any_of(options.methods.begin(), options.methods.end(),
                                    [](Method method) { return !method_kind(method).fuses_optimizer; });
    if (others) throw InputError("--fuse-optimizer: a setting of streambp, expected --method streambp");
    if (options.micro_batches > 1)
      throw InputError("--fuse-optimizer: uses gradients up in each pass, expected --micro-batches 1");
    if (options.dump_gradients) throw InputError("--dump-gradients: --fuse-optimizer leaves none");
  }
  for (const std::string& name : options.objectives) {
    const Layout layout = objective_kind(name).layout;
    bench.needs_value_head =
        bench.needs_value_head || layout == Layout::kResponses || layout == Layout::kRanked;
  }
  if (options.tokens) {
    const Layout layout = objective_kind(options.objectives.front()).layout;
    for (const std::string& name : options.objectives) {
      if (objective_kind(name).layout != layout) {
        throw InputError("--tokens: one file can't hold the inputs of {} and of {}",
                         options.objectives.front(), name);
      }
    }
    bench.batch = read_objective_batch(objective_kind(options.objectives.front()),
                                       SafetensorsFile::open(*options.tokens), bench.config.vocab_size, "",
                                       options.first_labels, bench.config.pad_token_id);
    const Batch& batch = *bench.batch;
    for (const std::string& note : reading_notes(batch))
      fmt::print(stderr, "streambp-bench: {}: {}\n", options.tokens->string(), note);
    bench.batch_scored = scored_indices(batch).size(0) > 0 || layout == Layout::kTexts;
    const auto numbers = [](const at::Tensor& tensor) {
      return std::vector<int64_t>(tensor.const_data_ptr<int64_t>(),
                                  tensor.const_data_ptr<int64_t>() + tensor.numel());
    };
    std::vector<std::vector<int64_t>> key{numbers(batch.tokens), numbers(batch.positions),
                                          numbers(batch.targets), batch.offsets};
    if (batch.rope_length > batch.positions.max().item<int64_t>() + 1) key.push_back({batch.rope_length});
    bench.batch_key = record_key(key);
    bench.options.batches = {static_cast<int64_t>(batch.offsets.size()) - 1};
    int64_t longest = 0;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
      longest = std::max(longest, batch.offsets[i + 1] - batch.offsets[i]);
    bench.options.lengths = {longest};
  }
  check_objectives(bench);
  return bench;
}

/// Every combination once, cells of one length and batch beside each other.
std::vector<Cell> list_cells(const Bench& bench) {
  const SweepOptions& options = bench.options;
  std::vector<Cell> cells;
  std::set<json> seen;
  const auto add = [&](const Cell& cell) {
    if (seen.insert(cell_configuration(bench, cell)).second) cells.push_back(cell);
  };
  for (const int64_t seq_len : options.lengths) {
    for (const int64_t batch : options.batches) {
      for (const std::string& objective : options.objectives) {
        for (const Method method : options.methods) {
          for (const int64_t chunk : is_chunked(method) ? options.chunks : std::vector<int64_t>{0}) {
            Settings settings;
            settings.method = method;
            settings.chunk = chunk;
            settings.stream_head = options.stream_head;
            settings.head_chunk = options.head_chunk;
            settings.hugging_face = options.hugging_face && takes(method, "baseline");
            if (takes(method, "keep_attention")) {
              settings.keep_attention = options.keep_attention;
              settings.every = options.every;
              settings.offload = options.offload;
              settings.order = options.order;
            }
            check_settings(settings);
            add({objective, settings, seq_len, batch});
          }
        }
        if (options.picks_method) add({objective, {}, seq_len, batch, /*automatic=*/true});
      }
    }
  }
  check_outputs(bench, cells.size());
  return cells;
}

}  // namespace streambp::bench
