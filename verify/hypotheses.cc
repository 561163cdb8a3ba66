#include "verify/hypotheses.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <utility>

#include "streambp/model/rope_frequencies.h"
#include "streambp/objective/terms.h"
#include "verify/wrong_batch.h"

namespace streambp {
namespace {

using Along = Cut::Along;

/// A number of tokens along something, as text: "8-columns", "8 columns of the padded rows".
std::string short_text(const Cut& cut) {
  switch (cut.along) {
    case Along::kColumns:
      return fmt::format("{}-columns", cut.size);
    case Along::kStream:
      return fmt::format("{}-packed", cut.size);
    case Along::kFlat:
      return fmt::format("{}-flat", cut.size);
    case Along::kScored:
      return fmt::format("{}-scored", cut.size);
    case Along::kRows:
      return fmt::format("{}-rows", cut.size);
    case Along::kSequence:
      break;
  }
  return fmt::format("{}", cut.size);
}

std::string long_text(const Cut& cut) {
  switch (cut.along) {
    case Along::kColumns:
      return fmt::format("chunks of {} columns of the padded rows", cut.size);
    case Along::kStream:
      return fmt::format("chunks of {} tokens of the packed stream", cut.size);
    case Along::kFlat:
      return fmt::format("chunks of {} places of the padded rows one after another", cut.size);
    case Along::kScored:
      return fmt::format("chunks of {} scored tokens", cut.size);
    case Along::kRows:
      return cut.size == 1 ? "single rows" : fmt::format("micro-batches of {} rows", cut.size);
    case Along::kSequence:
      break;
  }
  return fmt::format("chunks of {} tokens", cut.size);
}

/// Collects the hypotheses of a subject.
class Table {
 public:
  Table(const WrongSubject& subject, const std::vector<int64_t>& chunks)
      : subject_(subject),
        config_(subject.model.config()),
        batch_(subject.batch),
        kind_(objective_kind(subject.objective)),
        options_(complete_options(kind_, subject.options)),
        places_(places_of(batch_, false)),
        padding_(left_padding(places_)),
        live_(live_tokens()),
        given_chunks_(chunks) {}

  std::vector<Hypothesis> all() {
    labels();
    inputs();
    attention();
    rotary();
    weights();
    gradients();
    normalisers();
    chunked();
    return std::move(table_);
  }

 private:
  void add(std::string name, std::string about, std::string sentence,
           std::function<void(WrongSettings&)> make) {
    table_.push_back({std::move(name), std::move(sentence), std::move(about), std::move(make)});
  }

  bool has_padding() const { return batch_.size() < batch_.padded_rows * batch_.padded_columns; }
  bool has_left_padding() const { return padding_.numel() > 0 && padding_.max().item<int64_t>() > 0; }
  bool has_right_padding() const {
    const at::Tensor last =
        at::full({batch_.padded_rows}, batch_.padded_columns, at::kLong)
            .scatter_reduce(0, places_.row, places_.column, "amax", /*include_self=*/false);
    return last.lt(batch_.padded_columns - 1).any().item<bool>();
  }
  /// Padding on the left is seen by real tokens, on the right scored: it has to be known, and be tokens.
  bool knows_padding() const {
    if (!has_padding() || has_documents()) return false;
    const at::Tensor& ids = subject_.input_ids;
    return ids.defined() && ids.ge(0).all().item<bool>() && ids.lt(config_.vocab_size).all().item<bool>();
  }
  bool has_documents() const {
    return places_.place.numel() > 0 && !places_.place.eq(places_.column - padding_).all().item<bool>();
  }
  /// Tokens with a scored one of their sequence at their place or after it; all where experts are balanced.
  at::Tensor live_tokens() const {
    at::Tensor live = at::zeros({batch_.size()}, at::kLong);
    if (config_.mixture.router_aux_loss_coef != 0.0) return live.fill_(1);
    const at::Tensor scored = scored_places(batch_);
    for (size_t i = 0; i + 1 < batch_.offsets.size(); ++i) {
      const at::Tensor own = scored.index({scored.ge(batch_.offsets[i]) & scored.lt(batch_.offsets[i + 1])});
      if (own.numel() > 0) live.slice(0, batch_.offsets[i], own.max().item<int64_t>() + 1).fill_(1);
    }
    return live;
  }

  int64_t longest() const { return places_.place.numel() == 0 ? 0 : places_.place.max().item<int64_t>() + 1; }

