#include "verify/tests/streambp/backprop/random_case.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/model/config/family.h"
#include "streambp/objective/objective.h"
#include "verify/equality/batches.h"
#include "verify/equality/report.h"

namespace streambp::verify {
namespace {

using nlohmann::json;

constexpr int kMostRows = 6;
constexpr int kMostSettings = 16;

/// What is drawn: numbers alone, each of which shrinks towards the simplest, its least. What they stand for,
/// and which of them mean something in a family, is decided afterwards, so that every draw is a case.
struct Draw {
  int family, layers, key_value_heads, groups, head_dim, hidden, mlp, vocabulary, window, experts, chosen;
  bool tied, bias;
  int objective, variant, batch, rows;
  std::vector<std::pair<int, int>> lengths;
  bool lora;
  int method, chunk, head_chunk, parts;
  std::vector<int> settings;
  int seed;
};

/// A number below `count`, whatever the size of the case.
rc::Gen<int> any(int count) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, count));
}

rc::Gen<int> between(int least, int most) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(least, most + 1));
}

/// Small ones first.
rc::Gen<int> growing(int least, int most) {
  return rc::gen::inRange(least, most + 1);
}

rc::Gen<Draw> draws() {
  using rc::gen::set;
  const auto families = static_cast<int>(equality_families().size());
  const auto objectives = static_cast<int>(objective_names().size());
  const auto methods = static_cast<int>(method_names().size());
  return rc::gen::build<Draw>(
      set(&Draw::family, any(families)), set(&Draw::layers, between(1, 4)),
      set(&Draw::key_value_heads, between(1, 3)), set(&Draw::groups, between(1, 3)),
      set(&Draw::head_dim, between(1, 8)), set(&Draw::hidden, between(8, 40)),
      set(&Draw::mlp, between(4, 48)), set(&Draw::vocabulary, between(24, 120)),
      set(&Draw::window, between(2, 12)), set(&Draw::experts, any(4)), set(&Draw::chosen, any(4)),
      set(&Draw::tied, rc::gen::arbitrary<bool>()), set(&Draw::bias, rc::gen::arbitrary<bool>()),
      set(&Draw::objective, any(objectives)), set(&Draw::variant, any(16)), set(&Draw::batch, any(4)),
      set(&Draw::rows, growing(1, kMostRows)),
      set(&Draw::lengths, rc::gen::container<std::vector<std::pair<int, int>>>(
                              kMostRows, rc::gen::pair(growing(1, 12), growing(0, 24)))),
      set(&Draw::lora, rc::gen::arbitrary<bool>()), set(&Draw::method, any(methods)),
      set(&Draw::chunk, growing(1, 40)), set(&Draw::head_chunk, growing(1, 20)), set(&Draw::parts, any(6)),
      set(&Draw::settings, rc::gen::container<std::vector<int>>(kMostSettings, any(16))),
      set(&Draw::seed, any(1000)));
}

/// Changes of one preset's config.json.
class RandomSizes {
 public:
  RandomSizes(const Draw& draw, const std::string& preset)
      : draw_(draw), config_(json::parse(preset_json(preset))) {}

  json changes() && {
    set("vocab_size", draw_.vocabulary);
    set("vocab_size_per_layer_input", draw_.vocabulary);
    set("hidden_size", draw_.hidden);
    set("intermediate_size", draw_.mlp);
    set("moe_intermediate_size", 4 + draw_.mlp / 2);
    set("shared_expert_intermediate_size", 4 + draw_.mlp / 3);
    set("moe_hidden_size", 5 + draw_.mlp / 3);
    if (takes("tie_word_embeddings", draw_.tied)) set("tie_word_embeddings", draw_.tied);
    set("sliding_window", draw_.window);
    set_layers();
    set_heads();
    set_experts();
    set_recurrent();
    set_bias();
    set_compressed();
    set_key_blocks();
    set_qwen4_exp();
    set_shared_blocks();
    return std::move(changes_);
  }

 private:
  /// Keys that the preset does not have are not of its family, but for attention_bias.
  void set(const char* key, const json& value) {
    if (config_.contains(key) && !config_.at(key).is_null() && config_.at(key) != value)
      changes_[key] = value;
  }

  bool takes(const char* key, const json& value) const {
    json changed = config_;
    changed[key] = value;
    try {
      parse_config(changed.dump(), "random case");
      return true;
    } catch (const InputError&) {  // nemotron_h refuses to be tied
      return false;
    }
  }

