#include "verify/diagnose/parts/tokens.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <utility>

#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/column_words.h"
#include "verify/diagnose/parts/other_losses.h"
#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/chunk_cuts.h"
#include "verify/diagnose/wrong_engine/layer_pass.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"

namespace streambp::verify {
namespace {

constexpr int64_t kMostScored = 2048;
constexpr int64_t kMostLogits = int64_t{1} << 26;
/// What counts as equal weights, or as none, where there is no noise.
constexpr double kSameWeight = 1e-5;
constexpr int64_t kMostListed = 64;

class TokenSearch {
 public:
  TokenSearch(const WrongSubject& subject, const Tensors& gradients, const FitGauge& gauge,
              const PartsLimits& limits, const std::vector<int64_t>& chunks)
      : subject_(subject), gradients_(gradients), gauge_(gauge), limits_(limits), chunks_(chunks) {}

  TokenFit run() {
    TokenFit fit;
    if (!applies()) return fit;
    fit.applies = true;
    find_candidates();
    solve();
    fit.head_fits = head_residual_ <= limits_.residual;
    if (!fit.head_fits) return fit;
    words();
    fit.explanations = std::move(found_);
    return fit;
  }

 private:
  bool applies() {
    Model& model = subject_.model;
    const Batch& batch = subject_.batch;
    if (!model.has_head() || model.head().adapter || model.head().trained_rows != nullptr ||
        model.head().bias != nullptr || model.head().first_row != 0)
      return false;
    name_ = model.head().weight->name;
    if (!model.head().weight->trainable() || !gradients_.contains(name_)) return false;
    objective_ = make_objective(subject_.objective, batch, subject_.options);
    const HeadRequest request = objective_->request();
    if (!request.needs_targets_alone() || request.values || request.pooling != Pooling::kNone ||
        objective_->targets().defined() || objective_->router_loss.of(model.config().mixture) != 0.0)
      return false;
    return batch.size() <= kMostScored && batch.size() * model.config().vocab_size <= kMostLogits;
  }

  /// Every token that has a target, or might have had the next one for it.
  void find_candidates() {
    const Batch& batch = subject_.batch;
    targets_ = batch.targets.clone();
    at::Tensor ends = at::zeros({batch.size()}, at::kBool);
    const at::Tensor rows = token_indices(batch, false).row;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const int64_t begin = batch.offsets[i], last = batch.offsets[i + 1] - 1;
      if (last < begin) continue;
      // Where another document of the same row follows, its first token.
      if (batch.packed && last + 1 < batch.size() && targets_[last].item<int64_t>() == kNoTarget &&
          rows[last].item<int64_t>() == rows[last + 1].item<int64_t>()) {
        targets_[last] = batch.tokens[last + 1];
        ends[last] = true;
      }
      if (last == begin) continue;
      const at::Tensor own = targets_.slice(0, begin, last);
      own.copy_(at::where(own.eq(kNoTarget), batch.tokens.slice(0, begin + 1, last + 1), own));
    }
    tokens_ = targets_.ne(kNoTarget).nonzero().squeeze(1);
    scored_ = batch.targets.index_select(0, tokens_).ne(kNoTarget);
    ends_ = ends.index_select(0, tokens_);
  }

