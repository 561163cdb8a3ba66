#include "verify/golden_cases/golden_case.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/config/family.h"
#include "streambp/model/config/parameter_names.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/lora/lora.h"
#include "streambp/objective/terms.h"
#include "verify/checked_device.h"
#include "verify/golden_cases/golden_options.h"
#include "verify/reference_bridge.h"
#include "verify/reference_objective.h"

namespace streambp::verify {
namespace {

using OptionMap = std::map<std::string, std::string>;

constexpr const char* kCriticPrefix = "value_model.";

/// The folder above `folder` that holds models/: a case's model is named relative to it.
std::filesystem::path set_root(const std::filesystem::path& folder) {
  for (std::filesystem::path at = std::filesystem::absolute(folder).lexically_normal();;
       at = at.parent_path()) {
    if (std::filesystem::is_directory(at / "models")) return at;
    if (at == at.root_path())
      throw InputError("{}: no folder above this case holds models/", folder.string());
  }
}

GoldenCase read_case(const std::filesystem::path& folder) {
  const CaseFile file(folder);
  return {folder, set_root(folder) / file.path("model"), file.text("name"), file.text("objective")};
}

/// A tensor of the case in float64, as the README promises.
at::Tensor read_double(const SafetensorsFile& file, const std::string& name) {
  at::Tensor tensor = read_tensor(file, name);
  if (tensor.scalar_type() != at::kDouble) {
    throw InputError("{}: tensor '{}' is {}, expected F64", file.path().string(), name,
                     file.entry(name).dtype);
  }
  return tensor;
}

/// The gradients whose names begin with `prefix`, without it, under the names of parameters.
Tensors read_gradients(const SafetensorsFile& file, const Config& config, const std::string& prefix = "") {
  const std::string start = "grad." + prefix;
  Tensors gradients;
  for (const auto& [name, entry] : file.entries()) {
    if (name.starts_with(start))
      gradients.emplace(parameter_name(config, name.substr(start.size())), read_double(file, name));
  }
  return gradients;
}

Tensors scaled(const Tensors& gradients, double factor) {
  Tensors result;
  for (const auto& [name, gradient] : gradients) result.emplace(name, gradient * factor);
  return result;
}

/// A tensor [B, w] about the last w tokens of rows of T, on the packed stream at the tokens that predict
/// them.
at::Tensor read_predictions(const SafetensorsFile& file, const std::string& name, const Batch& batch) {
  const at::Tensor given = read_double(file, name);
  if (given.dim() != 2 || given.size(0) != batch.padded_rows || given.size(1) >= batch.padded_columns) {
    throw InputError("{}: {} has shape [{}], expected [{}, fewer than {}]", file.path().string(), name,
                     fmt::join(given.sizes(), ", "), batch.padded_rows, batch.padded_columns);
  }
  const int64_t before = batch.padded_columns - 1 - given.size(1);
  return at::constant_pad_nd(given, {before, 1}).flatten().index_select(0, batch.padded_indices);
}

double read_loss(const CaseFile& file, const SafetensorsFile& tensors) {
  const double loss = file.number("expected", "loss");
  const at::Tensor loss_tensor = read_double(tensors, "out.loss");
  if (loss_tensor.numel() != 1 || !(loss_tensor.item<double>() == loss)) {
    throw InputError("{}: expected.loss is not out.loss of tensors.safetensors", file.where());
  }
  return loss;
}

/// Throws unless hyperparameter `key` is `expected`, a fact about the tensors.
void require_fact(const CaseFile& file, const std::string& key, int64_t expected, const std::string& of) {
  const double number = file.number("hyperparameters", key);
  if (number == static_cast<double>(expected)) return;
  throw InputError("{}: {} is {}, but {} has {}", file.where(), key, number, of, expected);
}

void require_supported(const CaseFile& file, const std::string& objective) {
  if (!has_golden_options(objective)) throw Unsupported("objective " + shown(objective));
  const std::string tuned = file.text("finetuning");
  if (tuned != "full" && tuned != "lora") throw Unsupported("fine-tuning " + shown(tuned));
  const std::string family = file.text("model_type");
  if (!is_family(family)) throw Unsupported("model type " + shown(family));
  const std::string dtype = file.text("dtype");
  if (dtype != "float64") throw Unsupported("dtype " + shown(dtype));
}

/// Each sequence's sum of `log_probabilities` [N], [S].
at::Tensor sequence_sums(const at::Tensor& log_probabilities, const Batch& batch) {
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    sums.push_back(log_probabilities.slice(0, batch.offsets[i], batch.offsets[i + 1]).sum());
  return at::stack(sums);
}

/// A case that is being read.
class Loader {
 public:
  Loader(const GoldenCase& golden, const CaseFile& file)
      : golden_(golden),
        file_(file),
        options_(golden_options(golden.objective, file)),
        tensors_(SafetensorsFile::open(golden.folder / "tensors.safetensors")),
        checkpoint_(Checkpoint::open(golden.model)),
        is_lora_(file.text("finetuning") == "lora"),
        gradients_(read_gradients(tensors_, checkpoint_.config())) {}

