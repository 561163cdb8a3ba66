// A family of models as data: what its class in transformers fixes, and what that class takes where
// config.json lacks a key. The table of them is in config_families.cc, and nothing else asks for a family by
// its name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "streambp/model/config/config.h"

namespace streambp {

class ConfigReader;

/// Which maps have a bias. A key of null: none is read, and what stands in place of it always holds.
struct FamilyBiases {
  const char* qkv_key = "attention_bias";
  const char* output_key = "attention_bias";
  const char* mlp_key = nullptr;
  bool qkv = false;  // where the key is absent
  bool output = false;
};

enum class QkNorm {
  kNone,
  kOfHeads,
  kOfWholeProjections,
  kByKey,           // of heads, where use_qk_norm says so
  kByKeyOfEach,     // the same, with a weight for each head
  kOfRotatedHeads,  // after their rotation, under other names
};

enum class NormLayout {
  kBefore,  // attention and MLP
  kAfter,
  kAround,
  kAroundAsGlm,  // under GLM-4's names
  kOneForBoth,   // before attention, and the MLP reads the same
};

/// Which layers have a window where layer_types does not say.
enum class WindowLayers {
  kNone,              // and the key sliding_window is refused
  kAll,               // where sliding_window is no null
  kAllAsStated,       // likewise, and the key has to be there
  kFromLayer,         // with use_sliding_window: those from max_window_layers on
  kEvenBelowLayer,    // with use_sliding_window: every other one below max_window_layers
  kAllIfSwitchedOn,   // with use_sliding_window
  kThoseWithoutRope,  // with use_sliding_window
  kAllButEvery,       // period-th
  kByTypes,           // none does
};

struct FamilyWindows {
  WindowLayers layers = WindowLayers::kNone;
  int64_t period = 0;
  bool from_last = false;     // the layers are counted from the last one
  bool reads_period = false;  // sliding_window_pattern, with which layer_types has to agree
  bool other_periods = true;  // else that key may only repeat the period
  int64_t size = 0;           // where sliding_window is absent; 0: the key has to be there
  bool null_is_none = false;  // sliding_window null: no layer has one
  bool last_sees_all = false;
};

/// Which layers don't rotate queries and keys.
enum class NoRope {
  kNone,
  kByKeys,      // no_rope_layers, no_rope_layer_interval
  kFullLayers,  // those without a window, where some may have one
  kByThetas,    // those with a 0 in layer_rope_theta, or each that the period of windows leaves out
  kByType,      // all, where position_embedding_type is not rope
  kAll,
};

/// The scalings of positions that a family's class reads as the others do.
enum class RopeTypes {
  kUsual,         // all but proportional
  kLongrope,      // default and longrope (Phi-3)
  kYarn,          // yarn alone, with a scale of queries (Ministral 3, Mistral 4)
  kProportional,  // default and proportional, of each kind of layer its own object (Gemma 4)
  kOfKinds,       // all, likewise (LFM3)
};

/// The object that a class takes where the file has none (rope_defaults.h); none: plain rotation.
enum class ClassRope { kNone, kGemma4, kGptOss, kLfm3, kMinistral3, kMistral4, kMistralLarge4 };

struct FamilyRope {
  double theta = 1e4;
  RopeTypes types = RopeTypes::kUsual;
  std::optional<double> partial = std::nullopt;  // partial_rotary_factor where absent; none: of whole heads
  bool partial_within = false;    // it is read in rope_parameters alone; outside only the class's may stand
  bool reads_rotary_dim = false;  // which says the same in entries
  bool interleaved = false;
  bool of_windows = false;  // layers with a window have a rope of their own
  double theta_of_windows = 1e4;
  bool partial_by_kind = false;         // partial_rotary_factor of either kind of layer by itself
  bool reads_theta_of_windows = false;  // rope_local_base_freq
  bool reads_alpha = false;             // of type dynamic: a base stretched once for all, whatever the length
  bool image_keys = false;              // mrope_section and mrope_interleaved may be there
  ClassRope of_class = ClassRope::kNone;
  bool share_of_key = false;  // of latent attention: partial_rotary_factor is what of a key rotates, not 1
  bool null_is_ambiguous = false;  // transformers 4 and 5 read a null rope_scaling differently
  /// Whether each kind of layer has an object of its own, as rope_parameters alone has them.
  bool of_kinds() const { return types == RopeTypes::kProportional || types == RopeTypes::kOfKinds; }
};

enum class Router {
  kNone,
  kByLayers,     // sigmoids, a correction and groups, where the list of layers says so
  kSoftmax,      // in the layers that decoder_sparse_step and mlp_only_layers leave
  kOfAllLayers,  // experts as wide as intermediate_size in every layer
  kGranite,      // likewise, next to shared_mlp, or where num_local_experts is 0 that alone
  kErnie,        // a softmax with a correction, in every so many layers
  kAfterDense,   // sigmoids in one group, from num_dense_layers on (LFM2)
  kGrouped,      // sigmoids, a correction and groups, from first_k_dense_replace on
  kNextToMlp,    // Gemma 4's
  kStep,         // sigmoids and a correction, in the layers of mlp_layer_types (Step 3.7)
  kBesideDense,  // sigmoids and a correction, as wide as intermediate_size, in the layers of mlp_layer_types
                 // (MiniMax M3)
  kMuseSpark,    // sigmoids and a correction, of a narrower stream, in the layers of mlp_layer_types
  kHashed,       // square roots of softplus and a correction, or a table of tokens' experts (DeepSeek V4)
};

/// Which layers have an indexer.
enum class Indexers {
  kNone,
  kOfEachLayer,
  kByType,       // indexer_types: the others see what a layer below has picked
  kOfBlocks,     // in layers whose blocks of rows overlap, which it picks among (DeepSeek V4)
  kOfKeyBlocks,  // in layers that layer_types names: it picks blocks of keys (MiniMax M3)
  kOfGroups,     // by type, in layers that attend, to groups of rows (GLM-5.3)
};

struct FamilyExperts {
  Router router = Router::kNone;
  bool two_names = false;        // num_local_experts as good as num_experts
  bool shared = false;           // a gated expert that every token has
  bool always = false;           // no layer has a dense MLP, and weights always sum to 1 ...
  bool reads_norm = false;       // ... unless norm_topk_prob says otherwise
  bool normalised = false;       // norm_topk_prob where it is absent
  bool normalised_null = false;  // and where it is null
  bool block_sparse_moe_names = false;
  bool biased_interleaved = false;
  bool sigmoid_scores = false;   // of kOfAllLayers: in one group, normalised
  bool shared_may_lack = false;  // of kGranite: the width of shared_mlp may be 0, and there is none then
  const char* correction = "gate.e_score_correction_bias";  // its name in the MLP
  bool correction_is_row = false;                           // of shape [1, experts]
  bool parameters_in_peft = false;                          // PEFT has no module for the maps of an expert
  // Of kGrouped, where the keys are absent.
  int64_t experts = 0, width = 0, groups = 1, topk_groups = 1, dense_layers = 1;
  double scale = 1.0;
  int64_t per_token = 8;        // num_experts_per_tok
  bool softmax_scores = false;  // without a correction, and weights sum to 1 unless reads_norm
  bool wide_logits = false;     // the router's are float32 or wider
  bool by_layer_types = false;  // mlp_layer_types says more than first_k_dense_replace ...
  bool by_types_alone = false;  // ... which the class does not read
  bool stacked = false;         // in two tensors for all
};

/// A multimodal model of which the family may be the text part.
struct FamilyWhole {
  const char* model_type = nullptr;
  const char* sizes = "{}";                 // of its text part where text_config lacks them
  bool tied_inside = false;                 // tie_word_embeddings may stand in text_config alone
  std::optional<bool> tied = std::nullopt;  // the same where it is absent outside, if not the family's own
  bool named = false;  // text_config has to say its model_type: another family is what is taken without
  /// Whether the whole class's forward reads final_logit_softcapping of its text part.
  bool caps_logits = true;
};

/// The keys that say Mamba-2's layers, and what the class takes where they are absent.
struct FamilyStateSpace {
  const char *heads = "mamba_n_heads", *head_dim = "mamba_d_head", *state = "mamba_d_state";
  const char *groups = "mamba_n_groups", *kernel = "mamba_d_conv", *conv_bias = "mamba_conv_bias";
  const char *in_bias = "mamba_proj_bias", *out_bias = in_bias;
  const char* attends = nullptr;  // the numbers of layers that attend, instead of layer_types
  int64_t state_absent = 256, groups_absent = 1, heads_absent = 128;
  bool expands = true;          // to mamba_expand hidden_size, else to heads of a stated size
  bool reads_limits = true;     // of its steps: time_step_limit
  const char* width = nullptr;  // a key of the width, which null leaves at mamba_expand hidden_size
  int64_t width_absent = 0;
  bool beside_attention = false;  // and the multipliers that Falcon-H1 has
};

/// The sizes of latent attention where the keys are absent.
struct FamilyLatent {
  int64_t kv_lora_rank = 512, q_lora_rank = 1536;  // 0: queries are projected at once
  int64_t qk_nope_head_dim = 128, v_head_dim = 128;
  bool other_head_dim = false;  // files hold another head_dim than qk_rope_head_dim, which nothing reads
  bool reads_norm_eps = false;  // norms of latents have rms_norm_eps, not 1e-6
};

/// What the class calls its modules.
struct FamilyModules {
  const char* attention = "self_attn";
  const char *q_norm = "q_norm", *k_norm = "k_norm", *out = "o_proj";
  const char *before_attention = "input_layernorm", *before_mlp = "post_attention_layernorm";
  /// In a sandwich, where these are not the usual ones.
  const char *after_attention = nullptr, *after_mlp = nullptr;
  const char* recurrence = "linear_attn";
  const char* mlp = "mlp";
  const char *gate = "gate_proj", *up = "up_proj", *gate_up = "gate_up_proj", *down = "down_proj";
  /// Files say backbone for model, and call the embedding embeddings and the last norm norm_f.
  bool backbone = false;
  const char* last_norm = "norm";  // in files
};

struct Family {
  const char* name;             // model_type
  const char* alias = nullptr;  // another model_type of the same class
  FamilyWhole whole = {};
  int64_t positions = 32768;  // max_position_embeddings
  double rms_norm_eps = 1e-6;
  const char* norm_eps = "rms_norm_eps";  // its key
  bool tied = false;
  int64_t head_dim = 0;            // 0: hidden_size / num_attention_heads, rounded down
  bool head_dim_disputed = false;  // readers of files without the key take one or the other
  bool heads_fill_hidden = false;  // heads times head_dim is hidden_size
  bool heads_divide = false;       // num_attention_heads divides it, where head_dim is absent
  int64_t key_value_heads = 0;     // 0: num_attention_heads
  int64_t pad_token_id = -1;       // -1: none
  bool pad_token_unread = false;
  bool one_part_layers = false;  // each is a mixer or an MLP: layers_block_type
  FamilyBiases bias = {};
  std::array<const char*, 2> dropouts = {};  // keys of those that the class has where they are absent
  Activation activation = Activation::kSilu;
  bool gelu_means_tanh = false;  // hidden_act gelu in files of the other one
  QkNorm qk_norm = QkNorm::kNone;
  NormLayout norms = NormLayout::kBefore;
  bool norm_adds_one = false;
  bool norm_centers = false;
  bool fused_projections = false;
  bool fused_gate_up = false;
  bool scales_embedding = false;  // by the root of hidden_size
  bool multipliers = false;       // Granite's
  bool scales_logits = false;     // Cohere's logit_scale
  bool muse = false;              // plain norms, a gate of what attention gives, two more factors
  bool muse_spark = false;        // the same with gated residual streams, and other defaults
  bool step = false;          // heads of layers with a window, a gate for each, clamped MLPs: config_step.cc
  bool clamped_gate = false;  // GPT-OSS's, or with kOfKeyBlocks of all MLPs
  bool attention_sinks = false;
  double query_pre_attn_scalar = 0.0;                     // where absent; 0: the key is not read
  std::optional<double> attn_softcapping = std::nullopt;  // where absent, 0: none; no value: not read
  std::optional<double> final_softcapping = std::nullopt;
  bool pretraining_tp_unread = false;   // a published file holds another number than 1
  const char* bidirectional = nullptr;  // what use_bidirectional_attention may say besides false
  std::optional<FamilyLatent> latent = std::nullopt;  // latent attention
  bool trained_positions = false;                     // LatentAttentionSettings::trained_positions
  Indexers indexers = Indexers::kNone;
  int64_t index_heads = 64;       // index_n_heads where it is absent
  bool shared_blocks = false;     // Zamba 2's transformer blocks, before the state space of some layers
  bool compressed = false;        // DeepSeek V4's attention, hyper-connections and experts
  bool hyper = false;             // Hunyuan 4's hyper-connections, and its latent attention and indexers
  bool recurrent = false;         // some layers have the gated delta rule
  bool fused_recurrence = false;  // in_proj_qkvz and in_proj_ba
  bool kimi = false;              // Kimi Linear's rule with a gate for each channel, and its keys
  bool glm5_next = false;         // the same with a bound, and GLM-5.3's indexers, streams and clamps
  bool qwen4_exp = false;         // Qwen4-Exp's streams, indexers and embeddings of n-grams
  bool convolutions = false;      // instead of the delta rule, and LFM2's keys of sizes
  bool lfm3 = false;              // likewise, and windows, a gate for each head and norms of outputs by keys
  std::optional<FamilyStateSpace> state_space = std::nullopt;  // instead of the delta rule
  const char* mlp_width = "intermediate_size";
  FamilyModules modules = {};
  bool gemma4 = false;  // Gemma4Settings
  FamilyWindows windows = {};
  NoRope no_rope = NoRope::kNone;
  FamilyRope rope = {};
  FamilyExperts experts = {};
};

/// The family that `settings` names as its model_type; throws InputError with the known ones otherwise.
const Family& find_family(const ConfigReader& settings);

/// Whether some row is of this model_type.
bool is_family(const std::string& model_type);

/// The row of a config that has been read: what no key can change is there, and not in Config.
const Family& family_of(const Config& config);

/// What the config's family calls its modules.
const FamilyModules& modules_of(const Config& config);

/// What a layer calls the module of its experts ("mlp.experts"), of which PEFT adapts gate_up_proj and
/// down_proj.
inline std::string experts_module(const Config& config) {
  if (config.mixture.next_to_mlp) return "experts";
  return config.mixture.granite_names ? "block_sparse_moe.experts"
                                      : std::string(modules_of(config).mlp) + ".experts";
}

/// Whether queries and keys are rotated before they are normed (Hunyuan).
inline bool norms_rotated_heads(const Config& config) {
  return config.qk_norm && family_of(config).qk_norm == QkNorm::kOfRotatedHeads;
}

/// The names of the norms of queries and keys.
inline std::pair<const char*, const char*> qk_norm_names(const Config& config) {
  return norms_rotated_heads(config) ? std::pair("query_layernorm", "key_layernorm")
                                     : std::pair(modules_of(config).q_norm, modules_of(config).k_norm);
}

/// The row of the text part of a multimodal `model_type` whose text_config says `text_type`; null: no such
/// model is known.
const Family* find_text_family(const std::string& model_type, const std::string& text_type);

}  // namespace streambp