  void solve() {
    const Config& config = subject_.model.config();
    const double temperature = objective_->request().temperature;
    const HeadInputs head = head_inputs(subject_, temperature);
    const at::Tensor h = head.normed.index_select(0, tokens_).to(at::kDouble);
    at::Tensor logits = head.logits.index_select(0, tokens_).to(at::kDouble);
    const at::Tensor targets = targets_.index_select(0, tokens_).unsqueeze(1);
    const at::Tensor p = at::softmax(logits, -1);
    probabilities_ = p.gather(1, targets).squeeze(1);
    at::Tensor u = p.neg();
    u.scatter_add_(1, targets, at::ones({u.size(0), 1}, at::kDouble));
    if (const double cap = config.final_logit_softcapping; cap > 0.0)
      u = u * (1.0 - (logits * (temperature / cap)).square());
    u = u * (subject_.model.head().output_scale / temperature);
    at::Tensor g = gradients_.at(name_).to(at::kCPU, at::kDouble);
    if (config.tie_word_embeddings) {  // rows that are looked up have other gradients too
      at::Tensor others = at::ones({g.size(0)}, at::kDouble);
      others.index_fill_(0, subject_.batch.tokens, 0.0);
      u = u * others;
      g = g * others.unsqueeze(1);
    }
    const at::Tensor gram = at::matmul(u, u.t()) * at::matmul(h, h.t());
    const auto [values, vectors] = at::linalg_eigh(gram);
    const at::Tensor inverse =
        at::where(values > 1e-12 * values.max(), values.reciprocal(), at::zeros_like(values));
    slopes_ = at::zeros({tokens_.size(0)}, at::kDouble);
    at::Tensor left = g;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor product = (at::matmul(u, left) * h).sum(1);
      slopes_ = slopes_ + at::mv(vectors, inverse * at::mv(vectors.t(), product));
      left = g - at::matmul((u * slopes_.unsqueeze(1)).t(), h);
    }
    const double norm = g.norm().item<double>();
    head_residual_ = norm > 0.0 ? left.norm().item<double>() / norm : 0.0;
    // How well a slope is known.
    const at::Tensor variance = at::matmul(vectors.square(), inverse);
    deviations_ =
        variance.clamp_min(0.0).sqrt() * left.norm() / std::sqrt(static_cast<double>(g.numel()) / 16.0);
    const Linearised linear(subject_.model, subject_.batch, *objective_, subject_.teacher);
    at::Tensor expected = at::zeros({tokens_.size(0)}, at::kDouble);
    const at::Tensor own = linear.slopes().columns[0];
    values_ = linear.values();
    expected.index_copy_(0, scored_.nonzero().squeeze(1), own);
    // A token without a target is held against a typical slope.
    const at::Tensor sizes = own.abs();
    const double typical = sizes.numel() > 0 ? sizes.median().item<double>() : 0.0;
    const double sign = own.numel() > 0 && own.sum().item<double>() > 0.0 ? 1.0 : -1.0;
    right_ = at::where(expected.ne(0.0), expected, at::full_like(expected, sign * std::max(typical, 1e-300)));
    weights_ = slopes_ / right_;
    errors_ = (deviations_ / right_.abs() * 4.0).clamp_min(kSameWeight);
  }

  /// The gradients of a loss in which tokens count so.
  double residual_of(const at::Tensor& weights) const {
    Batch batch = subject_.batch;
    const at::Tensor counted = weights.abs().gt(1e-12) | scored_;
    batch.targets = at::full_like(batch.targets, kNoTarget);
    const at::Tensor chosen = counted.nonzero().squeeze(1);
    const at::Tensor tokens = tokens_.index_select(0, chosen);
    batch.targets.index_copy_(0, tokens, targets_.index_select(0, tokens));
    ScoredValues slopes;
    slopes.columns[0] = (weights * right_).index_select(0, chosen);
    const Tensors made =
        gradients_of_slopes(subject_.model, batch, slopes, objective_->request(), subject_.teacher);
    return (gauge_.own() - gauge_.vector_of(made)).norm().item<double>() /
           std::sqrt(static_cast<double>(limits_.parameters));
  }

  bool is_like(const at::Tensor& pattern, double factor) const {
    return ((weights_ - pattern * factor).abs() <=
            at::maximum(errors_, pattern.abs() * (factor * kSameWeight)))
        .all()
        .item<bool>();
  }

