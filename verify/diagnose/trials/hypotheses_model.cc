// Hypotheses about the model: attention, rotary positions, weights and their gradients.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <tuple>
#include <utility>

#include "streambp/model/config/rope_frequencies.h"
#include "verify/diagnose/trials/hypotheses_table.h"
#include "verify/diagnose/wrong_engine/config_changes.h"

namespace streambp::verify {
namespace {

/// Mistakes of one layer are looked for in models of no more.
constexpr int64_t kMostSingleLayers = 8;

}  // namespace

/// Whether positions go up by 1 in every sequence: where that is so, only their differences count.
bool HypothesisTable::is_contiguous() const {
  const at::Tensor base = batch_.positions - indices_.in_sequence;
  return base.narrow(0, 1, std::max<int64_t>(batch_.size() - 1, 0))
      .eq(base.narrow(0, 0, std::max<int64_t>(batch_.size() - 1, 0)))
      .logical_or(indices_.in_sequence.narrow(0, 1, std::max<int64_t>(batch_.size() - 1, 0)).eq(0))
      .all()
      .item<bool>();
}

void HypothesisTable::attention() {
  if (has_documents()) {
    add("no-document-boundaries", "documents",
        "packed documents see each other: rows are single sequences (in transformers: use_cache=True, or an "
        "attention_mask)",
        [](WrongSettings& s) { s.ignores_documents = true; });
    add("no-document-boundaries-positions-go-on", "documents",
        "packed documents see each other, and positions go on from one to the next",
        [](WrongSettings& s) { s.ignores_documents = s.positions_by_column = true; });
  }
  if (has_documents()) leaks();
  if (longest() > 1)
    add("looks-ahead", "causal mask", "every query sees one token ahead",
        [](WrongSettings& s) { s.looks_ahead = 1; });
  if (config_.num_key_value_heads > 1 && config_.num_key_value_heads < config_.num_attention_heads)
    add("key-value-heads-in-turn", "heads",
        "queries take keys' and values' heads in turn, not in groups (repeat instead of repeat_interleave)",
        [](WrongSettings& s) { s.key_value_heads_in_turn = true; });
  // A prompt of one token has nothing later to see.
  if (prompt_tokens(batch_).logical_and(indices_.in_sequence.eq(1)).any().item<bool>())
    add("prompt-sees-itself", "causal mask",
        "tokens of a prompt see all of it, later ones too (a prefix LM's mask)",
        [](WrongSettings& s) { s.prompt_sees_itself = true; });
  scales();
  single_layers();
  const auto widest = [&](int64_t offset) {
    return std::any_of(config_.windows.begin(), config_.windows.end(),
                       [&](int64_t window) { return window > 0 && window + offset < longest(); });
  };
  if (widest(0)) {
    add("windows-ignored", "windows", "sliding windows are ignored: every layer sees all earlier tokens",
        [](WrongSettings& s) { s.ignores_windows = true; });
    add("window+1", "windows", "windows are one token too wide",
        [](WrongSettings& s) { s.window_offset = 1; });
  }
  const bool can_shrink =
      std::all_of(config_.windows.begin(), config_.windows.end(), [](int64_t window) { return window != 1; });
  if (widest(-1) && can_shrink)
    add("window-1", "windows", "windows are one token too narrow",
        [](WrongSettings& s) { s.window_offset = -1; });
  if (config_.attn_logit_softcapping > 0.0)
    add("attention-softcap-missing", "attention softcap",
        "attention scores are not capped (attn_logit_softcapping)",
        [](WrongSettings& s) { s.no_attention_softcap = true; });
  if (config_.attn_logit_softcapping > 0.0)
    add("attention-softcap-straight", "softcap's slope",
        "the backward pass takes the cap of attention's scores for the identity (attn_logit_softcapping)",
        [](WrongSettings& s) { s.attention_softcap_straight = true; });
  add("attention-bf16", "attention precision", "attention's probabilities are rounded to bfloat16",
      [](WrongSettings& s) { s.narrow = NarrowValues::kAttention; });
  if (config_.attention_sinks)
    add("sinks-missing", "sinks", "attention has no sinks (self_attn.sinks)",
        [](WrongSettings& s) { s.no_sinks = true; });
}

/// Layers of one kind alone.
void HypothesisTable::leaks() {
  const auto any = [&](auto has) {
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      if (has(layer)) return true;
    }
    return false;
  };
  const bool recurrent = any([&](int64_t layer) { return config_.is_recurrent(layer); });
  const bool windows = any([&](int64_t layer) { return config_.has_window(layer); });
  const bool full =
      any([&](int64_t layer) { return !config_.is_recurrent(layer) && !config_.has_window(layer); });
  const auto add_leak = [&](const char* name, const char* sentence, Leak leak) {
    add(name, "documents", sentence, [leak](WrongSettings& s) { s.leak = leak; });
  };
  if (recurrent) {
    add_leak("recurrent-layers-cross-documents",
             "recurrent layers go on from one packed document to the next: state and convolution know no "
             "document's start",
             Leak::kRecurrent);
    add_leak(
        "state-crosses-documents",
        "the state of recurrent layers goes on from one packed document to the next, their convolution does "
        "not",
        Leak::kState);
    add_leak(
        "convolution-crosses-documents",
        "the convolution of recurrent layers sees the end of the packed document before, their state begins "
        "anew",
        Leak::kConvolution);
  }
  if (windows && (full || recurrent))
    add_leak("windows-cross-documents",
             "in layers with a window, and there alone, packed documents see each other", Leak::kWindows);
  if (full && (windows || recurrent))
    add_leak("full-attention-crosses-documents",
             "in layers that see all tokens, and there alone, packed documents see each other", Leak::kFull);
}