  LoadedCase load() && {
    loaded_.models.push_back(std::make_unique<GoldenModel>(
        policy([&](const std::string& name) { return !is_lora_ || gradients_.contains(name); })));
    Batch batch =
        read_objective_batch(objective_kind(golden_.objective), tensors_, checkpoint_.config().vocab_size,
                             "in.", FirstLabels::kRefuse, checkpoint_.config().pad_token_id);
    if (golden_.objective == "sft") {
      add_sft(batch);
    } else if (golden_.objective == "dpo") {
      require_fact(file_, "num_pairs", batch.padded_rows / 2, "in.input_ids");
      compute_reference(batch);
      add_policy("loss", batch, options_, read_loss(file_, tensors_));
    } else if (objective_kind(golden_.objective).layout == Layout::kPairs) {
      require_fact(file_, "num_pairs", batch.padded_rows / 2, "in.input_ids");
      add_policy("loss", batch, options_, read_loss(file_, tensors_));
    } else if (golden_.objective == "kto") {
      add_policy("loss", batch, options_, read_loss(file_, tensors_));
    } else if (golden_.objective == "grpo" || golden_.objective == "rloo") {
      require_widths("prompt_length", "completion_length", "in.completion_mask", batch);
      add_policy("loss", batch, options_, read_loss(file_, tensors_));
    } else if (golden_.objective == "ppo") {
      add_ppo(batch);
    } else if (golden_.objective == "distill") {
      add_teacher();
      add_policy("loss", batch, options_, read_loss(file_, tensors_));
    } else if (golden_.objective == "reward") {
      const at::Tensor values = at::zeros({batch.size()}, at::kDouble);
      values.masked_scatter_(batch.value_mask, read_double(tensors_, "out.rewards"));
      add("loss", *loaded_.models.front(), batch, options_,
          {read_loss(file_, tensors_), {}, values, gradients_});
    } else {
      add("loss", *loaded_.models.front(), batch, options_, {read_loss(file_, tensors_), {}, {}, gradients_});
    }
    if (is_lora_) check_merged();
    return std::move(loaded_);
  }

 private:
  /// The case's own model with its adapters and value head.
  GoldenModel policy(const std::function<bool(const std::string&)>& trainable) const {
    GoldenModel policy{Model::load(checkpoint_, placement(trainable)), std::nullopt};
    if (is_lora_) {
      const std::filesystem::path folder = golden_.folder / file_.path("adapter");
      policy.lora = read_lora_config(folder);
      policy.model.load_adapters(folder);
    }
    if (golden_.objective == "ppo" && !is_separate())
      policy.model.attach_value_head(read_double(tensors_, "in.value_head.weight"));
    return policy;
  }

  static Model::Placement placement(const std::function<bool(const std::string&)>& trainable) {
    Model::Placement placement;
    placement.dtype = placement.gradient_dtype = at::kDouble;
    placement.device = checked_device();
    placement.trainable = trainable;
    return placement;
  }

  bool is_separate() const { return file_.text("hyperparameters", "value_model") == "separate"; }