  /// The factor by which the weights are `pattern`.
  std::optional<double> factor_of(const at::Tensor& pattern) const {
    const at::Tensor trust = errors_.square().reciprocal();
    const double square = (trust * pattern * pattern).sum().item<double>();
    if (!(square > 0.0)) return std::nullopt;
    double factor = (trust * pattern * weights_).sum().item<double>() / square;
    if (std::abs(factor - 1.0) <= std::max(4.0 / std::sqrt(square), 1e-9)) factor = 1.0;
    return factor > 0.0 && is_like(pattern, factor) ? std::optional(factor) : std::nullopt;
  }

  /// `natural`: the factor that goes without saying.
  void add(std::string name, std::string sentence, const at::Tensor& pattern, double factor,
           double natural = 1.0) {
    const double residual = residual_of(pattern * factor);
    if (!(residual <= limits_.residual)) return;
    Fit fit;
    fit.residual = fit.without_factor = residual;
    const double error = std::max({0.3 * residual, 1e-9, std::abs(natural - 1.0) * 1e-6});
    fit.factor = std::abs(factor - 1.0) <= error || std::abs(factor / natural - 1.0) <= error ? 1.0 : factor;
    fit.factor_error = std::max(0.3 * residual, 1e-9);
    found_.push_back({std::move(name), std::move(sentence), fit});
  }

  /// Of a mean over other tokens than there should be.
  double natural_factor(const at::Tensor& pattern) const {
    return scored_.sum().item<double>() / std::max(pattern.sum().item<double>(), 1.0);
  }

  void words() {
    const at::Tensor scored = scored_.to(at::kDouble);
    if (factor_of(scored)) return;  // as they should, or a factor
    lost(scored);
    more();
    means();
    if (const at::Tensor by_p = probabilities_ * scored; const auto factor = factor_of(by_p))
      add("loss_type-dft", "each token counts by its own probability (dynamic fine-tuning)", by_p, *factor);
    if (!found_.empty()) return;
    losses();
    if (found_.empty()) prompts();
    if (found_.empty()) by_columns();
    if (!found_.empty()) return;
    const double lost_tokens = (weights_.abs() <= errors_).logical_and(scored_).sum().item<double>();
    const size_t before = found_.size();
    add("tokens-weighted",
        fmt::format(
            "tokens don't count alike: their targets and the forward pass are right, their weights lie "
            "between {:.4g} and {:.4g} of what they should be{}",
            weights_.masked_select(scored_).min().item<double>(),
            weights_.masked_select(scored_).max().item<double>(),
            lost_tokens > 0.0 ? fmt::format(", {:g} have none", lost_tokens) : ""),
        weights_, 1.0);
    if (found_.size() > before) found_.back().named = false;
  }