  void set_layers() {
    const int layers = draw_.layers;
    set("num_hidden_layers", layers);
    for (const char* key : {"layer_types", "no_rope_layers", "indexer_types", "mlp_layer_types",
                            "swiglu_limits", "swiglu_limits_shared"}) {
      if (!config_.contains(key)) continue;
      json of_layers = json::array();
      for (int layer = 0; layer < layers; ++layer)
        of_layers.push_back(config_[key][static_cast<size_t>(layer) % config_[key].size()]);
      set(key, of_layers);
    }
    if (config_.contains("hybrid_override_pattern")) {
      const auto pattern = config_["hybrid_override_pattern"].get<std::string>();
      std::string of_layers;
      for (int layer = 0; layer < layers; ++layer)
        of_layers += pattern[static_cast<size_t>(layer) % pattern.size()];
      set("hybrid_override_pattern", of_layers);
    }
    // What names layers that are no longer there.
    for (const char* key : {"mlp_only_layers", "attn_layer_indices"}) {
      if (!config_.contains(key)) continue;
      json named = config_[key];
      std::erase_if(named.get_ref<json::array_t&>(), [&](const json& layer) { return layer >= layers; });
      set(key, named);
    }
    for (const char* key : {"first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"}) {
      if (config_.contains(key)) set(key, std::min(config_[key].get<int>(), layers - 1));
    }
    set("hc_mult", 1 + draw_.groups);
    if (config_.contains("kv_source_layers")) {  // the last layer of a kind that others read
      json sources = json::array();
      for (int layer = 0; layer < layers; ++layer) sources.push_back(layer == 2 ? 0 : layer);
      set("kv_source_layers", sources);
    }
    // Two layers, one of each kind, are below those that share.
    if (config_.contains("num_kv_shared_layers")) set("num_kv_shared_layers", std::max(layers - 2, 0));
  }

  void set_heads() {
    const bool is_latent = config_.contains("kv_lora_rank");
    set("num_attention_heads", draw_.key_value_heads * draw_.groups);
    set("num_key_value_heads", draw_.key_value_heads * (is_latent ? draw_.groups : 1));
    set("num_global_key_value_heads", 1);
    set("num_sliding_attention_heads", draw_.key_value_heads * (draw_.groups + 1));
    set("q_lora_rank", 3 + draw_.head_dim);
    set("kv_lora_rank", 2 + draw_.head_dim);
    set("qk_nope_head_dim", draw_.head_dim);
    if (config_.value("qk_rope_head_dim", 0) > 0) set("qk_rope_head_dim", 2 * draw_.groups);
    set("v_head_dim", 1 + draw_.head_dim);
    // One factor for every pair that is rotated.
    if (config_.contains("rope_scaling") && config_["rope_scaling"].contains("short_factor")) return;
    // A half or a quarter of a head is rotated in some families, by pairs.
    const bool half =
        config_.contains("partial_rotary_factor") || config_.contains("num_sliding_attention_heads");
    const bool quarter = !half && config_.contains("linear_num_key_heads");
    set("head_dim", quarter ? 8 * (1 + draw_.head_dim / 4)
                    : half  ? 4 * (1 + draw_.head_dim / 2)
                            : 2 + 2 * draw_.head_dim);
    if (family_of(parse_config(config_.dump(), "random case")).heads_fill_hidden)
      changes_["hidden_size"] = draw_.key_value_heads * draw_.groups * (2 + 2 * draw_.head_dim);
  }

