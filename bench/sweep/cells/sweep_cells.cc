#include "bench/sweep/cells/sweep_cells.h"

#include <algorithm>
#include <set>

#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/config/presets/preset_name.h"
#include "streambp/model/given_experts.h"
#include "streambp/model/given_picks.h"
#include "streambp/model/open_model.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "streambp/runtime/device.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

void check_freeze(const plan::ModelSetup& setup, const Config& config) {
  const auto shapes = parameter_shapes(config);
  for (const std::string& pattern : setup.freeze) {
    const bool used = std::any_of(shapes.begin(), shapes.end(),
                                  [&](const auto& s) { return plan::contains_any(s.name, {pattern}); });
    if (!used) throw InputError("--freeze '{}': no parameter of the model has this in its name", pattern);
  }
}

void check_lora(const Config& config, const LoraConfig& lora) {
  try {
    lora_extras(config, lora);
  } catch (const InputError& error) {
    throw InputError("--lora-rank, --lora-targets: {}", error.what());
  }
}

/// Everything about adapters, reference and teacher that can be known before anything is run.
void check_models(const SweepOptions& options, const Config& config) {
  const plan::ModelSetup& setup = options.setup;
  if (setup.head_dtype) require_lm_head(config);
  if (setup.adapter) read_lora_config(*setup.adapter, config);
  if (setup.lora) check_lora(config, *setup.lora);
  if (!setup.reference.empty()) {
    const int64_t vocabulary = open_config(setup.reference).vocab_size;
    if (vocabulary != config.vocab_size) {
      throw InputError("model '{}': its vocabulary has {} tokens, that of {} has {}", setup.reference,
                       vocabulary, setup.model, config.vocab_size);
    }
  }
  for (const std::string& name : options.objectives) {
    if (name == "distill" && setup.teacher.empty()) throw InputError("distill: expected a --teacher model");
  }
}