  /// Some are not there, the others alike.
  void lost(const at::Tensor& scored) {
    const at::Tensor gone = (weights_.abs() <= errors_).logical_and(scored_);
    if (!gone.any().item<bool>()) return;
    const at::Tensor pattern = scored * gone.logical_not();
    const std::optional<double> factor = factor_of(pattern);
    if (!factor) return;
    const Batch& batch = subject_.batch;
    std::vector<std::pair<std::string, std::string>> texts;
    for (const Cut& cut :
         cuts_of(batch, {Cut::Along::kSequence, Cut::Along::kColumns, Cut::Along::kStream}, chunks_)) {
      WrongSettings settings;
      settings.labels_of_chunk = cut;
      const at::Tensor left = wrong_batch(batch, {}, {}, settings).batch.targets.ne(kNoTarget);
      if (!at::equal(left.index_select(0, tokens_), pattern.ne(0.0))) continue;
      texts.emplace_back(
          "labels-lost-" + short_text(cut),
          "labels are shifted within a chunk, so that its last token has none, in " + long_text(cut));
    }
    const TokenIndices indices = token_indices(batch, false);
    const at::Tensor lost_tokens = tokens_.masked_select(gone), kept = tokens_.masked_select(pattern.ne(0.0));
    const at::Tensor at_lost = indices.in_sequence.index_select(0, lost_tokens),
                     at_kept = indices.in_sequence.index_select(0, kept);
    if (texts.empty() && lost_tokens.numel() > 1) {
      const at::Tensor lost_targets = targets_.index_select(0, lost_tokens);
      if (lost_targets.eq(lost_targets[0]).all().item<bool>() &&
          !targets_.index_select(0, kept).eq(lost_targets[0]).any().item<bool>())
        texts.emplace_back("target-never-scored",
                           fmt::format("token {} is never scored where it is the target, as where padding "
                                       "and the end of a text are one token",
                                       lost_targets[0].item<int64_t>()));
    }
    if (texts.empty() && kept.numel() > 0) {
      if (at_lost.min().item<int64_t>() > at_kept.max().item<int64_t>()) {
        texts.emplace_back("tokens-cut-off", fmt::format("tokens of each row from index {} on are not scored",
                                                         at_lost.min().item<int64_t>()));
      } else if (at_lost.max().item<int64_t>() < at_kept.min().item<int64_t>()) {
        texts.emplace_back("first-tokens-lost", fmt::format("the first {} tokens of each row are not scored",
                                                            at_lost.max().item<int64_t>() + 1));
      }
    }
    if (texts.empty() && kept.numel() > 0) {
      const at::Tensor which = scored.ne(0.0).nonzero().squeeze(1);
      const auto words = words_of_ends(indices.sequence.index_select(0, tokens_.index_select(0, which)),
                                       gone.index_select(0, which));
      if (words) texts.emplace_back(words->name, words->sentence);
    }
    if (texts.empty()) {
      const at::Tensor which = scored.ne(0.0).nonzero().squeeze(1);
      if (const auto words = words_of_lost_columns(
              indices.column.index_select(0, tokens_.index_select(0, which)), gone.index_select(0, which)))
        texts.emplace_back(words->name, words->sentence);
    }
    if (texts.empty()) {
      std::vector<int64_t> numbers;
      for (int64_t i = 0; i < std::min(lost_tokens.numel(), kMostListed); ++i)
        numbers.push_back(lost_tokens[i].item<int64_t>());
      texts.emplace_back("tokens-lost", fmt::format("{} of {} scored tokens are missing: {} of the stream",
                                                    lost_tokens.numel(), scored_.sum().item<int64_t>(),
                                                    list_text("token", numbers)));
    }
    for (const auto& [name, text] : texts) add(name, text, pattern, *factor, natural_factor(pattern));
  }

  /// Tokens without a target are scored.
  void more() {
    const at::Tensor extra = (weights_.abs() > errors_).logical_and(scored_.logical_not());
    const int64_t count = extra.sum().item<int64_t>();
    if (count == 0) return;
    const at::Tensor pattern = (scored_ | extra).to(at::kDouble);
    const std::optional<double> factor = factor_of(pattern);
    if (!factor) return;
    const bool at_ends = at::equal(extra, ends_),
               all = extra.logical_or(scored_).logical_or(ends_).all().item<bool>();
    const char* const also_ends = extra.logical_and(ends_).any().item<bool>()
                                      ? ", the last of a document on the first of the next"
                                      : "";
    if (at_ends) {
      add("document-ends-scored", "each document's last token is scored on the first token of the next",
          pattern, *factor, natural_factor(pattern));
    } else {
      add(all ? "prompt-scored" : "tokens-scored",
          all ? fmt::format("tokens whose label is masked, as a prompt's are, are scored on the next token{}",
                            also_ends)
              : fmt::format("{} tokens whose label is masked are scored on the next token{}", count,
                            also_ends),
          pattern, *factor, natural_factor(pattern));
    }
  }

  /// Tokens of a few runs of columns, which count alike in each.
  void by_columns() {
    const at::Tensor which = scored_.nonzero().squeeze(1);
    const at::Tensor columns =
        token_indices(subject_.batch, false).column.index_select(0, tokens_.index_select(0, which));
    if (const auto words =
            words_of_columns(columns, weights_.index_select(0, which), errors_.index_select(0, which)))
      add(words->name, words->sentence, weights_ * scored_, 1.0);
  }