  /// At least two for each token, and not all: the weight of a single one is 1 where weights are made to sum
  /// to 1, and experts that have all tokens are in balance. The router's gradient is then nothing but
  /// rounding errors.
  void set_experts() {
    const int groups = config_.value("n_group", config_.value("num_expert_group", 1));
    const int experts = groups > 1 ? groups * (3 + draw_.experts % 2) : 3 + draw_.experts;
    const int eligible = experts / groups * config_.value("topk_group", 1);
    const int chosen = 2 + draw_.chosen % (eligible - 2);
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}) {
      if (config_.value(key, 1) != 0) set(key, experts);  // granitemoehybrid: none
    }
    for (const char* key : {"num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k"})
      set(key, chosen);
  }

  void set_recurrent() {
    set("linear_num_key_heads", draw_.key_value_heads);
    set("linear_num_value_heads", draw_.key_value_heads * draw_.groups);
    set("linear_key_head_dim", 2 + draw_.head_dim);
    set("linear_value_head_dim", 1 + draw_.head_dim);
    set("linear_conv_kernel_dim", 1 + draw_.groups);
    set("linear_num_heads", draw_.key_value_heads);
    set("linear_head_dim", 2 + draw_.head_dim);
    // State spaces: the groups of B and C are key heads. Granite's heads fill the width times an expansion.
    set("mamba_n_groups", draw_.key_value_heads);
    set("mamba_n_heads", draw_.key_value_heads * draw_.groups);
    const int width = draw_.key_value_heads * draw_.groups * (3 + draw_.head_dim);
    set("mamba_d_ssm", width);
    if (config_.contains("mamba_n_heads") && !config_.contains("mamba_d_ssm"))
      changes_["hidden_size"] = width;
    set("mamba_d_state", 2 + draw_.head_dim);
    set("mamba_d_conv", 2 + draw_.groups);
    set("conv_L_cache", 1 + draw_.groups);
  }

  /// Not in a family that has no such key, and not in layers that don't rotate: there a key's bias moves all
  /// scores of a query alike, and its gradient is nothing but rounding errors.
  void set_bias() {
    json changed = config_;
    changed["attention_bias"] = draw_.bias;
    try {
      const Config config = parse_config(changed.dump(), "random case");
      if (config.qkv_bias == draw_.bias && config != parse_config(config_.dump(), "random case") &&
          config.no_rope.empty())
        changes_["attention_bias"] = draw_.bias;
    } catch (const InputError&) {  // the family has no such key
    }
  }

  /// DeepSeek V4: one key head, half of whose entries rotate, as half of an indexer's at least; experts and
  /// shared experts are of one size.
  void set_compressed() {
    if (!config_.contains("compress_rates")) return;
    const int head_dim = 4 * (1 + draw_.head_dim / 2);
    changes_["intermediate_size"] = changes_["moe_intermediate_size"] = 4 + draw_.mlp / 2;
    changes_["num_key_value_heads"] = 1;
    changes_["head_dim"] = head_dim;
    changes_["partial_rotary_factor"] = 0.5;
    changes_["index_head_dim"] = head_dim / 2 + 2;
    changes_["o_groups"] = draw_.groups;
  }

  /// MiniMax M3: an indexer's head for each key head or for each query head, of which as much rotates as of
  /// others at least.
  void set_key_blocks() {
    if (!config_.contains("index_block_size")) return;
    changes_["index_n_heads"] = draw_.key_value_heads * (draw_.window % 3 == 0 ? draw_.groups : 1);
    changes_["index_head_dim"] = 4 * (1 + draw_.head_dim / 2);
    changes_["index_block_size"] = 2 + draw_.window % 4;  // more rows than one are in most of them
    changes_["index_topk_blocks"] = 1 + draw_.window % 4;
    changes_["index_local_blocks"] = draw_.window % 2;
  }

  /// Qwen4-Exp: an indexer's heads rotate as much as others, and layers with n-grams are there and recurrent.
  void set_qwen4_exp() {
    if (!config_.contains("hc_count")) return;
    const int rate = 1 + draw_.window % 4;
    changes_["hc_count"] = 2 + draw_.groups % 3;
    changes_["hc_lowrank"] = 2 + draw_.mlp / 4;
    changes_["indexer_head_dim"] = 4 * (1 + draw_.head_dim / 2);
    changes_["indexer_compress_ratio"] = rate;
    changes_["indexer_budget"] = rate * (1 + draw_.window % 3);
    changes_["ngram_size"] = 2 + draw_.window % 3;
    changes_["ple_conv_kernel_size"] = 1 + draw_.groups;
    changes_["ple_layer_ids"] = draw_.layers > 2 ? json{1, 3} : json{1};
  }

  /// Zamba 2: heads of attention and of state spaces divide twice the width.
  void set_shared_blocks() {
    if (!config_.contains("n_mamba_heads")) return;
    const int heads = draw_.key_value_heads * draw_.groups;
    changes_["hidden_size"] = heads * (2 + draw_.head_dim);
    changes_["n_mamba_heads"] = heads;
    changes_["mamba_ngroups"] = draw_.key_value_heads;
    if (config_.value("use_shared_attention_adapter", false)) changes_["num_key_value_heads"] = heads;
    json types = json::array();  // the last layer, at least, runs a block
    for (int layer = 0; layer < draw_.layers; ++layer)
      types.push_back(layer % 2 == (draw_.layers - 1) % 2 ? "hybrid" : "mamba");
    changes_["layers_block_type"] = types;
    changes_["num_mem_blocks"] = 1 + draw_.window % 2;
  }

  const Draw& draw_;
  json config_;
  json changes_ = json::object();
};