  void labels() {
    add("labels-not-shifted", "targets",
        "labels are not shifted: logits are scored on the token at their own place",
        [](WrongSettings& s) { s.target_shift = 1; });
    if (kind_.layout == Layout::kLabels) {
      add("labels-not-shifted-first-counts", "targets",
          "labels are not shifted: logits are scored on the token at their own place, a row's first token "
          "included",
          [](WrongSettings& s) {
            s.target_shift = 1;
            s.first_label = true;
          });
    }
    add("labels-shifted-twice", "targets",
        "labels are shifted twice: logits are scored on the token after the next",
        [](WrongSettings& s) { s.target_shift = -1; });
    if (!knows_padding()) return;
    if (has_left_padding()) {
      add("padding-not-masked", "padding", "padding is not masked: real tokens see it",
          [](WrongSettings& s) { s.padding_visible = true; });
    }
    if (kind_.layout != Layout::kLabels) return;
    if (has_right_padding()) {
      add("padding-scored", "padding", "padding on the right counts among the labels",
          [](WrongSettings& s) { s.padding_scored = true; });
    }
    add("padding-not-masked-and-scored", "padding", "padding is neither masked nor left out of the labels",
        [](WrongSettings& s) { s.padding_visible = s.padding_scored = true; });
  }

  void inputs() {
    if (kind_.uses_reference && kind_.uses_reference(options_)) {
      add("reference-is-policy", "reference", "the reference's log-probabilities are the policy's own",
          [](WrongSettings& s) { s.reference_is_policy = true; });
    }
    if (batch_.token_inputs.contains(inputs::kOldLogProbabilities)) {
      add("old-missing", "old", "the old log-probabilities are not used: they are the policy's own",
          [](WrongSettings& s) { s.old_is_policy = true; });
    }
    if (batch_.token_inputs.contains(inputs::kAdvantages)) advantages();
    if (kind_.name != "grpo") return;
    for (const char* type : {"grpo", "bnpo", "dapo"}) {
      if (options_.word("loss_type") == type) continue;
      add(fmt::format("loss-type-{}", type), "normaliser",
          fmt::format(
              "terms are averaged {} (loss_type {})",
              type == std::string("grpo") ? "over each row, then over rows" : "over the tokens of all rows",
              type),
          [type](WrongSettings& s) { s.options["loss_type"] = type; });
    }
  }

  void advantages() {
    const auto sequences = static_cast<int64_t>(batch_.offsets.size()) - 1;
    const auto change = [&](const AdvantageChange& advantages, const std::string& of) {
      const bool whitened = advantages.kind == AdvantageChange::Kind::kWhitened;
      std::string name = whitened ? "advantages-normalised" : "advantages-centred";
      if (advantages.over_tokens) name += "-tokens";
      if (advantages.group > 0) name += fmt::format("-groups-of-{}", advantages.group);
      WrongSettings settings;
      settings.advantages = advantages;
      const at::Tensor changed = wrong_advantages(batch_, settings);
      if (!is_new_advantage(changed)) return;
      add(name, "advantages",
          fmt::format("the given advantages are {} again, over {}",
                      whitened ? "centred and divided by their deviation" : "centred", of),
          [advantages](WrongSettings& s) { s.advantages = advantages; });
    };
    for (const auto kind : {AdvantageChange::Kind::kCentred, AdvantageChange::Kind::kWhitened}) {
      change({kind, 0, false, 0.0}, "all rows");
      change({kind, 0, true, 0.0}, "all tokens");
      for (int64_t group = 2; group <= sequences / 2; ++group) {
        if (sequences % group == 0)
          change({kind, group, false, 1e-4}, fmt::format("groups of {} rows", group));
      }
    }
  }

  /// Another normalisation that comes to the same is no hypothesis of its own.
  bool is_new_advantage(const at::Tensor& changed) {
    const auto is_same = [&](const at::Tensor& other) { return at::allclose(changed, other, 1e-9, 1e-12); };
    if (advantages_.empty()) advantages_.push_back(batch_.token_inputs.at(inputs::kAdvantages));
    if (is_zero(changed) || std::any_of(advantages_.begin(), advantages_.end(), is_same)) return false;
    advantages_.push_back(changed);
    return true;
  }