  /// Other losses of the same tokens.
  void losses() {
    if (!(weights_.abs() <= errors_).logical_or(scored_).all().item<bool>()) return;  // others are scored
    const at::Tensor which = scored_.nonzero().squeeze(1);
    const at::Tensor seen = slopes_.index_select(0, which);
    const at::Tensor errors = at::maximum(deviations_.index_select(0, which) * 4.0,
                                          right_.index_select(0, which).abs() * kSameWeight);
    for (const OtherLoss& each : other_losses(subject_, values_, {seen, errors}, chunks_)) {
      const at::Tensor pattern = at::zeros_like(weights_).index_copy(0, which, each.slopes) / right_;
      add(each.name, each.sentence, pattern, each.factor);
    }
  }

  /// The same loss, of all tokens of each sequence.
  void prompts() {
    const at::Tensor own = ends_.logical_not();
    if (scored_.logical_or(ends_).all().item<bool>() ||
        !subject_.batch.sequence_inputs.contains(inputs::kReferenceSums))
      return;
    Batch batch = subject_.batch;
    const at::Tensor which = own.nonzero().squeeze(1), tokens = tokens_.index_select(0, which);
    batch.targets = at::full_like(batch.targets, kNoTarget);
    batch.targets.index_copy_(0, tokens, targets_.index_select(0, tokens));
    ScoredValues values;
    values.columns[0] = probabilities_.index_select(0, which).log();
    const at::Tensor slopes =
        slopes_at(*make_objective(subject_.objective, batch, subject_.options), values).columns[0];
    const at::Tensor pattern = at::zeros_like(weights_).index_copy(0, which, slopes) / right_;
    if (const auto factor = factor_of(pattern))
      add("prompts-in-sums", "the prompts' tokens are in the sums of log-probabilities (no completion_mask)",
          pattern, *factor);
  }

  void means() {
    const at::Tensor indices = tokens_.masked_select(scored_);
    std::vector<at::Tensor> seen;
    for (const Cut& cut : cuts_of(subject_.batch,
                                  {Cut::Along::kRows, Cut::Along::kColumns, Cut::Along::kSequence,
                                   Cut::Along::kStream, Cut::Along::kScored, Cut::Along::kFlat},
                                  chunks_)) {
      at::Tensor pattern = at::zeros({tokens_.size(0)}, at::kDouble);
      pattern.index_copy_(0, scored_.nonzero().squeeze(1), normaliser_weights(subject_.batch, indices, cut));
      if (std::any_of(seen.begin(), seen.end(),
                      [&](const at::Tensor& o) { return at::allclose(o, pattern, 1e-9); }))
        continue;
      seen.push_back(pattern);
      if (const auto factor = factor_of(pattern))
        add("mean-of-means-" + short_text(cut), "the loss is the mean of the means of " + long_text(cut),
            pattern, *factor);
    }
  }

  const WrongSubject& subject_;
  const Tensors& gradients_;
  const FitGauge& gauge_;
  PartsLimits limits_;
  const std::vector<int64_t>& chunks_;
  std::string name_;
  std::unique_ptr<Objective> objective_;
  at::Tensor targets_;                   // [N], of all candidates
  at::Tensor tokens_, scored_;           // [M]: which tokens; whether they should be scored
  at::Tensor ends_;                      // [M]: whether their target is another document's
  at::Tensor probabilities_;             // [M], of their targets
  at::Tensor slopes_, deviations_;       // [M]
  at::Tensor right_, weights_, errors_;  // [M]: the slopes they should have; what share of it they have
  ScoredValues values_;                  // of the scored tokens
  double head_residual_ = 1.0;
  std::vector<Explanation> found_;
};

}  // namespace

TokenFit explain_by_tokens(const WrongSubject& subject, const Tensors& gradients, const FitGauge& gauge,
                           const PartsLimits& limits, const std::vector<int64_t>& chunks) {
  return TokenSearch(subject, gradients, gauge, limits, chunks).run();
}

}  // namespace streambp::verify
