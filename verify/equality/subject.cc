#include "verify/equality/subject.h"

#include "streambp/error.h"
#include "streambp/model/lora/peft_name.h"
#include "verify/equality/batches.h"
#include "verify/equality/inputs.h"
#include "verify/reference_evaluation.h"
#include "verify/reference_objective.h"

namespace streambp::verify {
namespace {

using OptionMap = std::map<std::string, std::string>;

const std::map<std::string, Padding> kPaddings{{"left", Padding::kLeft},
                                               {"right", Padding::kRight},
                                               {"none", Padding::kNone},
                                               {"documents", Padding::kDocuments}};

const std::map<std::string, std::vector<OptionMap>> kVariants{
    {"sft",
     {{}, {{"label_smoothing", "0.1"}}, {{"reduction", "sum"}}, {{"divisor", "77"}}, {{"loss_type", "dft"}}}},
    {"dpo",
     {{},
      {{"cdpo_label_smoothing", "0.1"}, {"beta", "0.3"}},
      {{"loss_type", "hinge"}},
      {{"loss_type", "ipo"}},
      {{"loss_type", "robust"}, {"label_smoothing", "0.2"}},
      {{"reference_free", "true"},
       {"f_divergence_type", "alpha_divergence"},
       {"f_alpha_divergence_coef", "0.7"}},
      {{"loss_type", "apo_zero+nca_pair+discopop"}, {"loss_weights", "1+0.5+0.3"}, {"discopop_tau", "0.2"}},
      {{"ld_alpha", "0.4"}, {"loss_type", "sigmoid_norm"}},
      {{"use_weighting", "true"}, {"loss_type", "sigmoid+bco_pair"}},
      {{"loss_type", "aot+aot_unpaired"}, {"label_smoothing", "0.1"}},
      {{"loss_type", "exo_pair"}, {"label_smoothing", "0.05"}, {"f_divergence_type", "js_divergence"}},
      {{"loss_type", "sft+sppo_hard+apo_down"}, {"beta", "0.5"}},
      {{"f_divergence_type", "forward_kl"}, {"loss_type", "hinge"}}}},
    {"cpo",
     {{},
      {{"loss_type", "hinge"}, {"cpo_alpha", "0"}},
      {{"loss_type", "ipo"}, {"beta", "0.4"}},
      {{"loss_type", "simpo"}, {"alpha", "0.25"}, {"label_smoothing", "0.1"}}}},
    {"simpo", {{}, {{"label_smoothing", "0.1"}, {"beta", "1.5"}, {"simpo_gamma", "0.4"}}}},
    {"orpo", {{}, {{"beta", "0.5"}, {"nll", "completion"}}}},
    {"kto",
     {{},
      {{"beta", "0.3"}, {"desirable_weight", "1.3"}, {"undesirable_weight", "0.7"}},
      {{"loss_type", "apo_zero_unpaired"}}}},
    {"grpo",
     {{},
      {{"loss_type", "bnpo"}, {"beta", "0.04"}, {"temperature", "0.7"}},
      {{"importance_sampling_level", "sequence"}, {"epsilon_low", "0.05"}, {"epsilon_high", "0.08"}},
      {{"loss_type", "dr_grpo"}, {"max_completion_length", "48"}, {"delta", "1.1"}},
      {{"loss_type", "dapo"}, {"epsilon_high", "0.28"}, {"num_items_in_batch", "131"}},
      {{"importance_sampling_level", "sequence"}, {"loss_type", "dapo"}, {"beta", "0.1"}},
      {{"loss_type", "cispo"}, {"epsilon_high", "1.1"}, {"entropy_coef", "0.03"}},
      {{"loss_type", "sapo"}, {"beta", "0.2"}, {"use_bias_correction_kl", "true"}, {"temperature", "1.2"}},
      {{"top_entropy_quantile", "0.4"}, {"entropy_coef", "0.02"}, {"clip_ratio_c", "1.3"}},
      {{"loss_type", "vespo"}, {"vespo_k_pos", "0.5"}, {"beta", "0.1"}, {"kl_estimator", "k2"}},
      {{"off_policy_mask_threshold", "0.02"}, {"beta", "0.1"}, {"kl_estimator", "k1"}},
      {{"loss_type", "luspo"}, {"importance_sampling_level", "sequence"}}}},
    {"rloo", {{}, {{"epsilon_low", "0.05"}, {"epsilon_high", "0.08"}, {"temperature", "0.9"}}}},
    {"ppo",
     {{},
      {{"entropy_coef", "0.01"}, {"temperature", "0.8"}},
      {{"kl_coef", "0.05"}, {"cliprange", "0.1"}},
      {{"kl_coef", "0.05"}, {"kl_estimator", "k1"}, {"clip_ratio_c", "1.1"}},
      {{"vf_coef", "0"}}}},
    {"distill",
     {{},
      {{"divergence", "reverse"}, {"temperature", "2"}},
      {{"alpha", "0.5"}, {"temperature", "1.5"}},
      {{"divergence", "jsd"}, {"beta", "0.1"}, {"alpha", "0.7"}, {"temperature", "0.8"}},
      {{"divergence", "jsd"}, {"divisor", "77"}},
      {{"divergence", "reverse"}, {"alpha", "0.7"}, {"vocabulary", "shared"}}}},
    {"reward", {{}, {{"center_rewards_coefficient", "0.1"}}}},
    {"infonce",
     {{},
      {{"pooling", "mean"}, {"scale", "5"}, {"negatives", "2"}},
      {{"similarity", "dot"}, {"scale", "0.3"}, {"symmetric", "true"}}}}};

/// Adapters on all maps or on some, with either scale, and what PEFT trains with them; away from where they
/// begin and do nothing yet.
LoraConfig attach_adapters(Model& model, Padding padding, uint64_t seed) {
  LoraConfig lora;
  lora.r = 3;
  lora.lora_alpha = 5.0;
  lora.target_modules = {kAllLinear};
  lora.may_miss_targets = true;  // where a changed config has no layer of their kind
  if (padding == Padding::kLeft) {
    lora.rank_pattern = {{"layers.0.self_attn.q_proj", 1}, {"(o|q|qkv)_proj", 4}};
    lora.alpha_pattern = {{R"(.*layers\.1\..*)", 2.0}};
    lora.modules_to_save = {"norm", "lm_head"};
    // An indexer's norm can't be among them: no gradient reaches it.
    if (model.config().has_indexers()) lora.modules_to_save = {"layernorm", "model.norm", "lm_head"};
    if (model.config().has_low_rank_streams()) lora.modules_to_save = {"hc_norm", "norm_query", "lm_head"};
    // Nor those of blocks that layers share.
    if (model.config().has_shared_blocks()) lora.modules_to_save = {"mamba.norm", "model.norm", "lm_head"};
  }
  if (padding == Padding::kRight || padding == Padding::kDocuments) lora.use_rslora = true;
  // Rows of their own are refused where the embedding has a norm.
  if (padding == Padding::kRight && !model.config().plain_norms) {
    std::vector<int64_t> rows{3, 90, 1, 17, 44};
    std::erase_if(rows, [&](int64_t row) { return row >= model.config().vocab_size; });
    lora.trainable_token_indices = {{"embed_tokens", rows}};
  }
  if (padding == Padding::kNone) {
    const Config& config = model.config();
    lora.target_modules = {"v_proj", "o_proj", config.fused_gate_up ? "gate_up_proj" : "up_proj"};
    if (config.has_shared_blocks()) lora.target_modules = {"v_proj", "o_proj", "gate_up_proj"};
    if (config.fused_projections) lora.target_modules = {"qkv_proj", "down_proj"};
    if (config.mixture.biased_interleaved) {
      lora.target_modules = {"v_proj", "o_proj"};
      lora.target_parameters = {"router.weight", "experts.gate_up_proj", "experts.down_proj"};
    }
    lora.target_modules.insert(lora.target_modules.end(), {"lm_head", "embed_tokens"});
    lora.exclude_modules = {"layers.0.mlp.down_proj", "layers.0.mlp.up_proj"};
  }
  model.attach_adapters(lora, seed);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& parameter : model.parameters()) {
    if (!is_peft_name(parameter->name) || parameter->name.ends_with(".lora_A.weight")) continue;
    // Adapters of adapters magnify each other, and rounding errors.
    const double of_adapters = model.config().has_shared_blocks() ? 0.1 : 0.3;
    const double size = parameter->name.find(".lora_") == std::string::npos ? 0.05 : of_adapters;
    at::Tensor& value = parameter->value;
    value.add_(at::randn(value.sizes(), generator, at::kDouble).to(value.device()), size);
  }
  return lora;
}

void attach_value_head(Model& model, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  model.attach_value_head(at::randn({1, model.config().hidden_size}, generator, at::kDouble).mul_(0.2));
}

/// Batches of the sweep's first kind: sft on all weights.
void fill_plain(EqualitySubject& subject, const RowName& name, uint64_t seed) {
  const int64_t vocab_size = subject.model.config().vocab_size;
  subject.batch = equality_batch(name.batch == "frozen" ? "three" : name.batch, name.length, vocab_size, seed,
                                 /*positions_skip=*/!subject.model.config().is_compressed() &&
                                     !subject.model.config().picks_key_blocks());
  if (subject.batch.packed) {
    subject.twins = {{"all documents in one row", in_one_row(subject.batch, vocab_size)}};
    return;
  }
  subject.twins = {{"the batch padded on the left", repack(subject.batch, Side::kLeft, vocab_size)},
                   {"the batch padded on the right", repack(subject.batch, Side::kRight, vocab_size)}};
}

/// Batches as the objective reads them from a file, with the log-probabilities of old policy and reference.
void fill_padded(EqualitySubject& subject, const RowName& name, uint64_t seed) {
  const ObjectiveKind& kind = objective_kind(name.objective);
  const Options options = complete_options(kind, name.settings);
  const bool with_reference = kind.uses_reference && kind.uses_reference(options);
  const auto batch_of = [&](Padding padding) {
    const std::vector<RowLengths> rows =
        name.rows.empty() ? row_lengths(kind, padding, name.length) : name.rows;
    Batch batch =
        objective_batch(kind, with_reference, padding, rows, subject.model.config().vocab_size, seed);
    const double temperature = make_objective(name.objective, batch, name.settings)->request().temperature;
    const Outcome policy = evaluate(subject.model, batch, temperature);
    const auto on_cpu = [](const at::Tensor& x) { return x.defined() ? x.to(at::kCPU) : x; };
    move_to_policy(batch, on_cpu(policy.log_probabilities), on_cpu(policy.values));
    return batch;
  };
  const Padding padding = kPaddings.at(name.batch);
  subject.batch = batch_of(padding);
  // At the same positions: without position_ids they are the columns, which round otherwise.
  const auto add_twin = [&](const char* what, Padding other) {
    Batch twin = batch_of(other);
    twin.positions = subject.batch.positions;
    twin.rope_length = subject.batch.rope_length;
    subject.twins = {{what, std::move(twin)}};
  };
  if (padding == Padding::kLeft || padding == Padding::kDocuments)
    add_twin("the batch padded on the right", Padding::kRight);
  if (padding == Padding::kRight) add_twin("the batch padded on the left", Padding::kLeft);
}

}  // namespace

