// The families: one row each (transformers, configuration_*.py and modeling_*.py).
#include <array>
#include <fmt/ranges.h>
#include <set>
#include <string_view>
#include <unordered_map>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

// Biases that no key switches, of all three or of queries, keys and values alone.
constexpr FamilyBiases kNoBias{.qkv_key = nullptr, .output_key = nullptr};
constexpr FamilyBiases kQkvBias{.qkv_key = nullptr, .output_key = nullptr, .qkv = true};
constexpr FamilyBiases kMlpByKey{.mlp_key = "mlp_bias"};

constexpr FamilyWindows kFromLayer{.layers = WindowLayers::kFromLayer};

constexpr FamilyRope kQuarter{.partial = 0.25};
constexpr FamilyRope kQuarterOfImages{.partial = 0.25, .image_keys = true};
constexpr FamilyRope kWholeOfImages{.partial = 1.0, .image_keys = true};

// The sizes of text parts, which their files leave out where they are the class's.
constexpr const char* kGemma3Text = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
  "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4})";
constexpr const char* kGemma4Text = R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
  "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4})";
constexpr const char* kGlm5NextText =
    R"({"vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288,
  "num_hidden_layers": 45, "num_attention_heads": 64, "num_key_value_heads": 64})";
constexpr const char* kMistralLarge4Text = R"({"vocab_size": 204800, "hidden_size": 6144,
  "intermediate_size": 24576, "num_hidden_layers": 72, "num_attention_heads": 64, "num_key_value_heads": 64})";
constexpr const char* kMinistral3Text =
    R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 34, "num_attention_heads": 32, "num_key_value_heads": 8})";
constexpr const char* kMiniMaxM3Text = R"({"vocab_size": 200064, "hidden_size": 6144,
  "dense_intermediate_size": 12288, "num_hidden_layers": 60, "num_attention_heads": 64,
  "num_key_value_heads": 4})";
constexpr const char* kMuseGlimmerText =
    R"({"vocab_size": 202048, "hidden_size": 6656, "intermediate_size": 19968,
  "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 2})";
constexpr const char* kMuseSparkText =
    R"({"vocab_size": 202048, "hidden_size": 8192, "intermediate_size": 16384,
  "num_hidden_layers": 62, "num_attention_heads": 128, "num_key_value_heads": 16})";
constexpr const char* kStep37Text = R"({"vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264,
  "num_hidden_layers": 45, "num_attention_heads": 64, "num_key_value_heads": 8})";
constexpr const char* kDeepseekV3Sizes =
    R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
  "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128})";
constexpr const char* kMistral4Text =
    R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288,
  "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 32})";
// Mistral Small 3.1 and 3.2, Magistral: the class's own sizes are those of MistralConfig.
constexpr const char* kMistralText = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8})";
constexpr const char* kQwen35Text = R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
  "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4})";
constexpr const char* kQwen4ExpText = R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
  "num_attention_heads": 16, "num_key_value_heads": 2, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512})";
constexpr const char* kQwen35MoeText = R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
  "num_attention_heads": 16, "num_key_value_heads": 2, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256})";