int64_t parts_of(const Draw& draw) {
  return std::max(draw.parts - 2, 1);
}

/// Rows that an objective takes: pairs, or blocks of texts; completions where it scores them. Those of the
/// first row are always long enough for attention to choose: the only key of a query has the weight 1, and
/// what it gives queries is nothing but rounding errors.
std::vector<RowLengths> rows_of(const Draw& draw, const ObjectiveKind& kind, const Options& options) {
  int64_t rows = draw.rows;
  if (has_pairs(kind.layout)) rows = 2 * ((rows + 1) / 2);
  if (kind.layout == Layout::kTexts) {
    const int64_t blocks = 2 + static_cast<int64_t>(options.number("negatives", 0.0, 1e3));
    rows = blocks * (draw.rows > kMostRows / 2 ? 3 : 2);
  }
  // What a formula says of an empty completion is a constant, which a part without a target does not report.
  const bool may_be_empty = kind.layout == Layout::kLabels || kind.layout == Layout::kTexts ||
                            (kind.layout == Layout::kCompletions && parts_of(draw) == 1);
  std::vector<RowLengths> lengths;
  for (int64_t i = 0; i < rows; ++i) {
    const auto [prompt, completion] = draw.lengths[static_cast<size_t>(i % kMostRows)];
    const int least = i == 0 || !may_be_empty ? 1 : 0;
    lengths.push_back({std::max(prompt, i == 0 ? 2 : 1), std::max(completion, least)});
  }
  return lengths;
}

/// The default, or for some draws another value that gives the same gradients.
std::string value_of(const SettingKind& kind, int draw) {
  std::vector<std::string> values{kind.text(Settings{})};
  for (const auto* more : {&kind.choices, &kind.same_bits, &kind.same_gradients, &kind.examples})
    values.insert(values.end(), more->begin(), more->end());
  const auto index = static_cast<size_t>(draw);
  return values[index < values.size() ? index : 0];
}

Settings settings_of(const Draw& draw) {
  Settings settings;
  settings.method = method_kinds()[static_cast<size_t>(draw.method)].method;
  const bool streams = method_kind(settings.method).head == HeadDefault::kAlwaysStreamed;
  for (size_t i = 0; i < setting_kinds().size(); ++i) {
    const SettingKind& kind = setting_kinds()[i];
    if (!takes(settings.method, kind.name) || (streams && kind.name == "head")) continue;
    set_setting(kind, settings, value_of(kind, draw.settings[i % kMostSettings]));
  }
  settings.chunk = is_chunked(settings.method) ? draw.chunk : 0;
  settings.head_chunk = settings.streams_head() ? draw.head_chunk : 0;
  return settings;
}

RandomCase case_of(const Draw& draw) {
  const std::vector<std::string> families = equality_families(), objectives = objective_names();
  RandomCase random;
  RowName& name = random.name;
  name.model = equality_preset(families[static_cast<size_t>(draw.family)]);
  name.objective = objectives[static_cast<size_t>(draw.objective)];
  const auto variants = objective_variants(name.objective);
  name.settings = variants[static_cast<size_t>(draw.variant) % variants.size()];
  name.tuning = draw.lora ? "lora" : "full";
  const ObjectiveKind& kind = objective_kind(name.objective);
  const std::vector<std::string> batches{"none", "right", "left",
                                         takes_documents(kind.layout) ? "documents" : "left"};
  name.batch = batches[static_cast<size_t>(draw.batch)];
  name.rows = rows_of(draw, kind, complete_options(kind, name.settings));
  const json changes = RandomSizes(draw, name.model).changes();
  if (!changes.empty()) name.config = changes.dump();
  EqualityOptions& options = random.options;
  options.seed = static_cast<uint64_t>(draw.seed);
  options.alone = settings_of(draw);
  options.methods = {method_name(options.alone->method)};
  if (options.alone->chunk > 0) options.chunks = {options.alone->chunk};
  if (options.alone->head_chunk > 0) options.head_chunks = {options.alone->head_chunk};
  options.micro_batches = parts_of(draw);
  return random;
}

}  // namespace

std::string RandomCase::command() const {
  return repeat_command(name, options.seed, *options.alone, /*alone=*/true, options.micro_batches);
}

void showValue(const RandomCase& value, std::ostream& out) {
  out << value.command();
}

rc::Gen<RandomCase> random_case() {
  return rc::gen::map(draws(), case_of);
}

}  // namespace streambp::verify