  void add(const std::string& name, GoldenModel& subject, const Batch& batch, const OptionMap& options,
           Evaluation truth, const std::string& prefix = "") {
    GoldenModel* const teacher = golden_.objective == "distill" ? loaded_.models.at(1).get() : nullptr;
    const reference::Matrix teacher_logits =
        teacher == nullptr ? reference::Matrix() : reference_logits(teacher->model, batch);
    loaded_.tasks.push_back(
        {name, prefix, &subject, teacher, batch, make_objective(golden_.objective, batch, options),
         reference_objective(golden_.objective, batch, options, teacher_logits), std::move(truth)});
  }

  /// A loss of the case's own model that does not touch a value head.
  void add_policy(const std::string& name, const Batch& batch, const OptionMap& options, double loss) {
    add(name, *loaded_.models.front(), batch, options,
        {loss, read_predictions(tensors_, "out.per_token_logps", batch), {}, gradients_});
  }

  /// transformers' ForCausalLMLoss: the mean over labels, and the same sum over num_items_in_batch.
  void add_sft(const Batch& batch) {
    const auto scored = count(batch).scored;
    const double labels = file_.number("expected", "num_valid_labels");
    if (static_cast<double>(scored) != labels) {
      throw InputError("{}: expected.num_valid_labels is {}, but in.labels holds {}", file_.where(), labels,
                       scored);
    }
    add_policy("mean", batch, options_, read_loss(file_, tensors_));
    if (!file_.has("expected", "num_items_in_batch")) return;
    OptionMap options = options_;
    options["divisor"] = fmt::format("{}", file_.number("expected", "num_items_in_batch"));
    const double factor = file_.number("expected", "gradient_factor_with_num_items_in_batch");
    add("num_items_in_batch", *loaded_.models.front(), batch, options,
        {file_.number("expected", "loss_with_num_items_in_batch"),
         read_predictions(tensors_, "out.per_token_logps", batch),
         {},
         scaled(gradients_, factor)});
  }

  /// The model that the case names as its teacher, of the same set.
  void add_teacher() {
    const std::filesystem::path folder = set_root(golden_.folder) / file_.text("hyperparameters", "teacher");
    loaded_.models.push_back(std::make_unique<GoldenModel>(GoldenModel{
        Model::load(Checkpoint::open(folder), placement([](const std::string&) { return false; })),
        std::nullopt}));
  }

  /// Replaces the reference's sums where the case has the reference itself.
  void compute_reference(Batch& batch) {
    if (options_.contains("reference_free") && options_.at("reference_free") == "true") return;
    const std::string reference = file_.text("hyperparameters", "reference");
    if (reference == "in.ref_*_logps only") return;
    at::Tensor log_probabilities;
    if (reference == "reference.safetensors (same config as the model)") {
      Model model =
          Model::load(Checkpoint::open_file(golden_.folder / "reference.safetensors", checkpoint_.config()),
                      placement([](const std::string&) { return false; }));
      log_probabilities = evaluate(model, batch).log_probabilities.to(at::kCPU);
    } else if (reference == "the base model with the adapter disabled" && is_lora_) {
      Model& model = loaded_.models.front()->model;
      model.enable_adapters(false);
      log_probabilities = evaluate(model, batch).log_probabilities.to(at::kCPU);
      model.enable_adapters(true);
    } else {
      throw Unsupported("reference " + shown(reference));
    }
    const at::Tensor given = batch.sequence_inputs[inputs::kReferenceSums];
    if (!given.defined()) throw InputError("{}: no in.ref_chosen_logps in it", tensors_.path().string());
    if (options_.contains("ld_alpha")) {  // the sums are weighted ones
      batch.sequence_inputs.erase(inputs::kReferenceSums);
      batch.token_inputs[inputs::kReferenceLogProbabilities] = log_probabilities;
      return;
    }
    const at::Tensor sums = sequence_sums(log_probabilities, batch);
    loaded_.checks.push_back({"(the reference's log-probabilities)", relative_error(sums, given), {}});
    batch.sequence_inputs[inputs::kReferenceSums] = sums;
  }