  void attention() {
    if (has_documents()) {
      add("no-document-boundaries", "documents", "packed documents see each other: rows are single sequences",
          [](WrongSettings& s) { s.ignores_documents = true; });
      add("no-document-boundaries-positions-go-on", "documents",
          "packed documents see each other, and positions go on from one to the next",
          [](WrongSettings& s) { s.ignores_documents = s.positions_by_column = true; });
    }
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
    const bool can_shrink = std::all_of(config_.windows.begin(), config_.windows.end(),
                                        [](int64_t window) { return window != 1; });
    if (widest(-1) && can_shrink)
      add("window-1", "windows", "windows are one token too narrow",
          [](WrongSettings& s) { s.window_offset = -1; });
    if (config_.attn_logit_softcapping > 0.0)
      add("attention-softcap-missing", "attention softcap",
          "attention scores are not capped (attn_logit_softcapping)",
          [](WrongSettings& s) { s.no_attention_softcap = true; });
    if (config_.final_logit_softcapping > 0.0)
      add("final-softcap-missing", "final softcap", "logits are not capped (final_logit_softcapping)",
          [](WrongSettings& s) { s.no_final_softcap = true; });
  }

  void rotary() {
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
    if (config_.local_rope) {
      add("local-rope-missing", "local rope", "layers with a window turn by the other layers' rotary table",
          [](WrongSettings& s) { s.global_rope_everywhere = true; });
    }
    rope_lengths();
  }

  /// Whether positions go up by 1 in every sequence: where that is so, only their differences count.
  bool is_contiguous() const {
    const at::Tensor base = batch_.positions - places_.place;
    return base.narrow(0, 1, std::max<int64_t>(batch_.size() - 1, 0))
        .eq(base.narrow(0, 0, std::max<int64_t>(batch_.size() - 1, 0)))
        .logical_or(places_.place.narrow(0, 1, std::max<int64_t>(batch_.size() - 1, 0)).eq(0))
        .all()
        .item<bool>();
  }

  void rope_lengths() {
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
          std::pair{batch_.padded_columns, "the padded columns"},
          std::pair{longest(), "the longest sequence"}, std::pair{batch_.size(), "the packed stream"},
          std::pair{int64_t{1}, "no length at all (the short table)"}}) {
      if (std::find(seen.begin(), seen.end(), frequencies(length)) != seen.end()) continue;
      seen.push_back(frequencies(length));
      add(fmt::format("rope-length-{}", length), "rope length",
          fmt::format("rotary tables are made for {} tokens, the length of {}, instead of {}", length, of,
                      rope_length(batch_)),
          [length = length](WrongSettings& s) { s.rope_length = length; });
    }
  }

  void weights() {
    if (config_.mixture.router_aux_loss_coef != 0.0) {
      add("router-loss-missing", "router loss",
          "the loss that balances the experts is missing (router_aux_loss_coef)",
          [](WrongSettings& s) { s.no_router_loss = true; });
    }
    if (!subject_.model.has_adapters()) return;
    for (const auto& [name, power, text] :
         {std::tuple{"adapter-scale-alpha", 1.0, "alpha instead of alpha / r"},
          std::tuple{"adapter-scale-rslora", 0.5, "alpha / sqrt(r) instead of alpha / r"},
          std::tuple{"adapter-scale-over-sqrt-r", -0.5, "alpha / r instead of alpha / sqrt(r)"},
          std::tuple{"adapter-scale-over-r", -1.0, "divided by r once more"}}) {
      add(name, "adapter scale", fmt::format("adapters are scaled by {}", text),
          [power = power](WrongSettings& s) { s.adapter_rank_power = power; });
    }
    add("adapter-scale-one", "adapter scale", "adapters are not scaled at all",
        [](WrongSettings& s) { s.adapter_scale_one = true; });
    if (subject_.model.has_head() && subject_.model.head().adapter) {
      add("head-adapter-bypassed", "head adapter",
          "logits are made with the head's weight alone, without its adapter",
          [](WrongSettings& s) { s.head_adapter_bypassed = true; });
    }
    add("lora-a-without-gradient", "adapter gradients", "no gradient reaches the adapters' A",
        [](WrongSettings& s) { s.freezes_lora_a = true; });
    add("lora-b-without-gradient", "adapter gradients", "no gradient reaches the adapters' B",
        [](WrongSettings& s) { s.freezes_lora_b = true; });
  }