/// Other numbers that scores are multiplied by.
void HypothesisTable::scales() {
  if (config_.is_latent() || config_.attention_scale <= 0.0) return;
  const auto width = static_cast<double>(config_.head_dim);
  std::vector<double> seen{1.0};
  for (const auto& [name, scale, text] :
       {std::tuple{"none", 1.0, "are not scaled"},
        std::tuple{"head-dim", 1.0 / std::sqrt(width), "are divided by the root of head_dim"},
        std::tuple{"twice", config_.attention_scale / std::sqrt(width), "are scaled twice"},
        std::tuple{"square", 1.0 / width, "are divided by head_dim, not by its root"},
        std::tuple{"hidden", 1.0 / std::sqrt(static_cast<double>(config_.hidden_size)),
                   "are divided by the root of hidden_size"},
        std::tuple{"hidden-by-heads",
                   std::sqrt(static_cast<double>(config_.num_attention_heads) /
                             static_cast<double>(config_.hidden_size)),
                   "are divided by the root of hidden_size / num_attention_heads"}}) {
    const double factor = scale / config_.attention_scale;
    if (std::any_of(seen.begin(), seen.end(), [&](double s) { return std::abs(s / factor - 1.0) < 1e-9; }))
      continue;
    seen.push_back(factor);
    add(fmt::format("score-scale-{}", name), "score scale", fmt::format("attention's scores {}", text),
        [factor](WrongSettings& s) { s.score_factor = factor; });
  }
}

/// Attention of one layer alone.
void HypothesisTable::single_layers() {
  const int64_t layers = config_.num_hidden_layers;
  if (layers < 2 || layers > kMostSingleLayers) return;
  const auto windows =
      std::count_if(config_.windows.begin(), config_.windows.end(), [](int64_t w) { return w > 0; });
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (config_.is_recurrent(layer)) continue;
    const auto add_layer = [&](const char* name, const char* text, void (*make)(WrongSettings&)) {
      add(fmt::format("{}-in-layer-{}", name, layer), "one layer",
          fmt::format("in layer {} alone {}", layer, text), [layer, make](WrongSettings& s) {
            make(s);
            s.only_layer = layer;
          });
    };
    if (config_.has_window(layer) && windows > 1 && config_.windows[static_cast<size_t>(layer)] < longest())
      add_layer("windows-ignored", "the window is ignored",
                [](WrongSettings& s) { s.ignores_windows = true; });
    if (knows_padding())
      add_layer("padding-not-masked", "padding is not masked",
                [](WrongSettings& s) { s.padding_visible = true; });
    if (longest() > 1)
      add_layer("looks-ahead", "every query sees one token ahead",
                [](WrongSettings& s) { s.looks_ahead = 1; });
  }
}

