#include "bench/sweep/cells/cell.h"

#include <utility>

#include "bench/cli/records.h"
#include "bench/records/json_members.h"
#include "bench/sweep/setting_members.h"
#include "streambp/model/files/tensor_file.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

json or_auto(int64_t value) {
  return value > 0 ? json(value) : json("auto");
}

json lora_settings(const plan::ModelSetup& setup) {
  if (setup.adapter) return setup.adapter->string();
  if (!setup.lora) return nullptr;
  return {{"r", setup.lora->r},
          {"lora_alpha", setup.lora->lora_alpha},
          {"use_rslora", setup.lora->use_rslora},
          {"target_modules", setup.lora->target_modules}};
}

/// Puts "auto" where an automatic cell leaves the choice open, and what the choice has to fit.
void leave_open(const SweepOptions& options, json& configuration) {
  configuration["method"] = "auto";
  json& settings = configuration["settings"];
  settings.update(open_setting_members(options.given, options.fixed));
  settings["chunk"] = json::array();
  for (const int64_t chunk : options.chunks) settings["chunk"].push_back(or_auto(chunk));
  settings["budget"] = or_null(options.budget);
  settings["host_budget"] = or_null(options.host_budget);
}

/// Null where nothing is kept.
json optimizer_settings(const OptimizerStates& optimizer) {
  if (optimizer.name == "none" && !optimizer.master_weights) return nullptr;
  return {{"name", optimizer.name},
          {"bits", optimizer.states == 0 ? 0 : 8 * c10::elementSize(optimizer.dtype)},
          {"master_weights", optimizer.master_weights}};
}

json fused_settings(const plan::ModelSetup& setup) {
  if (!setup.fused_optimizer) return nullptr;
  const OptimizerSettings& fused = *setup.fused_optimizer;
  json settings{{"name", fused.name}, {"learning_rate", fused.learning_rate}};
  if (fused.name != "sgd") settings["bits"] = 8 * c10::elementSize(fused.dtype);
  if (fused.name.ends_with("galore")) settings["rank"] = fused.rank;
  if (fused.name == "natural-galore") settings["history"] = fused.history;
  if (fused.master_weights) settings["master_weights"] = true;
  return settings;
}

}  // namespace

plan::TrainingStep step_of(const Bench& bench, const Cell& cell) {
  const SweepOptions& options = bench.options;
  return {.objective = cell.objective,
          .options = options.objective_options,
          .seq_len = cell.seq_len,
          .sequences = cell.batch,
          .prompt = options.prompt,
          .micro_batches = options.micro_batches,
          .seed = options.setup.seed,
          .batch = bench.batch};
}

plan::SearchSpace search_space(const SweepOptions& options) {
  plan::SearchSpace space;
  space.methods = options.picks_method ? plan::all_methods() : options.methods;
  if (options.picks_method && options.setup.fused_optimizer)
    std::erase_if(space.methods, [](Method method) { return !method_kind(method).fuses_optimizer; });
  space.chunks = options.chunks;
  space.given = options.given;
  space.fixed = options.fixed;
  return space;
}

namespace {

json name_of_reference(const plan::ModelSetup& setup) {
  const std::string& name = setup.reference.empty() ? setup.adapter_reference : setup.reference;
  return name.empty() ? json(nullptr) : json(name);
}

}  // namespace

json cell_configuration(const Bench& bench, const Cell& cell) {
  const SweepOptions& options = bench.options;
  const plan::ModelSetup& setup = options.setup;
  const json tokens_file = options.tokens ? json(options.tokens->string()) : json(nullptr);
  json configuration{{"model", setup.model},
                     {"family", bench.config.family},
                     {"parameters", parameter_count(bench.config)},
                     {"objective", cell.objective},
                     {"method", method_name(cell.settings.method)},
                     {"settings",
                      {{"gradient_dtype", dtype_name(setup.gradient_dtype)},
                       {"optimizer", optimizer_settings(setup.optimizer)},
                       {"fused_optimizer", fused_settings(setup)},
                       {"objective_options", plan::options_of(cell.objective, options.objective_options)},
                       {"prompt", positive_or_null(options.prompt)},
                       {"micro_batches", options.micro_batches},
                       {"lora", lora_settings(setup)},
                       {"release_reference", setup.release_reference},
                       {"reference", name_of_reference(setup)},
                       {"teacher", setup.teacher.empty() ? json(nullptr) : json(setup.teacher)},
                       {"freeze", setup.freeze},
                       {"threads", options.threads},
                       {"repeats", options.repeats > 0 ? json(options.repeats) : json("auto")},
                       {"seed", setup.seed},
                       {"memory_limit", or_null(options.memory_limit)},
                       {"tokens_file", tokens_file},
                       {"tokens_key", options.tokens ? json(bench.batch_key) : json(nullptr)}}},
                     {"seq_len", cell.seq_len},
                     {"batch", cell.batch},
                     {"dtype", dtype_name(setup.dtype)},
                     {"device", options.device}};
  configuration["settings"].update(setting_members(cell.settings));
  if (cell.automatic) leave_open(options, configuration);
  // Where it is not set it is not named: keys of records from before it was a setting stay what they are.
  if (!setup.pad_token.word.empty()) configuration["settings"]["pad_token_id"] = setup.pad_token.word;
  if (setup.quantization) {
    configuration["settings"]["quantize"] = quantization_name(*setup.quantization);
    configuration["settings"]["double_quant"] = setup.quantization->double_quant;
  }
  if (setup.head_dtype) configuration["settings"]["head_dtype"] = dtype_name(*setup.head_dtype);
  if (setup.weights_on_host) configuration["settings"]["weights"] = "host";
  if (setup.trainer != plan::Trainer::kNone)
    configuration["settings"]["trainer"] = plan::trainer_name(setup.trainer);
  if (options.deterministic) configuration["settings"]["deterministic"] = true;
  if (!bench.inputs.keys.empty()) configuration["settings"]["content"] = bench.inputs.keys;
  return configuration;
}

json prediction_record(const Bench& bench, const Cell& cell, const plan::Prediction& prediction) {
  json record = cell_configuration(bench, cell);
  record.update({{"schema", kRecordSchema},
                 {"key", record_key(record)},
                 {"kind", "predicted"},
                 {"tokens", prediction.tokens},
                 {"model_flops", prediction.model_flops},
                 {"hardware_flops", prediction.hardware_flops},
                 {"chunk", positive_or_null(prediction.chunk)},
                 {"head_chunk", positive_or_null(prediction.head_chunk)},
                 {"peak_bytes", prediction.peak_bytes},
                 {"resident_bytes", prediction.resident_bytes},
                 {"peak_beyond_resident_bytes", prediction.peak_bytes - prediction.resident_bytes},
                 {"host_peak_bytes", prediction.host_peak_bytes},
                 {"breakdown_at_peak", prediction.breakdown},
                 {"status", "ok"},
                 {"error", nullptr}});
  return record;
}

}  // namespace streambp::bench