// By name. What a row leaves out is as in Family: a Llama of which attention_bias may give all maps of
// attention a bias.
// clang-format off
constexpr auto kFamilies = std::to_array<Family>({
  {.name = "bamba", .positions = 262144, .rms_norm_eps = 1e-5, .pad_token_id = 0,
   .bias = kMlpByKey, .recurrent = true, .state_space = FamilyStateSpace{.attends = "attn_layer_indices"},
   .modules = {.before_mlp = "pre_ff_layernorm", .recurrence = "mamba", .mlp = "feed_forward", .last_norm = "final_layernorm"},
   .rope = {.partial = 0.5, .partial_within = true}},
  {.name = "cohere", .positions = 8192, .rms_norm_eps = 1e-5, .norm_eps = "layer_norm_eps", .tied = true,
   .pad_token_id = 0, .qk_norm = QkNorm::kByKeyOfEach, .norms = NormLayout::kOneForBoth, .norm_centers = true,
   .scales_logits = true, .rope = {.theta = 5e5, .interleaved = true}},
  {.name = "cohere2", .positions = 8192, .rms_norm_eps = 1e-5, .norm_eps = "layer_norm_eps", .tied = true,
   .heads_fill_hidden = true, .pad_token_id = 0, .norms = NormLayout::kOneForBoth,
   .norm_centers = true, .scales_logits = true,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 4, .reads_period = true, .size = 4096},
   .no_rope = NoRope::kFullLayers, .rope = {.interleaved = true}},
  {.name = "deepseek_v3", .alias = "kimi_k2",
   .whole = {.model_type = "kimi_k25", .sizes = kDeepseekV3Sizes, .tied = true}, .positions = 4096, .key_value_heads = 128, .latent = FamilyLatent{},
   .windows = {.layers = WindowLayers::kAll},
   .experts = {.router = Router::kGrouped, .normalised = true, .experts = 256, .width = 2048, .groups = 8,
               .topk_groups = 4, .dense_layers = 3, .scale = 2.5}},
  {.name = "deepseek_v32", .positions = 163840, .key_value_heads = 128, .latent = FamilyLatent{}, .indexers = Indexers::kOfEachLayer,
   .experts = {.router = Router::kGrouped, .normalised = true, .experts = 256, .width = 2048, .groups = 8,
               .topk_groups = 4, .dense_layers = 3, .scale = 2.5, .by_layer_types = true}},
  {.name = "deepseek_v4", .positions = 1048576, .head_dim = 512, .bias = kNoBias,
   .attention_sinks = true, .indexers = Indexers::kOfBlocks, .compressed = true, .mlp_width = "moe_intermediate_size",
   .rope = {.theta = 1.6e5, .partial = 0.125, .of_windows = true, .theta_of_windows = 1e4},
   .experts = {.router = Router::kHashed, .parameters_in_peft = true}},
  {.name = "ernie4_5", .positions = 131072, .rms_norm_eps = 1e-5, .tied = true, .head_dim = 128,
   .head_dim_disputed = true, .key_value_heads = 2, .pad_token_id = 0,
   .bias = {.qkv_key = "use_bias", .output_key = "use_bias", .mlp_key = "use_bias"},
   .rope = {.theta = 5e5, .interleaved = true}},
  {.name = "ernie4_5_moe", .positions = 131072, .rms_norm_eps = 1e-5, .tied = true, .key_value_heads = 4, .pad_token_id = 0,
   .bias = {.qkv_key = "use_bias", .output_key = "use_bias", .mlp_key = "use_bias"},
   .rope = {.theta = 5e5, .interleaved = true},
   .experts = {.router = Router::kErnie, .correction = "moe_statics.e_score_correction_bias", .correction_is_row = true}},
  {.name = "exaone4", .positions = 2048, .rms_norm_eps = 1e-5, .key_value_heads = 32, .bias = kNoBias, .qk_norm = QkNorm::kOfHeads,
   .norms = NormLayout::kAfter,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 4, .reads_period = true, .size = 4096,
               .null_is_none = true},
   .no_rope = NoRope::kFullLayers},
  {.name = "falcon_h1", .positions = 8192, .rms_norm_eps = 1e-5, .key_value_heads = 8, .pad_token_id = 0, .bias = kMlpByKey, .recurrent = true,
   .state_space = FamilyStateSpace{.out_bias = "projectors_bias", .width = "mamba_d_ssm", .width_absent = 1024, .beside_attention = true},
   .modules = {.before_mlp = "pre_ff_layernorm", .recurrence = "mamba", .mlp = "feed_forward", .last_norm = "final_layernorm"}},
  {.name = "gemma", .positions = 8192, .tied = true, .head_dim = 256, .key_value_heads = 16, .pad_token_id = 0,
   .activation = Activation::kGeluTanh, .gelu_means_tanh = true, .norm_adds_one = true, .scales_embedding = true},
  {.name = "gemma2", .positions = 8192, .tied = true, .head_dim = 256, .key_value_heads = 4, .pad_token_id = 0,
   .activation = Activation::kGeluTanh, .norms = NormLayout::kAround, .norm_adds_one = true, .scales_embedding = true,
   .query_pre_attn_scalar = 256.0, .attn_softcapping = 50.0, .final_softcapping = 30.0,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 2, .reads_period = true, .other_periods = false,
               .size = 4096}},
  {.name = "gemma3_text", .whole = {.model_type = "gemma3", .sizes = kGemma3Text, .caps_logits = false}, .positions = 131072, .tied = true,
   .head_dim = 256, .key_value_heads = 4, .pad_token_id = 0, .activation = Activation::kGeluTanh, .qk_norm = QkNorm::kOfHeads,
   .norms = NormLayout::kAround, .norm_adds_one = true, .scales_embedding = true, .query_pre_attn_scalar = 256.0, .final_softcapping = 0.0,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 6, .reads_period = true, .size = 4096},
   .rope = {.theta = 1e6, .of_windows = true, .reads_theta_of_windows = true}},
  {.name = "gemma4_text", .whole = {.model_type = "gemma4", .sizes = kGemma4Text}, .positions = 131072, .tied = true,
   .head_dim = 256, .key_value_heads = 4, .pad_token_id = 0, .activation = Activation::kGeluTanh, .qk_norm = QkNorm::kOfHeads,
   .norms = NormLayout::kAround, .scales_embedding = true, .final_softcapping = 0.0, .bidirectional = "vision",
   .gemma4 = true,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 6, .other_periods = false, .size = 512,
               .last_sees_all = true},
   .rope = {.theta = 1e6, .types = RopeTypes::kProportional, .of_windows = true, .of_class = ClassRope::kGemma4},
   .experts = {.router = Router::kNextToMlp}},
  {.name = "glm4", .positions = 131072, .rms_norm_eps = 1.5625e-7, .head_dim = 128, .key_value_heads = 2, .pad_token_id = 151329,
   .bias = {.output_key = nullptr, .qkv = true}, .norms = NormLayout::kAroundAsGlm, .fused_gate_up = true,
   .rope = {.partial = 0.5, .interleaved = true}},
  {.name = "glm4_moe", .positions = 131072, .rms_norm_eps = 1e-5, .key_value_heads = 8, .bias = {.output_key = nullptr},
   .qk_norm = QkNorm::kByKey, .windows = {.layers = WindowLayers::kAll}, .rope = {.partial = 0.5},
   .experts = {.router = Router::kGrouped, .normalised = true, .normalised_null = true, .experts = 128, .width = 1408}},
  {.name = "glm4_moe_lite", .positions = 202752, .rms_norm_eps = 1e-5, .key_value_heads = 20,
   .latent = FamilyLatent{.q_lora_rank = 768, .qk_nope_head_dim = 192, .v_head_dim = 256},
   .experts = {.router = Router::kGrouped, .normalised = true, .experts = 64, .width = 1536, .scale = 1.8,
               .per_token = 4, .by_layer_types = true, .by_types_alone = true}},
  {.name = "glm5_next_text", .alias = "glm5_next", .whole = {.model_type = "glm5_next", .sizes = kGlm5NextText},
   .positions = 1048576, .rms_norm_eps = 1e-5, .key_value_heads = 64, .pad_token_id = 154820,
   .latent = FamilyLatent{.qk_nope_head_dim = 256, .v_head_dim = 256, .other_head_dim = true, .reads_norm_eps = true},
   .indexers = Indexers::kOfGroups,
   .index_heads = 32, .recurrent = true, .glm5_next = true, .modules = {.recurrence = "self_attn"}, .no_rope = NoRope::kAll,
   .experts = {.router = Router::kGrouped, .normalised = true, .parameters_in_peft = true, .experts = 288, .width = 2048, .dense_layers = 3,
               .scale = 2.5, .by_layer_types = true, .by_types_alone = true}},
  {.name = "glm_moe_dsa", .positions = 202752, .rms_norm_eps = 1e-5, .key_value_heads = 64, .latent = FamilyLatent{}, .indexers = Indexers::kByType,
   .index_heads = 32,
   .experts = {.router = Router::kGrouped, .normalised = true, .experts = 256, .width = 2048, .dense_layers = 3,
               .scale = 2.5, .by_layer_types = true}},
  {.name = "gpt_oss", .positions = 131072, .rms_norm_eps = 1e-5, .head_dim = 64, .head_dim_disputed = true, .key_value_heads = 8,
   .bias = {.qkv = true, .output = true}, .clamped_gate = true, .attention_sinks = true,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 2, .size = 128},
   .rope = {.theta = 1.5e5, .of_class = ClassRope::kGptOss, .null_is_ambiguous = true},
   .experts = {.router = Router::kOfAllLayers, .two_names = true, .biased_interleaved = true}},
  {.name = "granite", .positions = 2048, .bias = kMlpByKey, .multipliers = true},
  {.name = "granitemoe", .positions = 2048, .multipliers = true,
   .experts = {.router = Router::kGranite, .parameters_in_peft = true}},
  {.name = "granitemoehybrid", .positions = 2048, .fused_gate_up = true,
   .multipliers = true, .recurrent = true, .state_space = FamilyStateSpace{},
   .mlp_width = "shared_intermediate_size",
   .modules = {.recurrence = "mamba", .mlp = "shared_mlp", .gate_up = "input_linear", .down = "output_linear"},
   .no_rope = NoRope::kByType, .experts = {.router = Router::kGranite, .parameters_in_peft = true}},
  {.name = "granitemoeshared", .positions = 2048, .fused_gate_up = true,
   .multipliers = true, .mlp_width = "shared_intermediate_size",
   .modules = {.mlp = "shared_mlp", .gate_up = "input_linear", .down = "output_linear"},
   .experts = {.router = Router::kGranite, .shared_may_lack = true, .parameters_in_peft = true}},
  {.name = "helium", .positions = 4096, .rms_norm_eps = 1e-8, .head_dim = 128, .heads_fill_hidden = true, .key_value_heads = 20,
   .pad_token_id = 3, .bias = {.output_key = nullptr, .mlp_key = "mlp_bias"},
   .rope = {.theta = 1e5, .interleaved = true}},
  {.name = "hunyuan_v1_dense", .positions = 2048, .rms_norm_eps = 1e-5, .head_dim_disputed = true,
   .pad_token_id = 0, .qk_norm = QkNorm::kOfRotatedHeads,
   .rope = {.reads_alpha = true}},
  {.name = "hy_v4", .positions = 262144, .rms_norm_eps = 1e-5, .pad_token_id = 120002,
   .attention_sinks = true, .latent = FamilyLatent{.qk_nope_head_dim = 192, .v_head_dim = 256, .other_head_dim = true},
   .indexers = Indexers::kByType, .index_heads = 16, .hyper = true,
   .experts = {.router = Router::kGrouped, .normalised = true, .parameters_in_peft = true, .experts = 256, .width = 768,
               .scale = 2.827, .by_layer_types = true, .by_types_alone = true, .stacked = true}},
  {.name = "kimi_linear", .positions = 1048576, .rms_norm_eps = 1e-5, .key_value_heads = 32, .pad_token_id = 163839,
   .latent = FamilyLatent{.q_lora_rank = 0, .other_head_dim = true},
   .recurrent = true, .kimi = true, .modules = {.recurrence = "self_attn"}, .no_rope = NoRope::kAll,
   .experts = {.router = Router::kGrouped, .normalised = true, .parameters_in_peft = true, .experts = 256,
               .width = 1024, .scale = 2.446, .by_layer_types = true}},
  {.name = "lfm2", .positions = 128000, .rms_norm_eps = 1e-5, .norm_eps = "norm_eps", .tied = true, .key_value_heads = 8, .pad_token_id = 0,
   .bias = kNoBias, .qk_norm = QkNorm::kOfHeads, .recurrent = true, .convolutions = true,
   .modules = {.q_norm = "q_layernorm", .k_norm = "k_layernorm", .out = "out_proj", .before_attention = "operator_norm",
               .before_mlp = "ffn_norm", .recurrence = "conv", .mlp = "feed_forward", .gate = "w1", .up = "w3",
               .down = "w2", .last_norm = "embedding_norm"},
   .rope = {.theta = 1e6}},
  {.name = "lfm2_moe", .positions = 128000, .rms_norm_eps = 1e-5, .norm_eps = "norm_eps", .tied = true, .key_value_heads = 8,
   .pad_token_id = 0, .bias = kNoBias, .qk_norm = QkNorm::kOfHeads, .recurrent = true, .convolutions = true,
   .modules = {.q_norm = "q_layernorm", .k_norm = "k_layernorm", .out = "out_proj", .before_attention = "operator_norm",
               .before_mlp = "ffn_norm", .recurrence = "conv", .mlp = "feed_forward", .gate = "w1", .up = "w3",
               .down = "w2", .last_norm = "embedding_norm"},
   .rope = {.theta = 1e6},
   .experts = {.router = Router::kAfterDense, .correction = "expert_bias", .parameters_in_peft = true}},
  {.name = "lfm3", .positions = 128000, .rms_norm_eps = 1e-5, .norm_eps = "norm_eps", .tied = true, .head_dim = 128, .key_value_heads = 4,
   .pad_token_id = 124893, .qk_norm = QkNorm::kOfHeads, .recurrent = true, .lfm3 = true,
   .modules = {.before_attention = "operator_norm", .before_mlp = "ffn_norm", .after_attention = "post_operator_norm",
               .after_mlp = "post_ffn_norm", .recurrence = "conv", .mlp = "feed_forward", .gate = "w1", .up = "w3",
               .down = "w2", .last_norm = "embedding_norm"},
   .windows = {.layers = WindowLayers::kByTypes, .size = 256},
   .rope = {.theta = 1e6, .types = RopeTypes::kOfKinds, .of_windows = true, .of_class = ClassRope::kLfm3}},
  {.name = "llama", .positions = 2048, .heads_divide = true, .bias = kMlpByKey},
  {.name = "minimax_m2", .positions = 196608, .head_dim = 128, .key_value_heads = 8, .bias = kNoBias,
   .qk_norm = QkNorm::kOfWholeProjections, .rope = {.theta = 5e6, .partial = 1.0, .reads_rotary_dim = true},
   .experts = {.router = Router::kOfAllLayers, .two_names = true, .block_sparse_moe_names = true,
               .sigmoid_scores = true}},
  {.name = "minimax_m3_vl_text", .whole = {.model_type = "minimax_m3_vl", .sizes = kMiniMaxM3Text},
   .positions = 524288, .head_dim = 128, .key_value_heads = 4, .bias = kNoBias, .qk_norm = QkNorm::kOfHeads, .norm_adds_one = true,
   .fused_gate_up = true, .clamped_gate = true, .indexers = Indexers::kOfKeyBlocks,
   .mlp_width = "dense_intermediate_size", .rope = {.theta = 5e6, .partial = 1.0},
   .experts = {.router = Router::kBesideDense, .parameters_in_peft = true}},
  {.name = "ministral3",
   .whole = {.model_type = "mistral3", .sizes = kMinistral3Text, .tied_inside = true, .named = true}, .positions = 262144,
   .rms_norm_eps = 1e-5, .head_dim = 128, .head_dim_disputed = true, .key_value_heads = 8, .pad_token_id = 11, .bias = kNoBias,
   .windows = {.layers = WindowLayers::kAll}, .rope = {.types = RopeTypes::kYarn, .of_class = ClassRope::kMinistral3}},
  {.name = "mistral", .whole = {.model_type = "mistral3", .sizes = kMistralText, .tied_inside = true},
   .positions = 131072, .key_value_heads = 8, .bias = kNoBias, .windows = {.layers = WindowLayers::kAllAsStated}},
  {.name = "mistral4", .whole = {.model_type = "mistral3", .sizes = kMistral4Text, .tied_inside = true, .named = true},
   .positions = 1048576, .key_value_heads = 32, .pad_token_id = 11,
   .latent = FamilyLatent{.kv_lora_rank = 256, .q_lora_rank = 1024, .qk_nope_head_dim = 64},
   .rope = {.types = RopeTypes::kYarn, .of_class = ClassRope::kMistral4, .share_of_key = true},
   .experts = {.router = Router::kGrouped, .reads_norm = true, .normalised = true, .parameters_in_peft = true,
               .experts = 128, .width = 2048, .dense_layers = 0, .per_token = 4, .softmax_scores = true,
               .stacked = true}},
  {.name = "mistral_large4_text", .whole = {.model_type = "mistral_large4", .sizes = kMistralLarge4Text},
   .positions = 1048576, .rms_norm_eps = 1e-5, .key_value_heads = 64, .final_softcapping = 30.0,
   .latent = FamilyLatent{.q_lora_rank = 0, .qk_nope_head_dim = 64, .reads_norm_eps = true}, .trained_positions = true,
   .indexers = Indexers::kByType, .index_heads = 32, .no_rope = NoRope::kByKeys,
   .rope = {.of_class = ClassRope::kMistralLarge4},
   .experts = {.router = Router::kGrouped, .parameters_in_peft = true, .experts = 128, .width = 6144, .per_token = 4, .softmax_scores = true,
               .wide_logits = true, .by_layer_types = true}},
  {.name = "mixtral", .positions = 131072, .rms_norm_eps = 1e-5, .key_value_heads = 8, .bias = kNoBias,
   .windows = {.layers = WindowLayers::kAll}, .rope = {.theta = 1e6},
   .experts = {.router = Router::kOfAllLayers, .two_names = true, .block_sparse_moe_names = true}},
  {.name = "muse_glimmer_text", .whole = {.model_type = "muse_glimmer", .sizes = kMuseGlimmerText}, .positions = 131072,
   .rms_norm_eps = 1e-5, .head_dim = 128, .key_value_heads = 2, .norms = NormLayout::kAround, .norm_adds_one = true, .muse = true,
   .final_softcapping = 20.0,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 4, .from_last = true, .size = 2048},
   .no_rope = NoRope::kByThetas},
  {.name = "muse_spark_text", .whole = {.model_type = "muse_spark", .sizes = kMuseSparkText}, .positions = 1048576,
   .rms_norm_eps = 1e-5, .head_dim = 64, .key_value_heads = 16, .norms = NormLayout::kAround, .norm_adds_one = true, .muse = true,
   .muse_spark = true, .final_softcapping = 20.0,
   .modules = {.before_mlp = "pre_feedforward_layernorm", .after_attention = "", .after_mlp = "post_feedforward_layernorm"},
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 4, .from_last = true, .size = 2048},
   .no_rope = NoRope::kByThetas, .rope = {.theta = 5e5},
   .experts = {.router = Router::kMuseSpark, .parameters_in_peft = true}},
  {.name = "nemotron_h", .positions = 4096, .rms_norm_eps = 1e-5, .norm_eps = "layer_norm_epsilon", .head_dim = 128, .key_value_heads = 8,
   .pad_token_unread = true, .one_part_layers = true,
   .bias = {.qkv_key = nullptr, .output_key = nullptr, .mlp_key = "mlp_bias"}, .activation = Activation::kRelu2,
   .recurrent = true,
   .state_space = FamilyStateSpace{.heads = "mamba_num_heads", .head_dim = "mamba_head_dim", .state = "ssm_state_size",
                                   .groups = "n_groups", .kernel = "conv_kernel", .conv_bias = "use_conv_bias",
                                   .in_bias = "use_bias", .state_absent = 128, .groups_absent = 8, .expands = false},
   .modules = {.attention = "mixer", .recurrence = "mixer", .mlp = "mixer", .backbone = true},
   .no_rope = NoRope::kAll, .experts = {.router = Router::kByLayers}},
  {.name = "olmo2", .positions = 2048, .rms_norm_eps = 1e-5, .pad_token_id = 1,
   .qk_norm = QkNorm::kOfWholeProjections, .norms = NormLayout::kAfter},
  {.name = "olmo3", .positions = 2048, .rms_norm_eps = 1e-5, .pad_token_id = 1,
   .qk_norm = QkNorm::kOfWholeProjections, .norms = NormLayout::kAfter,
   .windows = {.layers = WindowLayers::kAllButEvery, .period = 4, .size = 4096},
   .rope = {.theta = 5e5, .of_windows = true, .theta_of_windows = 5e5}},
  {.name = "phi3", .positions = 4096, .rms_norm_eps = 1e-5, .pad_token_id = 32000,
   .bias = kNoBias, .fused_projections = true, .windows = {.layers = WindowLayers::kAll},
   .rope = {.types = RopeTypes::kLongrope, .partial = 1.0}},
  {.name = "qwen2", .key_value_heads = 32, .bias = kQkvBias, .windows = kFromLayer},
  {.name = "qwen2_moe", .key_value_heads = 16, .bias = {.qkv_key = "qkv_bias", .output_key = nullptr, .qkv = true},
   .windows = {.layers = WindowLayers::kEvenBelowLayer}, .experts = {.router = Router::kSoftmax, .shared = true}},
  {.name = "qwen3", .head_dim = 128, .head_dim_disputed = true, .key_value_heads = 32, .qk_norm = QkNorm::kOfHeads, .windows = kFromLayer},
  {.name = "qwen3_5_moe_text", .whole = {.model_type = "qwen3_5_moe", .sizes = kQwen35MoeText}, .head_dim = 256, .key_value_heads = 2,
   .qk_norm = QkNorm::kOfHeads, .norm_adds_one = true, .recurrent = true, .rope = kQuarterOfImages,
   .experts = {.router = Router::kSoftmax, .shared = true, .always = true}},
  {.name = "qwen3_5_text", .whole = {.model_type = "qwen3_5", .sizes = kQwen35Text}, .head_dim = 256, .key_value_heads = 4,
   .qk_norm = QkNorm::kOfHeads, .norm_adds_one = true, .recurrent = true, .rope = kQuarterOfImages},
  {.name = "qwen3_moe", .key_value_heads = 4, .qk_norm = QkNorm::kOfHeads, .windows = {.layers = WindowLayers::kAllIfSwitchedOn},
   .experts = {.router = Router::kSoftmax, .two_names = true}},
  {.name = "qwen3_next", .head_dim = 256, .key_value_heads = 2, .qk_norm = QkNorm::kOfHeads, .norm_adds_one = true, .recurrent = true,
   .fused_recurrence = true, .rope = kQuarter,
   .experts = {.router = Router::kSoftmax, .shared = true, .normalised = true}},
  {.name = "qwen4_exp_text", .whole = {.model_type = "qwen4_exp", .sizes = kQwen4ExpText}, .head_dim = 256, .key_value_heads = 2,
   .qk_norm = QkNorm::kOfHeads, .norm_adds_one = true, .recurrent = true, .qwen4_exp = true, .rope = kWholeOfImages,
   .experts = {.router = Router::kSoftmax, .shared = true, .always = true, .reads_norm = true, .normalised = true}},
  {.name = "seed_oss", .positions = 524288, .head_dim = 128, .head_dim_disputed = true, .key_value_heads = 8, .pad_token_id = 1,
   .bias = {.output_key = "attention_out_bias", .mlp_key = "mlp_bias", .qkv = true},
   .dropouts = {"attention_dropout", "residual_dropout"}},
  {.name = "smollm3", .tied = true, .key_value_heads = 4, .pad_token_id = 128004, .bias = kMlpByKey, .pretraining_tp_unread = true,
   .windows = {.layers = WindowLayers::kThoseWithoutRope}, .no_rope = NoRope::kByKeys, .rope = {.theta = 2e6}},
  {.name = "step3p5", .whole = {.model_type = "step3p7", .sizes = kStep37Text}, .positions = 128000, .rms_norm_eps = 1e-5,
   .head_dim = 128, .key_value_heads = 8, .pad_token_id = 1, .qk_norm = QkNorm::kOfHeads, .norm_adds_one = true, .step = true,
   .windows = {.layers = WindowLayers::kByTypes},
   .rope = {.partial = 1.0, .of_windows = true, .partial_by_kind = true}, .experts = {.router = Router::kStep, .parameters_in_peft = true}},
  {.name = "zamba2", .positions = 4096, .rms_norm_eps = 1e-5, .tied = true,
   .pad_token_id = 0, .bias = {.qkv_key = nullptr, .output_key = nullptr, .mlp_key = "add_bias_linear"}, .activation = Activation::kGelu, .shared_blocks = true, .recurrent = true,
   .state_space = FamilyStateSpace{.heads = "n_mamba_heads", .head_dim = "mamba_headdim", .groups = "mamba_ngroups",
                                   .conv_bias = "use_conv_bias", .in_bias = "add_bias_linear", .state_absent = 64, .heads_absent = 8,
                                   .reads_limits = false},
   .modules = {.recurrence = "mamba", .mlp = "feed_forward", .last_norm = "final_layernorm"}},
});
// clang-format on

