#include "bench/commands/run_flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <utility>

#include "bench/baseline/hugging_face.h"
#include "bench/cli/command_line.h"
#include "streambp/error.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/model/quantized/quantization.h"
#include "streambp/plan/models.h"

namespace streambp::bench {
namespace {

/// The methods are named where not all of them take the setting.
std::string help_of(const SettingKind& kind) {
  const std::vector<std::string> methods = methods_that_take(kind.name);
  if (methods.size() < method_kinds().size())
    return fmt::format("{}: {}", fmt::join(methods, ", "), kind.help);
  std::string help = kind.help;
  help[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(help[0])));
  return help;
}

/// Names of the methods that take a fused optimizer.
std::vector<std::string> fusing_methods() {
  std::vector<std::string> names;
  for (const MethodKind& kind : method_kinds()) {
    if (kind.fuses_optimizer) names.push_back(kind.name);
  }
  return names;
}

/// "beta=0.1,loss_type=ipo" by name, without `pad_token`; each must be an option of one of the objectives,
/// which check its value.
std::map<std::string, std::string> parse_objective_options(const std::string& list,
                                                           const std::vector<std::string>& objectives,
                                                           GivenPadToken& pad_token) {
  std::map<std::string, std::string> given = parse_settings(list, "--set");
  pad_token = take_pad_token(given);
  std::map<std::string, std::string> unused = given;
  std::vector<std::string> known;
  for (const std::string& name : objectives) {
    const ObjectiveKind& kind = objective_kind(name);
    complete_options(kind, plan::options_of(name, given));
    for (const Option& option : kind.options) {
      unused.erase(option.name);
      known.push_back(option.name);
    }
  }
  if (!unused.empty()) {
    throw InputError("--set {}: no option of {}; expected some of {}", unused.begin()->first,
                     fmt::join(objectives, ", "), fmt::join(known, ", "));
  }
  return given;
}

}  // namespace

std::string describe_objectives() {
  std::string text = "Objectives and their options (--set):\n";
  for (const ObjectiveKind& kind : objective_kinds()) {
    text += fmt::format("  {}: {} ({})\n", kind.name, kind.summary, kind.source);
    for (const Option& option : kind.options) {
      text += fmt::format("    {}={}  {}{}\n", option.name, option.default_value, option.help,
                          option.choices.empty() ? "" : fmt::format(": {}", fmt::join(option.choices, ", ")));
    }
  }
  return text;
}

CLI::Validator from_to(int least, int most) {
  return CLI::Range(least, most).description("");
}

RunFlags::RunFlags(CLI::App& command, const Defaults& defaults)
    : command_(command),
      model_(defaults.model),
      methods_(defaults.methods),
      trains_(defaults.trains),
      dtype_(defaults.dtype) {
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command.add_option(flag, value, help)->capture_default_str();
  };
  text("--model", model_,
       "A Hugging Face folder (config.json, safetensors) or a preset (streambp-bench models lists them)");
  text("--objective", objectives_,
       fmt::format("Objectives: {}; or all (--help objectives)", fmt::join(objective_names(), ", ")));
  text("--set", objective_options_,
       "Options of the objectives, as beta=0.1,loss_type=ipo (--help objectives lists them); "
       "pad_token_id=none (or a number): the "
       "embedding's padding_idx, where it isn't what config.json says; once with commas, or several times")
      ->join(',');
  text("--method", methods_,
       fmt::format(
           "Methods: {} (--help methods); all of them; auto: the cheapest configuration that fits a budget, "
           "dry-run first",
           fmt::join(method_names(), ", ")));
  text("--batch", batches_, "Sequences in a batch");
  add_settings();
  text("--dtype", dtype_,
       "float32, float64, bfloat16, float16 (on cuda and meta devices), or model: as its config.json says "
       "(max-length's default; those that measure take float32)");
  text(
      "--grad-dtype", gradient_dtype_,
      "Dtype of parameter gradients: same (as --dtype: in half precision a layer's are then summed wide over "
      "its chunks and rounded once) or float32");
  text("--head-dtype", head_dtype_,
       "Dtype of lm_head (of a tied model's embedding), its input and its logits, in all models: same (as "
       "--dtype) or float32, as TRL's cast_lm_head_to_fp32 has it");
  text(
      "--quantize", quantize_,
      "Of the linear maps of the layers, as QLoRA has them, frozen under --lora-rank or --adapter: none, "
      "nf4, fp4 or int8, experts of mixtures left out as bitsandbytes leaves them; nf4-experts, ...: experts "
      "too; a layer is dequantised while it is run");
  command.add_flag("--double-quant", double_quant_, "8 bits also for the maxima of nf4's and fp4's blocks");
  text("--weights", weights_,
       "Where the weights of the layers lie: resident (on the device) or host (in the host's memory, with "
       "those of the layer that is run and of the next one on the device; of all where chunk-major runs)")
      ->check(CLI::IsMember({"resident", "host"}).description(""));
  if (!trains_) add_optimizers();
  text("--freeze", freeze_, "Parameters with any of these in their names get no gradient");
  CLI::Option* const rank =
      command.add_option("--lora-rank", lora_rank_, "Train LoRA adapters of this rank and freeze the rest")
          ->check(from_to(1, 1000000));
  command
      .add_option("--lora-alpha", lora_alpha_, "Scale of the adapters times their rank (default: the rank)")
      ->needs(rank);
  text("--lora-targets", lora_targets_, "Modules with an adapter, or all-linear")->needs(rank);
  command.add_flag("--lora-rslora", lora_rslora_, "Scale by alpha / sqrt(rank) instead of alpha / rank")
      ->needs(rank);
  text("--adapter", adapter_, "A PEFT folder with adapters to train")->excludes(rank);
  text("--reference", reference_,
       "A folder or preset whose log-probabilities dpo, kto, grpo or ppo compare with, or none (max-length: "
       "default the model itself). Of a model with adapters: base (the default of fresh ones) or adapter "
       "(TRL's of an --adapter that is trained already: a frozen copy of it)");
  command.add_flag(
      "--release-reference", release_reference_,
      "Free the reference model's weights before the passes (default: they stay, as in training)");
  text("--teacher", teacher_, "A folder or preset to distil from");
  command
      .add_option("--micro-batches", micro_batches_,
                  "Cut each batch into this many, at most its sequences, and add up their gradients (rotary "
                  "tables that depend on a "
                  "length, longrope and dynamic, take the whole batch's)")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  command
      .add_option("--prompt", prompt_,
                  "Tokens before a completion of a made-up sequence, at most half of it (default: a quarter)")
      ->check(from_to(1, 1 << 24));
  add_seed_flag(command, "--seed", seed_, "Of random weights and tokens");
}