/// Makes every objective once, on the given tokens or on a few made-up ones: what is wrong with options or
/// inputs shows now.
void check_objectives(const Bench& bench) {
  constexpr int64_t kSequences = 2, kTokens = 16;
  const plan::ModelSetup& setup = bench.options.setup;
  for (const std::string& name : bench.options.objectives) {
    const ObjectiveKind& kind = objective_kind(name);
    const auto given = plan::options_of(name, bench.options.objective_options);
    const Options options = complete_options(kind, given);
    plan::TrainingStep step;
    step.objective = name;
    step.options = given;
    step.seq_len = kTokens;
    step.sequences = kSequences;
    step.batch = bench.batch;
    Batch batch = plan::make_batch(step, bench.config.vocab_size);
    const bool has_reference = !setup.reference.empty() || setup.lora || setup.adapter;
    if (plan::fill_reference(step, batch) && !has_reference) {
      throw InputError(
          "{}: no reference log-probabilities; expected them in --tokens, a --reference model, or LoRA",
          name);
    }
    const HeadRequest request = make_objective(name, batch, given)->request();
    if (!setup.teacher.empty())
      check_vocabularies(request, bench.config.vocab_size, open_config(setup.teacher).vocab_size);
    const bool balances = router_loss(kind, options).of(bench.config.mixture) != 0.0;
    if (balances && bench.options.micro_batches > 1) {
      throw InputError(
          "--micro-batches {}: {} balances the experts of {} over the whole batch; expected 1, or "
          "router_aux_loss_coef=0",
          bench.options.micro_batches, name, setup.model);
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
  check_output_file(flag, *file);
}

void check_outputs(const Bench& bench, size_t cells) {
  const SweepOptions& options = bench.options;
  check_output("--dump-gradients", options.dump_gradients, options, cells);
  check_output("--trace", options.trace, options, cells);
  check_output("--snapshot", options.snapshot, options, cells);
  check_output("--timeline", options.timeline, options, cells);
  if (options.dump_gradients && bench.device.is_meta())
    throw InputError("--dump-gradients: the meta device has no values");
  const std::vector<NamedFile> outputs = output_files(options);
  check_distinct(outputs, bench.inputs.files);
  std::vector<NamedFile> named;  // by flags of their own
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(named),
               [](const NamedFile& output) { return output.flag != "--out"; });
  check_replaces_no_records(named);
}

/// Refuses layers that `config` does not have.
void check_kept_layers(const Settings& given, const Config& config) {
  const int64_t layers = config.num_hidden_layers;
  const KeptLayers& keep = given.keep;
  for (const int64_t count :
       {keep.attention, keep.queries, keep.keys_values, keep.attention_half, keep.gate_up}) {
    if (count != kAllLayers && count > layers)
      throw InputError("--keep {}: {} layers, the model has {}", kept_layers_text(keep), count, layers);
  }
  if (given.offload_layers && *given.offload_layers > layers)
    throw InputError("--offload host:{}: the model has {} layers", *given.offload_layers, layers);
  const std::vector<bool>& sparse = config.mixture.sparse;
  if (keep.gate_up > 0 && !sparse.empty() && std::find(sparse.begin(), sparse.end(), false) == sparse.end()) {
    throw InputError(
        "--keep {}: gate-up is kept of dense layers, and every layer of the model is a mixture of experts; "
        "expected it without gate-up",
        kept_layers_text(keep));
  }
}

/// Each of --micro-batches needs a sequence, or a pair.
void check_micro_batches(const Bench& bench) {
  const SweepOptions& options = bench.options;
  for (const std::string& name : options.objectives) {
    const bool halved = options.tokens && has_pairs(objective_kind(name).layout);
    for (const int64_t batch : options.batches) {
      const int64_t most = halved ? batch / 2 : batch;
      if (options.micro_batches > most) {
        throw InputError("--micro-batches {}: expected at most {}, what a batch of {} has of {}",
                         options.micro_batches, most, name, halved ? "pairs" : "sequences");
      }
    }
  }
}

/// Refuses settings and methods that don't go together, as far as the flags show.
void check_method_settings(const SweepOptions& options) {
  for (const SettingKind& kind : setting_kinds()) {
    const bool taken =
        options.picks_method || std::any_of(options.methods.begin(), options.methods.end(),
                                            [&](Method method) { return takes(method, kind.name); });
    if (taken || !kind.refused_elsewhere || is_default(kind, options.given)) continue;
    throw InputError("{}: a setting of {}, which is not in --method", kind.flag,
                     fmt::join(methods_that_take(kind.name), ", "));
  }
  if (options.setup.fused_optimizer) {
    const auto other = std::find_if(options.methods.begin(), options.methods.end(),
                                    [](Method method) { return !method_kind(method).fuses_optimizer; });
    if (other != options.methods.end()) {
      std::vector<std::string> fusing;
      for (const MethodKind& kind : method_kinds()) {
        if (kind.fuses_optimizer) fusing.emplace_back(kind.name);
      }
      throw InputError("--fuse-optimizer: {} keeps all gradients, expected --method {}",
                       method_kind(*other).name, fmt::join(fusing, ", "));
    }
    if (options.micro_batches > 1)
      throw InputError("--fuse-optimizer: consumes gradients in each pass, expected --micro-batches 1");
    if (options.dump_gradients) throw InputError("--dump-gradients: --fuse-optimizer leaves none");
  }
}

/// Reads --tokens: the batch, and what it sets of the options.
void read_tokens(Bench& bench) {
  const SweepOptions& options = bench.options;
  const Layout layout = objective_kind(options.objectives.front()).layout;
  for (const std::string& name : options.objectives) {
    if (objective_kind(name).layout != layout) {
      throw InputError("--tokens: one file can't hold the inputs of {} and of {}", options.objectives.front(),
                       name);
    }
  }
  bench.batch = std::make_shared<const Batch>(read_objective_batch(
      objective_kind(options.objectives.front()), SafetensorsFile::open(*options.tokens),
      bench.config.vocab_size, "", options.first_labels, bench.config.pad_token_id, options.documents));
  const Batch& batch = *bench.batch;
  for (const std::string& note : reading_notes(batch))
    print_line(stderr, "streambp-bench: {}: {}", options.tokens->string(), note);
  bench.batch_scored = scored_indices(batch).size(0) > 0 || layout == Layout::kTexts;
  const auto numbers = [](const at::Tensor& tensor) {
    return std::vector<int64_t>(tensor.const_data_ptr<int64_t>(),
                                tensor.const_data_ptr<int64_t>() + tensor.numel());
  };
  std::vector<std::vector<int64_t>> key{numbers(batch.tokens), numbers(batch.positions),
                                        numbers(batch.targets), batch.offsets};
  if (batch.rope_length > batch.positions.max().item<int64_t>() + 1) key.push_back({batch.rope_length});
  if (batch.router_indices.defined()) {
    given_choices(bench.config, batch, at::kCPU);  // throws for what the model can't have
    key.push_back(numbers(batch.router_indices.to(at::kLong)));
  }
  if (batch.indexer_indices.defined()) {
    check_given_picks(bench.config, batch);
    key.push_back(numbers(batch.indexer_indices.to(at::kLong)));
    key.push_back({batch.indexer_indices.size(1), batch.indexer_indices.size(2)});
  }
  bench.batch_key = record_key(key);
  bench.options.batches = {static_cast<int64_t>(batch.offsets.size()) - 1};
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    longest = std::max(longest, batch.offsets[i + 1] - batch.offsets[i]);
  bench.options.lengths = {longest};
}

/// Flags that nothing of this run looks at. They are no error: scripts go through methods and objectives with
/// the same ones.
void say_unread(const SweepOptions& options, const Config& config) {
  const auto is_taken = [&](Method method) { return takes(method, "chunk"); };
  if (options.fixed.contains("chunk") && !options.picks_method &&
      std::ranges::none_of(options.methods, is_taken)) {
    print_line(stderr, "streambp-bench: --chunk: of {}, which are not in --method; it changes nothing here",
               fmt::join(methods_that_take("chunk"), ", "));
  }
  const auto compares = [&](const std::string& name) {
    return plan::uses_reference(name, options.objective_options);
  };
  if (!options.setup.reference.empty() && std::ranges::none_of(options.objectives, compares)) {
    print_line(stderr, "streambp-bench: --reference: {} needs none; it takes memory and changes no loss",
               fmt::join(options.objectives, ", "));
  }
  if (!options.setup.teacher.empty() && std::ranges::count(options.objectives, "distill") == 0) {
    print_line(stderr, "streambp-bench: --teacher: {} needs none; it takes memory and changes no loss",
               fmt::join(options.objectives, ", "));
  }
  const bool is_frozen = std::ranges::all_of(parameter_shapes(config), [&](const auto& s) {
    return plan::contains_any(s.name, options.setup.freeze);
  });
  if (is_frozen && !options.setup.lora && !options.setup.adapter)
    print_line(stderr, "streambp-bench: --freeze: all parameters; nothing is left to train");
}

/// Who names a repository may expect its weights.
void say_preset(const std::string& model) {
  if (std::filesystem::is_directory(model)) return;
  if (const auto name = find_preset(model); name && *name != model)
    print_line(stderr, "streambp-bench: {}: no folder, taken as the preset {} with random weights", model,
               *name);
}

}  // namespace