  void gradients() {
    const bool trains_embedding = subject_.model.parameter("model.embed_tokens.weight").trainable();
    if (config_.tie_word_embeddings && trains_embedding) {
      for (const auto& [name, tied, text] :
           {std::tuple{"tied-head-missing", TiedGradient{1, 0}, "misses the head's part"},
            std::tuple{"tied-input-missing", TiedGradient{0, 1}, "is the head's part alone"},
            std::tuple{"tied-head-doubled", TiedGradient{1, 2}, "has the head's part twice"},
            std::tuple{"tied-doubled", TiedGradient{2, 2}, "is there twice"}}) {
        add(name, "tied embedding", fmt::format("the tied embedding's gradient {}", text),
            [tied = tied](WrongSettings& s) { s.tied = tied; });
      }
    }
    if (config_.qk_norm && !subject_.model.has_adapters()) {
      add("qk-norms-frozen", "q/k norms", "no gradient reaches the norms of queries and keys",
          [](WrongSettings& s) { s.freezes_qk_norms = true; });
    }
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

  /// Sizes of chunks that a stretch of tokens may be cut into.
  std::vector<int64_t> sizes(int64_t length) const {
    std::set<int64_t> all;
    for (int64_t size = 2; size < length; size *= 2) {
      if (size * 32 >= length) all.insert(size);
    }
    for (int64_t parts = 2; parts <= 4; ++parts) all.insert((length + parts - 1) / parts);
    all.insert(given_chunks_.begin(), given_chunks_.end());
    std::erase_if(all, [&](int64_t size) { return size < 1 || size >= length; });
    return {all.begin(), all.end()};
  }

  /// Calls body for every cut along one of `along`.
  template <typename Body>
  void for_each_cut(const std::vector<Along>& along, int64_t scored, Body body) const {
    for (const Along each : along) {
      const int64_t length = each == Along::kColumns  ? batch_.padded_columns
                             : each == Along::kStream ? batch_.size()
                             : each == Along::kFlat   ? batch_.padded_rows * batch_.padded_columns
                             : each == Along::kScored ? scored
                             : each == Along::kRows   ? batch_.padded_rows
                                                      : longest();
      std::vector<int64_t> lengths = sizes(length);
      if (each == Along::kRows) {
        lengths.clear();
        for (int64_t size = 1; size < length; ++size) lengths.push_back(size);
      }
      for (const int64_t size : lengths) body(Cut{each, size});
    }
  }

  void normalisers() {
    if (kind_.layout != Layout::kLabels && kind_.layout != Layout::kCompletions) return;
    const at::Tensor scored = scored_places(batch_);
    if (scored.numel() == 0) return;
    std::vector<at::Tensor> seen{at::ones({scored.size(0)}, at::kDouble)};
    for_each_cut(
        {Along::kRows, Along::kColumns, Along::kSequence, Along::kStream, Along::kScored, Along::kFlat},
        scored.size(0), [&](const Cut& cut) {
          const at::Tensor weights = normaliser_weights(batch_, scored, cut);
          const auto is_same = [&](const at::Tensor& other) { return at::allclose(weights, other, 1e-9); };
          if (std::any_of(seen.begin(), seen.end(), is_same)) return;
          seen.push_back(weights);
          add(fmt::format("mean-of-means-{}", short_text(cut)), "normaliser",
              fmt::format("the loss is the mean of the means of {}", long_text(cut)),
              [cut](WrongSettings& s) { s.normaliser = cut; });
        });
  }

  void chunked() {
    std::vector<at::Tensor> seen, seen_late;
    for_each_cut({Along::kSequence, Along::kColumns, Along::kStream}, 0, [&](const Cut& cut) {
      const at::Tensor starts = chunk_starts(places_, cut) * live_;
      const auto is_same = [&](const at::Tensor& other) { return at::equal(starts, other); };
      if (!starts.any().item<bool>() || std::any_of(seen.begin(), seen.end(), is_same)) return;
      seen.push_back(starts);
      const std::string size = short_text(cut), text = long_text(cut);
      const auto add_cut = [&](const char* name, const char* about, const std::string& sentence,
                               Cut WrongSettings::*field) {
        add(fmt::format("{}-{}", name, size), about, sentence,
            [cut, field](WrongSettings& s) { s.*field = cut; });
      };
      add_cut("detached", "detached",
              fmt::format("no gradient flows to earlier chunks' keys and values, in {}", text),
              &WrongSettings::detached);
      add_cut("prefix-dropped", "chunk mask", fmt::format("earlier chunks are not seen, in {}", text),
              &WrongSettings::own_chunk_only);
      add_cut(
          "top-left-causal", "chunk mask",
          fmt::format(
              "the causal mask begins at the top left: a chunk's first query sees the sequence's first key "
              "only, in {}",
              text),
          &WrongSettings::top_left);
      add_cut("not-causal", "chunk mask", fmt::format("there is no causal mask within {}", text),
              &WrongSettings::sees_whole_chunk);
      add_cut("rope-restarts", "positions", fmt::format("rotary positions begin anew in {}", text),
              &WrongSettings::rope_restart);
      const at::Tensor late = padding_ * starts.gt(0);
      const auto is_known = [&](const at::Tensor& other) { return at::equal(late, other); };
      if (late.any().item<bool>() && std::none_of(seen_late.begin(), seen_late.end(), is_known)) {
        seen_late.push_back(late);
        add_cut(
            "rope-padding", "positions",
            fmt::format("rotary positions are off by the padding on the left from the second chunk on, in {}",
                        text),
            &WrongSettings::padding_from_second_chunk);
      }
    });
  }

  const WrongSubject& subject_;
  const Config& config_;
  const Batch& batch_;
  const ObjectiveKind& kind_;
  Options options_;
  Places places_;
  at::Tensor padding_;  // on the left of each token's row
  at::Tensor live_;     // [N] int64: 1 where a loss hears of a token
  std::vector<int64_t> given_chunks_;
  std::vector<at::Tensor> advantages_;  // those that there is a hypothesis of
  std::vector<Hypothesis> table_;
};

}  // namespace