void HypothesisTable::rotary() {
  if (!is_contiguous()) {
    add("positions-ignored", "positions", "position_ids are ignored: positions go on along a row",
        [](WrongSettings& s) { s.positions_by_column = true; });
  }
  if (has_left_padding()) {
    for (const int64_t times : {int64_t{1}, int64_t{-1}}) {
      add(times > 0 ? "key-positions-padding" : "query-positions-padding", "positions",
          fmt::format("{}' rotary positions count the padding on the left, {}' don't",
                      times > 0 ? "keys" : "queries", times > 0 ? "queries" : "keys"),
          [times](WrongSettings& s) { s.key_padding = times; });
    }
  }
  for (const int64_t ranks : {int64_t{2}, int64_t{4}, int64_t{8}}) {
    if (has_documents() || config_.rotary_dim == 0 || 2 * ranks > batch_.padded_columns) continue;
    add(fmt::format("balanced-positions-{}", ranks), "positions",
        fmt::format("rotary positions are those of a balanced ring's shards: {} ranks with chunks i and {} - "
                    "i each count "
                    "on from one of their own to the other",
                    ranks, 2 * ranks - 1),
        [ranks](WrongSettings& s) { s.balanced_ranks = ranks; });
  }
  if (config_.rotary_dim > 0 && !config_.latent.trained_positions) {
    add("rope-frequencies-bf16", "rotary precision",
        "the frequencies of rotary tables are kept in bfloat16 (inv_freq, cast with the model)",
        [](WrongSettings& s) { s.rotation = NarrowRotation::kFrequencies; });
    add("rope-tables-bf16", "rotary precision", "cosines and sines of rotary tables are rounded to bfloat16",
        [](WrongSettings& s) { s.rotation = NarrowRotation::kTables; });
  }
  rope_lengths();
}

void HypothesisTable::rope_lengths() {
  if (batch_.size() == 0) return;
  const auto frequencies = [&](int64_t length) {
    auto all = rope_inverse_frequencies(config_.rope, config_.rotary_dim, length);
    if (config_.local_rope) {
      for (const double f : rope_inverse_frequencies(*config_.local_rope, config_.rotary_dim, length))
        all.push_back(f);
    }
    return all;
  };
  std::vector<std::vector<double>> seen{frequencies(rope_length(batch_))};
  for (const auto& [length, of] :
       {std::pair{batch_.positions.max().item<int64_t>() + 1, "the real tokens' positions"},
        std::pair{batch_.padded_columns, "the padded columns"}, std::pair{longest(), "the longest sequence"},
        std::pair{batch_.size(), "the packed stream"},
        std::pair{int64_t{1}, "no length at all (the short table)"}}) {
    if (std::find(seen.begin(), seen.end(), frequencies(length)) != seen.end()) continue;
    seen.push_back(frequencies(length));
    add(fmt::format("rope-length-{}", length), "rope length",
        fmt::format("rotary tables are made for {} tokens, the length of {}, instead of {}", length, of,
                    rope_length(batch_)),
        [length = length](WrongSettings& s) { s.rope_length = length; });
  }
}