void RunFlags::add_optimizers() {
  command_
      .add_option("--fuse-optimizer", fused_optimizer_,
                  fmt::format("{}: consume each layer's gradients when its last chunk is done: none, {}",
                              fmt::join(fusing_methods(), ", "), fmt::join(optimizer_names(), ", ")))
      ->capture_default_str();
  command_.add_option("--learning-rate", fused_.learning_rate, "Of the fused optimizer")
      ->capture_default_str();
  command_.add_option("--galore-rank", fused_.rank, "Of the projection of galore and natural-galore")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  command_
      .add_option("--galore-history", fused_.history,
                  "Projected gradients that natural-galore keeps, each as large as one of its averages")
      ->capture_default_str()
      ->check(from_to(1, 100000));
  command_
      .add_option(
          "--optimizer", optimizer_,
          "Optimizer states to count with the weights: none, sgd (its momentum), adamw (two moments), "
          "adamw-foreach (torch's where it is not fused: a third while it steps) or paged-adamw (in the "
          "host's "
          "memory)")
      ->capture_default_str();
  command_
      .add_option(
          "--trainer", trainer_,
          fmt::format("Predict somebody else's loop ({}) on meta devices: gradients appear as layers finish, "
                      "adapters are float32, under peft-kbit (prepare_model_for_kbit_training) also all "
                      "that is not quantised; with --baseline hugging-face where nothing else is said",
                      fmt::join(plan::trainer_names(), ", ")))
      ->capture_default_str();
  command_.add_option("--optimizer-bits", optimizer_bits_, "Of a number in an optimizer state: 32, 16 or 8")
      ->capture_default_str()
      ->check(CLI::IsMember({8, 16, 32}).description(""));
  command_.add_flag(
      "--master-weights", master_weights_,
      "A float32 copy of the trained weights next to a half-precision model, which steps are taken of");
}

void RunFlags::add_settings() {
  for (const SettingKind& kind : setting_kinds()) {
    if (kind.type == SettingType::kSwitch) {
      const std::string help = help_of(kind);
      command_.add_flag(kind.flag, help);
      continue;
    }
    std::string& text = settings_[kind.name] = kind.text(Settings{});
    command_.add_option(kind.flag, text, help_of(kind))->capture_default_str();
  }
}