bool has_batch(const std::string& objective, const std::string& batch) {
  return batch != "documents" || takes_documents(objective_kind(objective).layout);
}

bool is_padded_batch(const std::string& batch) {
  return kPaddings.contains(batch);
}

std::vector<std::map<std::string, std::string>> objective_variants(const std::string& objective) {
  const auto found = kVariants.find(objective);
  return found == kVariants.end() ? std::vector<OptionMap>{{}} : found->second;
}

EqualitySubject make_subject(const RowName& name, uint64_t seed) {
  const bool is_lora = name.tuning == "lora";
  const auto trainable = [is_lora](const std::string& parameter) {
    return !is_lora || parameter == "value_head.weight";
  };
  EqualitySubject subject{
      equality_model(name.model, seed, trainable, 0, name.config), nullptr, {}, {}, {}, {}, {}};
  if (is_lora) subject.lora = attach_adapters(subject.model, kPaddings.at(name.batch), seed);
  if (name.objective == "ppo" || name.objective == "reward") attach_value_head(subject.model, seed + 1);
  if (is_padded_batch(name.batch)) {
    fill_padded(subject, name, seed);
  } else {
    fill_plain(subject, name, seed);
  }
  reference::Matrix teacher_logits;
  if (name.objective == "distill") {
    const bool of_another_size = name.settings.contains("vocabulary");
    subject.teacher = std::make_unique<Model>(equality_model(
        name.model, seed + 2, [](const std::string&) { return false; }, of_another_size ? 7 : 0,
        name.config));
    teacher_logits = reference_logits(*subject.teacher, subject.batch);
  }
  subject.objective = make_objective(name.objective, subject.batch, name.settings);
  subject.reference =
      evaluate_reference(subject.model, subject.batch,
                         reference_objective(name.objective, subject.batch, name.settings, teacher_logits),
                         subject.lora ? &*subject.lora : nullptr);
  return subject;
}

}  // namespace streambp::verify