std::vector<Hypothesis> hypotheses(const WrongSubject& subject, const std::vector<int64_t>& chunks) {
  return Table(subject, chunks).all();
}

std::vector<Scaling> scalings(const WrongSubject& subject) {
  const Batch& batch = subject.batch;
  std::vector<Scaling> all;
  const auto scored = static_cast<double>(count(batch).scored);
  const auto rows = static_cast<double>(batch.padded_rows),
             columns = static_cast<double>(batch.padded_columns);
  const auto sequences = static_cast<double>(batch.offsets.size()) - 1.0;
  for (const auto& [text, sum] : {std::pair{"rows", rows}, std::pair{"documents", sequences}}) {
    if (scored == 0.0 || (sum == rows && text != std::string("rows"))) continue;
    all.push_back(
        {"(N-B)/N",
         fmt::format(
             "the loss is divided by N = {} labels, the first ones of B = {} {} included, which nothing "
             "predicts",
             scored + sum, sum, text),
         scored / (scored + sum)});
    if (scored > sum) {
      all.push_back({"N/(N-B)",
                     fmt::format("the loss is divided by {} labels, B = {} too few, as if the first ones of "
                                 "{} were among them",
                                 scored - sum, sum, text),
                     scored / (scored - sum)});
    }
  }
  for (int k = 2; k <= 64; ++k) {
    all.push_back({fmt::format("1/{}", k),
                   fmt::format("gradients are divided once more by {} accumulation steps or ranks", k),
                   1.0 / k});
    all.push_back({fmt::format("times-{}", k),
                   fmt::format("{} accumulation steps or ranks are summed, not averaged", k),
                   static_cast<double>(k)});
  }
  const ObjectiveKind& kind = objective_kind(subject.objective);
  if (kind.name == "sft" && scored > 0.0) {
    const Options options = complete_options(kind, subject.options);
    const double divisor = options.given("divisor")             ? options.positive("divisor")
                           : options.word("reduction") == "sum" ? 1.0
                                                                : scored;
    for (const auto& [text, other] :
         {std::pair{"nothing (a sum)", 1.0}, std::pair{"the scored tokens", scored},
          std::pair{"all tokens", static_cast<double>(batch.size())}, std::pair{"rows", rows},
          std::pair{"columns", columns}, std::pair{"rows x columns", rows * columns},
          std::pair{"rows x (columns - 1)", rows * (columns - 1.0)}}) {
      if (other <= 0.0 || other == divisor) continue;
      all.push_back({fmt::format("divisor-{}", other),
                     fmt::format("the loss is divided by {} = {:g} instead of {:g}", text, other, divisor),
                     divisor / other});
    }
  }
  all.push_back({"opposite-sign", "the sign is the opposite", -1.0});
  return all;
}

}  // namespace streambp