  void require_widths(const std::string& before, const std::string& width, const std::string& tensor,
                      const Batch& batch) const {
    const int64_t columns = read_tensor(tensors_, tensor).size(1);
    require_fact(file_, width, columns, tensor);
    require_fact(file_, before, batch.padded_columns - columns, "in.input_ids before it");
  }

  /// A value head on the policy's own hidden states is one pass; a critic of its own is another.
  void add_ppo(const Batch& batch) {
    require_widths("context_length", "response_length", "in.responses", batch);
    const double loss = read_loss(file_, tensors_);
    const at::Tensor log_probabilities = read_predictions(tensors_, "out.per_token_logps", batch);
    const at::Tensor values = read_predictions(tensors_, "out.values", batch);
    if (!is_separate()) {
      add("loss", *loaded_.models.front(), batch, options_, {loss, log_probabilities, values, gradients_});
      return;
    }
    const double policy_loss = file_.number("expected", "pg_loss");
    const double value_loss =
        file_.number("hyperparameters", "vf_coef") * file_.number("expected", "vf_loss");
    loaded_.checks.push_back(
        {"(pg_loss + vf_coef vf_loss)", relative_error(policy_loss + value_loss, loss), {}});

    std::erase_if(gradients_, [](const auto& gradient) { return gradient.first.starts_with(kCriticPrefix); });
    Batch policy_batch = batch;
    policy_batch.value_mask.reset();
    OptionMap policy_options = options_;
    policy_options["vf_coef"] = "0";
    add_policy("policy", policy_batch, policy_options, policy_loss);

    Config config = checkpoint_.config();
    config.value_model = true;
    GoldenModel& critic = *loaded_.models.emplace_back(std::make_unique<GoldenModel>(GoldenModel{
        Model::load(Checkpoint::open_file(golden_.folder / "value_model.safetensors", config), placement({})),
        std::nullopt}));
    Batch critic_batch = batch;
    critic_batch.targets = at::full_like(batch.targets, kNoTarget);
    add("critic", critic, critic_batch, options_,
        {value_loss, {}, values, read_gradients(tensors_, config, kCriticPrefix)}, kCriticPrefix);
  }

  /// With every adapter added to its weight the model is an ordinary one, and says the same. Only the last
  /// norm is trained, so that there is something to go backward for.
  void check_merged() {
    GoldenModel adapted = policy([](const std::string& name) { return name == "model.norm.weight"; });
    Model& model = adapted.model;
    const std::vector<LoraTarget> targets = lora_targets(model.config(), *adapted.lora);
    if (std::any_of(targets.begin(), targets.end(), [](const LoraTarget& target) {
          return target.module.find(kSharedBlock) != std::string::npos;
        }))
      return;  // a weight that layers share would have the adapters of one of them
    model.merge_adapters();
    for (const GoldenTask& task : loaded_.tasks) {
      const Evaluation merged = evaluate(model, task.batch, *task.objective, {});
      loaded_.checks.push_back({"(merged weights: loss)", relative_error(merged.loss, task.truth.loss), {}});
      loaded_.checks.push_back({"(merged weights: log-probabilities)",
                                relative_error(merged.log_probabilities, task.truth.log_probabilities),
                                {}});
    }
  }

  const GoldenCase& golden_;
  const CaseFile& file_;
  OptionMap options_;
  SafetensorsFile tensors_;
  Checkpoint checkpoint_;
  bool is_lora_;
  Tensors gradients_;
  LoadedCase loaded_;
};

}  // namespace

std::vector<GoldenCase> find_golden_cases(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) throw InputError("{}: no such folder", folder.string());
  if (std::filesystem::exists(folder / "case.json")) return {read_case(folder)};
  if (!std::filesystem::is_directory(folder / "models") || !std::filesystem::is_directory(folder / "cases")) {
    throw InputError("{}: expected a set of golden cases (models/ and cases/) or one case (case.json)",
                     folder.string());
  }
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cases")) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<GoldenCase> cases;
  for (const auto& path : folders) cases.push_back(read_case(path));
  return cases;
}

LoadedCase load_golden_case(const GoldenCase& golden) {
  const CaseFile file(golden.folder);
  require_supported(file, golden.objective);  // before anything else is opened
  return Loader(golden, file).load();
}

}  // namespace streambp::verify