void HypothesisTable::weights() {
  if (config_.swiglu_alpha > 0.0)
    add("gate-clamps-missing", "gate clamps", "gate and up projection are not clamped (swiglu_limit)",
        [](WrongSettings& s) { s.no_gate_clamps = true; });
  if (!subject_.model.has_adapters() && !subject_.model.has_value_head()) {
    for (const ConfigChange& each : config_changes()) {
      if (changed_config(config_, each.name) == config_) continue;
      add(each.name, each.name, each.sentence,
          [name = each.name](WrongSettings& s) { s.config_change = name; });
    }
  }
  narrow_parameters();
  norms();
  if (config_.final_logit_softcapping > 0.0)
    add("final-softcap-straight", "final softcap",
        "the backward pass takes the cap of the logits for the identity (final_logit_softcapping)",
        [](WrongSettings& s) { s.final_softcap_straight = true; });
  if (subject_.model.has_head() && kind_.layout != Layout::kTexts) {
    for (const int64_t shards : {int64_t{2}, int64_t{4}, int64_t{8}}) {
      if (config_.vocab_size < 2 * shards) continue;
      for (const bool even : {true, false}) {
        if (!even && config_.vocab_size % shards == 0) continue;
        add(fmt::format("vocabulary-shards-{}", shards), "logits",
            fmt::format("a target's softmax is over its own shard of the vocabulary alone, of {} "
                        "(denominators are not "
                        "summed over tensor-parallel ranks)",
                        shards),
            [shards, even](WrongSettings& s) {
              s.vocabulary_shards = shards;
              s.even_shards = even;
            });
      }
    }
  }
  if (subject_.model.has_head())
    add("logits-bf16", "logits", "logits are rounded to bfloat16",
        [](WrongSettings& s) { s.narrow = NarrowValues::kLogits; });
  if (config_.mixture.num_experts > 0) {
    add("router-bf16", "router", "the routers' logits are rounded to bfloat16",
        [](WrongSettings& s) { s.narrow = NarrowValues::kRouter; });
    if (is_balanced() && knows_padding() && has_right_padding())
      add("padding-routed", "router",
          "the loss that balances the experts counts padding too (its attention_mask)",
          [](WrongSettings& s) { s.padding_routed = true; });
  }
  if (!subject_.model.has_adapters()) return;
  add("adapters-bf16", "adapters' precision", "adapters' matrices (lora_A, lora_B) are rounded to bfloat16",
      [](WrongSettings& s) { s.narrow = NarrowValues::kAdapters; });
  for (const auto& [name, power, text] :
       {std::tuple{"adapter-scale-alpha", 1.0, "alpha instead of alpha / r"},
        std::tuple{"adapter-scale-rslora", 0.5, "alpha / sqrt(r) instead of alpha / r"},
        std::tuple{"adapter-scale-over-sqrt-r", -0.5, "alpha / r instead of alpha / sqrt(r)"},
        std::tuple{"adapter-scale-over-r", -1.0, "divided by r once more"}}) {
    add(name, "adapter scale", fmt::format("adapters are scaled by {}", text),
        [power = power](WrongSettings& s) { s.adapter_rank_power = power; });
  }
  add("adapter-scale-twice", "adapter scale",
      "adapters are there twice: merged into the weights and added once more",
      [](WrongSettings& s) { s.adapter_scale_factor = 2.0; });
  add("adapter-scale-one", "adapter scale", "adapters are not scaled at all",
      [](WrongSettings& s) { s.adapter_scale_one = true; });
  if (subject_.model.has_head() && subject_.model.head().adapter) {
    add("head-adapter-bypassed", "head adapter",
        "logits are made with the head's weight alone, without its adapter",
        [](WrongSettings& s) { s.head_adapter_bypassed = true; });
  }
}

/// Parameters that are cast with the model where they should not be.
void HypothesisTable::narrow_parameters() {
  if (subject_.model.has_adapters() || subject_.model.has_value_head()) return;
  const auto& parameters = subject_.model.parameters();
  for (const auto& [ending, text] :
       {std::pair{"A_log", "A_log, whose exponential is the decay,"}, std::pair{"dt_bias", "dt_bias"},
        std::pair{"norm.weight", "the norms' weights are"},
        std::pair{".gate.weight", "the routers' weights are"}, std::pair{"sinks", "sinks are"}}) {
    const bool is_there = std::any_of(parameters.begin(), parameters.end(), [&](const auto& parameter) {
      return parameter->name.ends_with(ending) &&
             !at::equal(parameter->value,
                        parameter->value.to(at::kBFloat16).to(parameter->value.scalar_type()));
    });
    if (!is_there) continue;
    const std::string what = text;
    add(fmt::format("bf16-{}", ending), "parameters' precision",
        fmt::format("{}{} kept in bfloat16", what, what.ends_with(" are") ? "" : " is"),
        [ending = std::string(ending)](WrongSettings& s) { s.narrow_parameters = ending; });
  }
}