Bench open_bench(const SweepOptions& options) {
  DeviceOptions device;
  if (options.device.starts_with("cuda")) device.memory_limit = options.memory_limit;
  device.deterministic = options.deterministic;
  Bench bench;
  bench.options = options;
  bench.config = open_config(options.setup.model);
  Config checked = bench.config;
  set_pad_token(checked, options.setup.pad_token);
  say_preset(options.setup.model);
  bench.device = open_device(options.device, device);
  if (bench.device.is_cpu() && options.setup.dtype == at::kHalf) {
    throw InputError(
        "--dtype float16: on a CPU it takes minutes where others take seconds; expected float32 or bfloat16, "
        "or "
        "--device cuda, meta or meta:cuda");
  }
  if (options.setup.trainer != plan::Trainer::kNone && !bench.device.is_meta())
    throw InputError("--trainer {}: somebody else's loop is predicted, expected --device meta or meta:cuda",
                     plan::trainer_name(options.setup.trainer));
  check_freeze(options.setup, bench.config);
  // Nothing is timed on the meta device: one pass is enough.
  if (bench.device.is_meta()) {
    bench.options.repeats = 1;
    bench.options.warmup = 0;
  }
  check_models(options, bench.config);
  check_method_settings(options);
  check_kept_layers(options.given, bench.config);
  for (const std::string& name : options.objectives) {
    if (plan::needs_value_head(name)) bench.options.setup.value_head = true;
  }
  bench.inputs = input_files(options, /*config_only=*/bench.device.is_meta());
  if (options.tokens) read_tokens(bench);
  check_micro_batches(bench);
  check_objectives(bench);
  say_unread(options, bench.config);
  return bench;
}

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
            Settings settings = settings_for(method, options.given);
            settings.chunk = chunk;
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
