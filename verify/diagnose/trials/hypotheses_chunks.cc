// Hypotheses about code that works by chunks, and the factors that accumulation and normalisers bring.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <tuple>
#include <utility>

#include "streambp/data/padded_tensors.h"
#include "streambp/model/scored.h"
#include "verify/diagnose/trials/hypotheses_table.h"
#include "verify/diagnose/wrong_engine/chunk_cuts.h"

namespace streambp::verify {

using Along = Cut::Along;

namespace {

/// Orders of layers are tried in models of no more.
constexpr int64_t kMostOrderedLayers = 8;

}  // namespace

void HypothesisTable::chunked_labels() {
  if (kind_.layout != Layout::kLabels) return;
  std::vector<at::Tensor> seen{batch_.targets};
  for (const Cut& cut : cuts_of(batch_, {Along::kSequence, Along::kColumns, Along::kStream}, given_chunks_)) {
    WrongSettings settings;
    settings.labels_of_chunk = cut;
    const at::Tensor targets = wrong_batch(batch_, {}, {}, settings).batch.targets;
    const auto is_same = [&](const at::Tensor& other) { return at::equal(targets, other); };
    if (std::any_of(seen.begin(), seen.end(), is_same)) continue;
    seen.push_back(targets);
    add(fmt::format("labels-lost-{}", short_text(cut)), "targets",
        fmt::format("labels are shifted within a chunk, so that its last token has none, in {}",
                    long_text(cut)),
        [cut](WrongSettings& s) { s.labels_of_chunk = cut; });
  }
}

void HypothesisTable::normalisers() {
  if (kind_.layout != Layout::kLabels && kind_.layout != Layout::kCompletions) return;
  const at::Tensor scored = scored_indices(batch_);
  if (scored.numel() == 0) return;
  std::vector<at::Tensor> seen{at::ones({scored.size(0)}, at::kDouble)};
  for (const Cut& cut : cuts_of(
           batch_,
           {Along::kRows, Along::kColumns, Along::kSequence, Along::kStream, Along::kScored, Along::kFlat},
           given_chunks_)) {
    const at::Tensor weights = normaliser_weights(batch_, scored, cut);
    const auto is_same = [&](const at::Tensor& other) { return at::allclose(weights, other, 1e-9); };
    if (std::any_of(seen.begin(), seen.end(), is_same)) continue;
    seen.push_back(weights);
    add(fmt::format("mean-of-means-{}", short_text(cut)), "normaliser",
        fmt::format("the loss is the mean of the means of {}", long_text(cut)),
        [cut](WrongSettings& s) { s.normaliser = cut; });
  }
}

void HypothesisTable::chunked() {
  std::vector<at::Tensor> seen, seen_late;
  for (const Cut& cut : cuts_of(batch_, {Along::kSequence, Along::kColumns, Along::kStream}, given_chunks_)) {
    const at::Tensor starts = chunk_starts(indices_, cut) * live_;
    const auto is_same = [&](const at::Tensor& other) { return at::equal(starts, other); };
    if (!starts.any().item<bool>() || std::any_of(seen.begin(), seen.end(), is_same)) continue;
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
    add_cut("top-left-causal", "chunk mask",
            fmt::format(
                "the causal mask begins at the top left: a chunk's first query sees the sequence's first key "
                "only, in {}",
                text),
            &WrongSettings::top_left);
    add_cut("not-causal", "chunk mask", fmt::format("there is no causal mask within {}", text),
            &WrongSettings::sees_whole_chunk);
    if (is_recurrent()) {
      add_cut(
          "state-restarts", "recurrence",
          fmt::format("the state of recurrent layers begins anew, their convolution does not, in {}", text),
          &WrongSettings::state_restart);
      add_cut("convolution-restarts", "recurrence",
              fmt::format("the convolution of recurrent layers has zeros where the chunk before ends, their "
                          "state goes on, in {}",
                          text),
              &WrongSettings::convolution_restart);
      add(fmt::format("recurrence-restarts-{}", size), "recurrence",
          fmt::format("state and convolution of recurrent layers begin anew, in {}", text),
          [cut](WrongSettings& s) { s.state_restart = s.convolution_restart = cut; });
    }
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
  }
}

/// Heads that are rotated otherwise, or read in another layout.
void HypothesisTable::turned_heads() {
  if (!has_padding() && !has_documents() && longest() > 1 && config_.num_attention_heads > 1)
    add("heads-not-transposed", "heads",
        "what attention's heads give is read as [tokens, heads] while it lies as [heads, tokens] (a reshape "
        "without the transpose before it)",
        [](WrongSettings& s) { s.heads_not_transposed = true; });
  if (longest() < 3) return;
  add("sees-not-itself", "causal mask",
      "queries see earlier tokens, but not themselves (a strict causal mask)",
      [](WrongSettings& s) { s.looks_ahead = -1; });
  add("first-unseen", "causal mask", "a sequence's first token is masked: no other one sees it",
      [](WrongSettings& s) { s.first_unseen = true; });
  if (!config_.attention_sinks)
    add("zero-sink", "sinks",
        "attention's softmax has one more logit, of 0 (a sink, or \"softmax off by one\")",
        [](WrongSettings& s) { s.zero_sink = true; });
  const bool full =
      std::any_of(config_.windows.begin(), config_.windows.end(), [](int64_t window) { return window == 0; });
  for (int64_t window = 4; full && window < longest(); window *= 2)
    add(fmt::format("window-of-{}", window), "windows",
        fmt::format("layers that should see all earlier tokens have a window of {}", window),
        [window](WrongSettings& s) { s.window_everywhere = window; });
  if (config_.rotary_dim == 0) return;
  const auto add_rotation = [&](const char* name, const char* text, void (*make)(WrongSettings&)) {
    add(name, "positions of heads", text, make);
  };
  add_rotation("positions-negated", "heads are rotated the other way round (the sign of the sine)",
               [](WrongSettings& s) { s.positions_negated = true; });
  add_rotation("keys-not-rotated", "keys are not rotated, queries are",
               [](WrongSettings& s) { s.keys_not_rotated = true; });
  add_rotation("queries-not-rotated", "queries are not rotated, keys are",
               [](WrongSettings& s) { s.queries_not_rotated = true; });
  add_rotation("keys-one-later", "keys' rotary positions are one more than queries'",
               [](WrongSettings& s) { s.key_offset = 1; });
  add_rotation("keys-one-earlier", "keys' rotary positions are one less than queries'",
               [](WrongSettings& s) { s.key_offset = -1; });
}

/// Layers that run in another order, twice or not at all.
void HypothesisTable::layer_orders() {
  const int64_t layers = config_.num_hidden_layers;
  bool shares = false;
  for (int64_t i = 0; i < layers; ++i) shares = shares || config_.shares_keys_values(i);
  if (layers < 2 || layers > kMostOrderedLayers || shares) return;
  const auto add_order = [&](const std::string& name, const std::string& text, std::vector<int64_t> order) {
    add(name, "one layer", text, [order = std::move(order)](WrongSettings& s) { s.layer_order = order; });
  };
  std::vector<int64_t> all(static_cast<size_t>(layers));
  std::iota(all.begin(), all.end(), int64_t{0});
  for (int64_t i = 0; i < layers; ++i) {
    std::vector<int64_t> without = all, again = all, swapped = all;
    without.erase(without.begin() + i);
    again.insert(again.begin() + i, i);
    add_order(fmt::format("layer-{}-left-out", i), fmt::format("layer {} is left out", i), without);
    add_order(fmt::format("layer-{}-twice", i), fmt::format("layer {} runs twice", i), again);
    if (i + 1 == layers) continue;
    std::swap(swapped[static_cast<size_t>(i)], swapped[static_cast<size_t>(i + 1)]);
    add_order(fmt::format("layers-{}-{}-swapped", i, i + 1),
              fmt::format("layer {} runs before layer {}", i + 1, i), swapped);
  }
}

/// A ring's blocks of keys, whose attention is put together without their log-sum-exp.
void HypothesisTable::merged_blocks() {
  if (longest() < 2 || config_.attention_sinks) return;
  for (const int64_t ranks : {int64_t{2}, int64_t{4}, int64_t{8}}) {
    if (batch_.padded_columns < 2 * ranks) continue;
    const int64_t columns = (batch_.padded_columns + ranks - 1) / ranks;
    for (const auto& [name, merge, text] :
         {std::tuple{"averaged", BlockMerge::kMeanOfSeen, "is averaged over those that a query sees"},
          std::tuple{"averaged-over-all", BlockMerge::kMeanOfAll, "is averaged over all of them"},
          std::tuple{"added", BlockMerge::kSum, "is added up"}})
      add(fmt::format("blocks-{}-{}", name, ranks), "chunk mask",
          fmt::format("what attention gives of {} blocks of keys of {} columns {}, without their log-sum-exp "
                      "(a ring's merge)",
                      ranks, columns, text),
          [columns, merge = merge](WrongSettings& s) {
            s.key_block = columns;
            s.block_merge = merge;
          });
  }
}

namespace {

/// What the loss's sum over tokens is divided by; 0: by no single number.
double divisor_of(const WrongSubject& subject) {
  const ObjectiveKind& kind = objective_kind(subject.objective);
  const auto scored = static_cast<double>(count(subject.batch).scored);
  if (scored == 0.0) return 0.0;
  const Options options = complete_options(kind, subject.options, subject.batch);
  if (options.has("divisor")) {
    if (options.given("divisor")) return options.positive("divisor");
    return options.word("reduction") == "sum" ? 1.0 : scored;
  }
  if (!options.has(kNumItemsInBatch)) return 0.0;
  const std::string& type = options.word("loss_type");
  if (type == "bnpo") return scored;
  if (type != "dapo" && type != "cispo" && type != "vespo") return 0.0;
  return options.given(kNumItemsInBatch) ? options.positive(kNumItemsInBatch) : scored;
}

}  // namespace

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
  const int64_t vocabulary = subject.model.config().vocab_size;
  if (subject.objective == "distill")
    all.push_back({"1/V",
                   fmt::format("the loss is divided by the vocabulary = {} as well, a mean over its entries "
                               "(kl_div's reduction \"mean\")",
                               vocabulary),
                   1.0 / static_cast<double>(vocabulary)});
  for (int k = 2; k <= 64; ++k) {
    if (subject.objective == "distill" && k == vocabulary) continue;
    all.push_back({fmt::format("1/{}", k),
                   fmt::format("gradients are divided once more by {} accumulation steps or ranks", k),
                   1.0 / k});
    all.push_back({fmt::format("times-{}", k),
                   fmt::format("{} accumulation steps or ranks are summed, not averaged", k),
                   static_cast<double>(k)});
  }
  if (const double divisor = divisor_of(subject); divisor > 0.0) {
    std::vector<std::pair<std::string, double>> counts{{"nothing (a sum)", 1.0},
                                                       {"the scored tokens", scored},
                                                       {"all tokens", static_cast<double>(batch.size())},
                                                       {"rows", rows},
                                                       {"columns", columns},
                                                       {"rows x columns", rows * columns},
                                                       {"rows x (columns - 1)", rows * (columns - 1.0)}};
    for (const auto& [name, number] : batch.scalar_inputs)
      counts.emplace_back(fmt::format("the batch's {} (of all that it was counted over)", kNumItemsInBatch),
                          number);
    const auto own = std::find_if(counts.begin(), counts.end(),
                                  [&](const auto& count) { return count.second == divisor; });
    for (const auto& [text, other] : counts) {
      if (other <= 0.0 || other == divisor) continue;
      all.push_back({fmt::format("divisor-{}", other),
                     fmt::format("the loss is divided by {} = {:g} instead of {}{:g}", text, other,
                                 own == counts.end() ? "" : own->first + " = ", divisor),
                     divisor / other});
    }
  }
  all.push_back({"opposite-sign", "the sign is the opposite", -1.0});
  return all;
}

std::optional<Scaling> other_count(const WrongSubject& subject, double factor, double error) {
  const double divisor = divisor_of(subject);
  const double other = divisor / factor, whole = std::round(other);
  constexpr double kClear = 0.1;  // of the distance to the next whole number
  if (!(divisor > 1.0) || !(whole >= 1.0) || !(other * error <= kClear)) return std::nullopt;
  if (std::abs(other - whole) > std::max(other * error, 1e-6 * other)) return std::nullopt;
  return Scaling{
      fmt::format("divisor-{:g}", whole),
      fmt::format("gradients are {0:g}/{1:g} of the truth: the loss is divided by {1:g} instead of "
                  "{0:g}, the count of another batch, window or rank",
                  divisor, whole),
      factor};
}

}  // namespace streambp::verify