/// Norms that are missing, or stand elsewhere.
void HypothesisTable::norms() {
  const auto& layers = subject_.model.layers();
  const auto any = [&](auto norm_of) {
    return std::any_of(layers.begin(), layers.end(),
                       [&](const DecoderLayer& layer) { return norm_of(layer.weights()).weight != nullptr; });
  };
  const auto add_missing = [&](const char* name, MissingNorm norm, const char* text) {
    add(name, "norms", fmt::format("{} is missing", text),
        [norm](WrongSettings& s) { s.missing_norm = norm; });
  };
  add_missing("final-norm-missing", MissingNorm::kFinal, "the last norm");
  if (any([](const DecoderLayer::Weights& w) { return w.q_norm; })) {
    add_missing("head-norms-missing", MissingNorm::kHeads, "the norm of queries and keys (q_norm, k_norm)");
    if (!config_.qk_norm_full_width)
      add("head-norms-elsewhere", "norms",
          "queries and keys are normed on the wrong side of their rotation (q_norm, k_norm)",
          [](WrongSettings& s) { s.other_norm_order = true; });
  }
  if (any([](const DecoderLayer::Weights& w) { return w.after_attention; }))
    add_missing("norm-after-attention-missing", MissingNorm::kAfterAttention,
                "the norm of what attention gives");
  if (any([](const DecoderLayer::Weights& w) { return w.after_mlp; }))
    add_missing("norm-after-mlp-missing", MissingNorm::kAfterMlp, "the norm of what the MLP gives");
}

void HypothesisTable::gradients() {
  const bool trains_embedding = subject_.model.parameter("model.embed_tokens.weight").trainable();
  if (trains_embedding && config_.pad_token_id &&
      batch_.tokens.eq(*config_.pad_token_id).any().item<bool>()) {
    add("padding-row-trained", "padding row",
        "the padding token's row of the embedding has a gradient where the token is real (padding_idx is "
        "ignored)",
        [](WrongSettings& s) { s.padding_row_trained = true; });
  }
  if (config_.tie_word_embeddings && trains_embedding) {
    for (const auto& [name, tied, text] :
         {std::tuple{"tied-head-missing", TiedGradient{1, 0}, "misses the head's part"},
          std::tuple{"tied-input-missing", TiedGradient{0, 1}, "is the head's part alone"},
          std::tuple{"tied-head-doubled", TiedGradient{1, 2}, "has the head's part twice"}}) {
      add(name, "tied embedding", fmt::format("the tied embedding's gradient {}", text),
          [tied = tied](WrongSettings& s) { s.tied = tied; });
    }
  }
  if (subject_.model.has_head() && kind_.layout != Layout::kTexts)
    add("target-slope-rounded", "sums",
        "the head rounds a target's probability to bfloat16 before it takes off 1: slopes of confident "
        "targets "
        "lose their digits",
        [](WrongSettings& s) { s.target_slope_rounded = true; });
  for (const auto& [name, sums, text] :
       {std::tuple{"bf16-embedding-sum", NarrowSums::kEmbedding,
                   "rows of the embedding's gradient are added up in bfloat16"},
        std::tuple{"bf16-vector-sums", NarrowSums::kVectors,
                   "gradients of embedding, norms and biases are added up in bfloat16, token by token"},
        std::tuple{"bf16-row-sums", NarrowSums::kRows, "gradients are added up in bfloat16, row by row"},
        std::tuple{"bf16-rounded", NarrowSums::kRounded, "gradients are rounded to bfloat16"}}) {
    if (sums == NarrowSums::kEmbedding && !trains_embedding) continue;
    if (sums == NarrowSums::kVectors && subject_.model.has_adapters()) continue;
    if (sums == NarrowSums::kRows && batch_.padded_rows < 2) continue;
    add(name, "sums", text, [sums = sums](WrongSettings& s) { s.sums = sums; });
  }
}

}  // namespace streambp::verify