void RunFlags::read(SweepOptions& options) const {
  for (const auto& [flag, value] : {std::pair{"--model", &model_},
                                    {"--adapter", &adapter_},
                                    {"--reference", &reference_},
                                    {"--teacher", &teacher_}}) {
    if (command_.count(flag) > 0 && value->empty())
      throw InputError("{} '': expected a folder{}", flag, value == &adapter_ ? "" : " or a preset");
  }
  options.setup.model = model_;
  options.objectives = objectives_ == "all" ? objective_names() : parse_words(objectives_, "--objective");
  options.objective_options =
      parse_objective_options(objective_options_, options.objectives, options.setup.pad_token);
  options.methods.clear();
  options.picks_method = false;
  for (const std::string& method : parse_words(methods_, "--method")) {
    if (method == "all") {
      for (const MethodKind& kind : method_kinds()) options.methods.push_back(kind.method);
    } else if (method == "auto") {
      options.picks_method = true;
    } else {
      options.methods.push_back(parse_method(method));
    }
  }
  options.batches = parse_integers(batches_, "--batch", 1);
  for (const int64_t batch : options.batches) {
    if (batch > kMaxTokens)
      throw InputError("--batch {}: expected at most {} sequences, of one token each", batch, kMaxTokens);
  }
  read_settings(options);
  const bool compared = std::any_of(options.methods.begin(), options.methods.end(),
                                    [](Method method) { return method_kind(method).takes("baseline"); });
  if (trainer_ != "none" && compared && !options.fixed.contains("baseline"))
    options.given.baseline = "hugging-face";
  if (!options.given.is_fair()) add_baselines();
  for (const char* flag : {"--learning-rate", "--galore-rank", "--galore-history"}) {
    if (!trains_ && command_.count(flag) > 0 && fused_optimizer_ == "none")
      throw InputError("{}: of the fused optimizer, expected --fuse-optimizer with it", flag);
  }
  options.setup.fused_optimizer.reset();
  if (fused_optimizer_ != "none") {
    options.setup.fused_optimizer = fused_;
    options.setup.fused_optimizer->name = fused_optimizer_;
    if (optimizer_bits_ == 16) options.setup.fused_optimizer->dtype = at::kBFloat16;
    if (optimizer_bits_ == 8)
      throw InputError("--optimizer-bits 8: a fused optimizer's states have 32 or 16");
    make_optimizer(*options.setup.fused_optimizer);
  }
  options.setup.dtype = parse_dtype(dtype_ == "model" ? open_config(model_).dtype : dtype_);
  const at::ScalarType dtype = options.setup.dtype;
  options.setup.gradient_dtype = plan::parse_wide_dtype("--grad-dtype", gradient_dtype_, dtype);
  options.setup.head_dtype = plan::parse_wide_dtype("--head-dtype", head_dtype_, dtype);
  if (options.setup.head_dtype == dtype) options.setup.head_dtype.reset();
  options.setup.optimizer =
      parse_optimizer(optimizer_, optimizer_bits_, master_weights_, options.setup.dtype);
  if (options.setup.fused_optimizer)  // its steps are of them
    options.setup.fused_optimizer->master_weights =
        std::exchange(options.setup.optimizer.master_weights, false);
  options.setup.freeze.clear();
  if (command_.count("--freeze") > 0) options.setup.freeze = parse_words(freeze_, "--freeze");
  read_adapters(options);
  options.setup.quantization = parse_quantization(quantize_, double_quant_);
  options.setup.trainer = plan::parse_trainer(trainer_);
  const bool adapted = options.setup.lora || options.setup.adapter;
  if (adapted && dtype != at::kDouble &&
      plan::widens_adapters(options.setup.trainer, options.setup.quantization.has_value()))
    options.setup.gradient_dtype = at::kFloat;
  options.setup.weights_on_host = weights_ == "host";
  const bool of_adapter = is_adapter_reference(reference_);
  const bool fresh_base = reference_ == "base" && options.setup.lora;
  if (of_adapter && adapter_.empty() && !fresh_base)
    throw InputError("--reference {}: expected {} with it", reference_,
                     reference_ == "base" ? "--lora-rank or --adapter" : "--adapter, trained already,");
  options.setup.adapter_reference = of_adapter ? reference_ : "";
  options.setup.reference = reference_ == "none" || of_adapter ? "" : reference_;
  options.setup.release_reference = release_reference_;
  options.setup.teacher = teacher_;
  options.prompt = prompt_;
  options.micro_batches = micro_batches_;
  options.setup.seed = seed_;
}

void RunFlags::read_settings(SweepOptions& options) const {
  options.given = {};
  options.fixed.clear();
  options.chunks = {0};
  for (const SettingKind& kind : setting_kinds()) {
    if (command_.count(kind.flag) == 0) continue;
    options.fixed.insert(kind.name);
    options.fixed.insert(kind.fixes.begin(), kind.fixes.end());
    if (kind.type == SettingType::kSwitch) {
      set_setting(kind, options.given, "true");
    } else if (kind.name == "chunk") {  // a list: each a cell of its own
      options.chunks.clear();
      for (const std::string& word : parse_words(settings_.at(kind.name), kind.flag)) {
        Settings one;
        set_setting(kind, one, word);
        options.chunks.push_back(one.chunk);
      }
    } else {
      set_setting(kind, options.given, settings_.at(kind.name));
    }
  }
}

void RunFlags::read_adapters(SweepOptions& options) const {
  if (command_.count("--adapter") > 0) options.setup.adapter = adapter_;
  if (command_.count("--lora-rank") == 0) return;
  LoraConfig lora;
  lora.r = lora_rank_;
  lora.lora_alpha = command_.count("--lora-alpha") > 0 ? lora_alpha_ : static_cast<double>(lora_rank_);
  lora.use_rslora = lora_rslora_;
  lora.target_modules = lora_targets_ == "all-linear" ? std::vector<std::string>{kAllLinear}
                                                      : parse_words(lora_targets_, "--lora-targets");
  options.setup.lora = lora;
}

}  // namespace streambp::bench