/// By its name or its alias. Looked up for each expert of a model: by a hash.
const Family* find_row(std::string_view name) {
  static const auto kRows = [] {
    std::unordered_map<std::string_view, const Family*> rows;
    for (const Family& family : kFamilies) {
      rows.emplace(family.name, &family);
      if (family.alias != nullptr) rows.emplace(family.alias, &family);
    }
    return rows;
  }();
  const auto row = kRows.find(name);
  return row == kRows.end() ? nullptr : row->second;
}

}  // namespace

const Family& find_family(const ConfigReader& settings) {
  if (const Family* const row = find_row(settings.text("model_type").value_or(""))) return *row;
  std::set<std::string> names;
  for (const Family& family : kFamilies) {
    names.insert(family.name);
    if (family.whole.model_type != nullptr) names.insert(family.whole.model_type);
  }
  settings.refuse("model_type", fmt::format("one of {}", fmt::join(names, ", ")));
}

bool is_family(const std::string& model_type) {
  return find_row(model_type) != nullptr;
}

const Family& family_of(const Config& config) {
  const Family* const row = find_row(config.family);
  if (row == nullptr) throw InputError("no family {}", config.family);
  return *row;
}

const FamilyModules& modules_of(const Config& config) {
  static constexpr FamilyModules kUsual{};
  const Family* const row = find_row(config.family);
  return row == nullptr ? kUsual : row->modules;
}

const Family* find_text_family(const std::string& model_type, const std::string& text_type) {
  const Family* found = nullptr;
  for (const Family& family : kFamilies) {
    if (family.whole.model_type == nullptr || family.whole.model_type != model_type) continue;
    if (family.name == text_type) return &family;
    if (!family.whole.named) found = &family;
  }
  return found;
}

}  // namespace streambp
