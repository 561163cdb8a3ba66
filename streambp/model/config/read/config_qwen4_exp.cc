// What Qwen4-Exp alone has in config.json (transformers, configuration_qwen4_exp.py): residual streams, gates
// of recurrent layers, indexers of those that attend, embeddings of n-grams.
#include <algorithm>
#include <set>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char *kIndexHeads = "indexer_n_heads", *kIndexKeyHeads = "indexer_kv_heads",
                     *kIndexHeadDim = "indexer_head_dim", *kBudget = "indexer_budget",
                     *kRate = "indexer_compress_ratio";
constexpr const char *kModules = "ple_layer_ids", *kBoundary = "eos_token_id", *kEmbedDim = "ple_embed_dim";

void parse_streams(const ConfigReader& settings, HyperSettings& hyper) {
  constexpr int64_t kMostStreams = 64;
  hyper.streams = settings.size("hc_count", kMostStreams, 4);
  if (hyper.streams < 2) settings.refuse("hc_count", "2 or more");
  hyper.lowrank = settings.size("hc_lowrank", kMaxIntermediate, 320);
}

// The gate of what a recurrent layer gives; null: hidden_act, which is silu.
bool has_logistic_gate(const ConfigReader& settings) {
  constexpr const char* kGate = "output_gate_type";
  const std::string gate = settings.text(kGate).value_or("silu");
  if (gate != "silu" && gate != "sigmoid") settings.refuse(kGate, "silu, sigmoid or null");
  return gate == "sigmoid";
}

// All of them, or none where no layer attends.
IndexerSettings parse_indexer_of_means(const ConfigReader& settings, const Config& config) {
  const auto keys = {kIndexHeads, kIndexKeyHeads, kIndexHeadDim, kBudget, kRate};
  const bool attends = std::find(config.linear_attention.begin(), config.linear_attention.end(), false) !=
                       config.linear_attention.end();
  const bool any =
      std::any_of(keys.begin(), keys.end(), [&](const char* key) { return settings.find(key) != nullptr; });
  if (!attends && !any) return {};
  if (!any)
    settings.refuse(kIndexHeads,
                    "an integer: transformers has no layer here that attends without an indexer");
  IndexerSettings indexer;
  indexer.of_means = true;
  indexer.heads = settings.size(kIndexHeads, kMaxHeads);
  if (settings.find(kIndexKeyHeads) == nullptr) settings.refuse(kIndexKeyHeads, "1");
  settings.only(kIndexKeyHeads, 1);
  indexer.head_dim = settings.size(kIndexHeadDim, kMaxHeadDim);
  indexer.group = settings.size(kRate, kMaxPositions);
  const int64_t budget = settings.size(kBudget, kMaxPositions);
  if (budget % indexer.group != 0)
    settings.refuse(kBudget, fmt::format("a multiple of {} ({})", kRate, indexer.group));
  indexer.topk = budget / indexer.group;
  indexer.norm_eps = config.rms_norm_eps;
  return attends ? indexer : IndexerSettings{};
}

// The first of those that end texts.
int64_t boundary_of(const ConfigReader& settings, int64_t vocab_size) {
  const json* value = settings.find(kBoundary);
  if (value != nullptr && value->is_array()) value = value->empty() ? nullptr : &value->front();
  const bool good =
      value != nullptr && value->is_number_unsigned() && *value < static_cast<uint64_t>(vocab_size);
  if (!good)
    settings.refuse(kBoundary,
                    fmt::format("a token below {}, or a list of such: n-grams end with it", vocab_size));
  return value->get<int64_t>();
}

std::vector<int64_t> layers_with_ngrams(const ConfigReader& settings, const Config& config) {
  const int64_t layers = config.num_hidden_layers;
  const json* const listed = settings.find(kModules);
  if (listed == nullptr || (listed->is_array() && listed->empty())) return {};
  std::set<int64_t> numbers;
  for (const json& one : listed->is_array() ? *listed : json::array({0})) {
    const bool good = one.is_number_unsigned() && one >= 1 && one <= static_cast<uint64_t>(layers);
    if (!good) settings.refuse(kModules, fmt::format("a list of layers from 1 to {}", layers));
    if (!config.is_recurrent(one.get<int64_t>() - 1))
      settings.refuse(kModules, "layers of linear_attention alone");
    numbers.insert(one.get<int64_t>());
  }
  std::vector<int64_t> modules(static_cast<size_t>(layers), -1);
  int64_t next = 0;
  for (const int64_t number : numbers) modules[static_cast<size_t>(number - 1)] = next++;
  return modules;
}

NgramSettings parse_ngrams(const ConfigReader& settings, const Config& config) {
  constexpr int64_t kMostTokens = 64, kMostRows = int64_t{1} << 31, kMostHashes = 4096;
  NgramSettings ngrams;
  ngrams.modules = layers_with_ngrams(settings, config);
  if (ngrams.modules.empty()) return {};
  ngrams.size = settings.size("ngram_size", kMostTokens, 3);
  if (ngrams.size < 2) settings.refuse("ngram_size", "2 or more");
  ngrams.heads_per_ngram = settings.size("heads_per_ngram", kMaxHeads, 8);
  const int64_t modules = *std::max_element(ngrams.modules.begin(), ngrams.modules.end()) + 1;
  if (modules * ngrams.heads() > kMostHashes)
    settings.refuse("heads_per_ngram", fmt::format("fewer: {} heads of n-grams are more than {}",
                                                   modules * ngrams.heads(), kMostHashes));
  ngrams.embed_dim = settings.size(kEmbedDim, kMaxHidden, config.hidden_size);
  if (ngrams.embed_dim % ngrams.heads() != 0)
    settings.refuse(kEmbedDim, fmt::format("a multiple of the {} heads of n-grams", ngrams.heads()));
  ngrams.conv_kernel = settings.size("ple_conv_kernel_size", kMostTokens, 4);
  ngrams.vocab_base = settings.size("ngram_vocab_size_base", kMostRows, 20'000'000);
  ngrams.divisor = settings.size("make_ngram_vocab_size_divisible_by", kMostRows, 128);
  constexpr const char* kSeed = "seed";
  const json* const seed = settings.find(kSeed);
  if (seed != nullptr && !seed->is_number_integer()) settings.refuse(kSeed, "an integer");
  ngrams.seed = seed == nullptr ? 1234 : seed->get<int64_t>();
  ngrams.parts = settings.size("split_ngram_parts", kMostRows, 512);
  ngrams.boundary = boundary_of(settings, config.vocab_size);
  return ngrams;
}

}  // namespace

void parse_qwen4_exp(const ConfigReader& settings, Config& config) {
  parse_streams(settings, config.hyper);
  config.delta_rule.logistic_gate = has_logistic_gate(settings);
  config.indexer = parse_indexer_of_means(settings, config);
  config.ngrams = parse_ngrams(settings, config);
}

void check_qwen4_exp(const ConfigReader& settings, const Config& config) {
  if (config.has_indexers() && config.indexer.head_dim < config.rotary_dim)
    settings.refuse(kIndexHeadDim, fmt::format("at least the {} entries that rotate", config.rotary_dim));
}

}  // namespace streambp
