#include "verify/diagnose/diagnose.h"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <unistd.h>

#include "streambp/error.h"
#include "verify/diagnose/parts/factor_words.h"
#include "verify/diagnose/parts/few_parameters.h"
#include "verify/diagnose/parts/head_span.h"
#include "verify/diagnose/parts/longer_rows.h"
#include "verify/diagnose/parts/other_places.h"
#include "verify/diagnose/parts/strangers.h"
#include "verify/diagnose/parts/tokens.h"
#include "verify/diagnose/trials/biases.h"
#include "verify/diagnose/trials/trial_runs.h"

namespace streambp::verify {
namespace {

/// What is called a fit, of gradients without noise.
constexpr double kFits = 1e-3;
/// A fit may be this much worse than the noise alone: a wrong pass has other roundings than the right one.
constexpr double kNoiseAllowance = 1.5;
/// The truth itself may be this much worse than measured noise.
constexpr double kTruthAllowance = 1.25;
/// An explanation has to leave less than this share of what the truth leaves.
constexpr double kBetterThanTruth = 0.8;
/// Explanations within this factor of the best are indistinguishable from it.
constexpr double kTie = 1.1;
/// Residuals below are rounding.
constexpr double kRounding = 1e-9;
/// How far the plain engine may be from the truth, with nothing wrong.
constexpr double kEngineLimit = 1e-8;
/// Sums of parts fit, of gradients without noise, and leave nothing for mistakes of a list to explain.
constexpr double kSumsFit = 1e-5;
/// Of what the truth leaves, that such sums leave.
constexpr double kShareOfTruths = 0.02;
/// Of two mistakes of the backward pass, where the place is known that shows the first.
constexpr size_t kPairsInOnePlace = 4;
/// What norms, rotation or softmax in float32 do to gradients in float64.
constexpr double kSinglePrecision = 1e-6;
/// How many times the noise a gradient may be off.
constexpr double kNoiseLimit = 3.0;
/// "37 of 150" on stderr, where somebody may be watching.
void progress(size_t done, size_t all, const char* what) {
  if (::isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{} of {} {}   {}", done, all, what, done == all ? "\n" : "");
  std::fflush(stderr);
}

class Search {
 public:
  Search(const WrongSubject& subject, const Tensors& gradients, const Tensors& truth, double noise,
         const DiagnoseOptions& options)
      : subject_(subject),
        gradients_(gradients),
        truth_(truth),
        options_(options),
        gauge_(gradients, truth),
        trials_(subject, gauge_, truth, options.run),
        factors_(subject, gradients),
        hypotheses_(hypotheses(subject, options.chunks)),
        noise_(std::max(noise, rounding_of(gradients))) {
    location_ = locate(subject.model.config(), gradients, truth, limits(truth));
    if (location_ && location_->kind == Location::Kind::kEverywhere && is_precise())
      look_past_single_precision();
    // Where routers' loads are balanced, tokens that no head sees have gradients too.
    const bool balanced = make_objective(subject.objective, subject.batch, subject.options)
                              ->router_loss.of(subject.model.config().mixture) != 0.0;
    if (head_is_right() && is_precise() && !balanced)
      std::erase_if(hypotheses_, [this](const Hypothesis& h) {
        return !is_of_backward_pass(h.about) || is_elsewhere(h.about, *location_);
      });
    if (location_ && location_->kind == Location::Kind::kEverywhere && is_precise() && !head_is_right())
      trials_.by_head(gradients, std::max(kRounding, kNoiseAllowance * noise_));
    add_missing_logits(hypotheses_, subject, gradients, truth);
    drop_contradicted(hypotheses_, gradients, truth, noise_);
    // Their own precision is no mistake of theirs.
    if (has_dtype(gradients, at::kBFloat16))
      std::erase_if(hypotheses_, [](const Hypothesis& h) { return h.name == "bf16-rounded"; });
  }

  Diagnosis run() {
    diagnosis_.limit = std::max(kFits, kNoiseAllowance * noise_);
    truth_fit_ = trials_.whole().front().fit;
    diagnosis_.unexplained = truth_fit_.residual;
    // The truth, or its multiple: there is nothing left to explain.
    if (truth_fit_.residual <= std::max(kRounding, kTruthAllowance * noise_)) {
      if (!options_.noise.empty())
        parts_ = explain_biases({subject_, gauge_, truth_, options_.noise, noise_}, hypotheses_, options_.run,
                                diagnosis_.tried);
      return finish();
    }
    diagnosis_.tried = factors_.size();
    diagnosis_.location = location_;
    try_parts();
    if (!parts_.empty() && parts_.front().fit.residual <= std::max(kSumsFit, kNoiseAllowance * noise_) &&
        is_precise())
      return finish();
    // In float32 as near as other orders of summation are: right, whatever a trial would leave a little less
    // of.
    if (parts_.empty() && !unnamed_ && noise_ > kRounding &&
        (truth_fit_.residual <= kSumsFit || all_within_limits()) && !truth_fit_.has_factor())
      return finish();
    if (!engine_is_right()) {
      if (unnamed_) parts_.push_back(std::move(*unnamed_));
      return finish();
    }
    if (is_precise() && parts_.empty() && !unnamed_ && !head_is_right() && try_batch_and_numbers())
      return finish();
    // No mistake of one batch gives gradients to what it has not.
    const auto strangers = find_strangers(subject_, gradients_);
    if (strangers && !strangers->padding && is_precise() && parts_.empty() && !unnamed_) return finish();
    const size_t left_out = try_hypotheses();
    if (left_out > 0 && !wrong_engine_knows(subject_))
      diagnosis_.notes.push_back(fmt::format(
          "{} mistakes that others can show could not be made of this model, batch and objective", left_out));
    if (options_.pairs && truth_fit_.residual > kSumsFit && parts_.empty() && !unnamed_ &&
        !fits(trials_.best()))
      try_pairs();
    if (unnamed_ && parts_.empty() && !fits(trials_.best())) parts_.push_back(std::move(*unnamed_));
    return finish();
  }

 private:
  GradientLimits limits(const Tensors& truth) const {
    if (!options_.limits.empty()) return options_.limits;
    GradientLimits all;
    for (const auto& [name, of_truth] : truth) all[name] = std::max(kNoiseLimit * noise_, kRounding);
    return all;
  }

  /// A float64 model whose rotation or softmax is in float32 has all gradients a little off: what is farther
  /// off is looked for.
  void look_past_single_precision() {
    GradientLimits wider = limits(truth_);
    for (auto& [name, limit] : wider) limit = std::max(limit, kSinglePrecision);
    std::optional<Location> found = locate(subject_.model.config(), gradients_, truth_, wider);
    if (!found || found->kind == Location::Kind::kEverywhere) return;
    location_ = std::move(found);
    diagnosis_.notes.push_back(fmt::format(
        "right means within {:.0e}, as where a part of the pass is in float32", kSinglePrecision));
  }

  /// Whether loss and forward pass are: the head, or where it is not trained something else that could not
  /// be.
  bool head_is_right() const {
    const bool layers_say_so =
        subject_.model.has_adapters() || (location_ && location_->kind == Location::Kind::kAlone);
    return location_ &&
           (location_->right.starts_with("the head") || (layers_say_so && location_->forward_is_right));
  }

  /// One at a time, the likely first; those alone that are about the same thing, once one gives the
  /// gradients. How many can't be made.
  size_t try_hypotheses() {
    size_t left_out = 0, done = 0;
    std::string about;  // what gives the gradients
    for (const bool unlikely : {false, true}) {
      for (const Hypothesis* each : in_order(hypotheses_, gradients_, truth_)) {
        if (is_unlikely(*each) != unlikely || (!about.empty() && each->about != about)) continue;
        if (trials_.has_head() && each->about != "sums" && is_of_backward_pass(each->about)) continue;
        progress(++done, hypotheses_.size(), "mistakes");
        const size_t before = trials_.whole().size();
        trials_.try_out({each}, diagnosis_.limit) ? ++diagnosis_.tried : ++left_out;
        if (trials_.whole().size() > before && is_exact(trials_.whole().back())) about = each->about;
      }
      if (fits(trials_.best())) break;
    }
    return left_out;
  }

  /// Whether what is known by now speaks against a mistake, alone: it is tried where no other explains the
  /// gradients.
  bool is_unlikely(const Hypothesis& hypothesis) const {
    if (!is_precise()) return false;
    if (location_ && !head_is_right() && hypothesis.about != "sums" && is_of_backward_pass(hypothesis.about))
      return true;
    if (no_loss_ && (hypothesis.is_of_the_loss() || hypothesis.about == "normaliser")) return true;
    return tokens_explain_ && (hypothesis.about == "normaliser" || hypothesis.name == "prompt-scored" ||
                               hypothesis.name.starts_with("labels-lost"));
  }

  /// Whether each parameter's gradient is as near to the truth as it may be.
  bool all_within_limits() const { return is_precise() && !options_.limits.empty() && !location_; }

  /// Whether what is right and what is wrong can be told apart parameter by parameter.
  bool is_precise() const { return noise_ < kFits; }

  /// The sums of parts that fit, and parameters that are multiples of the truth by themselves.
  void try_parts() {
    if (location_ && is_precise()) parts_ = explain_by_places(gradients_, truth_, limits(truth_), gauge_);
    if (location_ && parts_.empty() && !location_->factors.empty()) {
      Tensors scaled = truth_;
      for (const auto& [name, factor] : location_->factors) scaled[name] = scaled.at(name) * factor;
      const Fit fit = gauge_.measure(scaled);
      if (is_explanation(fit)) parts_.push_back({location_->name, location_->sentence, fit});
    }
    if (!parts_.empty() && is_precise()) return;
    if (location_ && location_->factors.empty() && !location_->alone.empty() && is_precise()) {
      parts_ =
          explain_few(subject_, gradients_, truth_, *location_, std::max(kSumsFit, kNoiseAllowance * noise_));
      if (!parts_.empty()) return;
    }
    if (trials_.has_head() &&
        is_of_no_loss(subject_, gradients_, {std::max(kRounding, kNoiseAllowance * noise_), 1})) {
      no_loss_ = tokens_explain_ = true;
      return;
    }
    // Sums of right parts leave nothing but rounding.
    const double rounding = std::min(kSumsFit, kShareOfTruths * truth_fit_.residual);
    const PartsLimits limits{std::max({kRounding, rounding, kNoiseAllowance * noise_}), gauge_.parameters()};
    take(explain_by_parts(subject_, gauge_, limits));
    if (!parts_.empty() || unnamed_) return;
    TokenFit tokens = explain_by_tokens(subject_, gradients_, gauge_, limits, options_.chunks);
    take(std::move(tokens.explanations));
    tokens_explain_ = tokens.applies;
    // A head's gradient that is no sum over tokens is not one with other weights either.
    if (tokens.applies && !tokens.head_fits && is_precise())
      std::erase_if(hypotheses_, [](const Hypothesis& h) { return h.about == "normaliser"; });
  }

  /// Another batch than the given one, or numbers of the config, with other words for them. Whether one is
  /// explained.
  bool try_batch_and_numbers() {
    const PartsLimits limits{std::min(diagnosis_.limit, kShareOfTruths * truth_fit_.residual),
                             gauge_.parameters()};
    parts_ = explain_by_longer_rows(
        subject_, gradients_, gauge_, limits,
        [&](const WrongSubject& other) { return trials_.may_be(other, diagnosis_.limit); }, diagnosis_.notes);
    if (parts_.empty()) parts_ = explain_by_ends_of_rows(subject_, gradients_, gauge_, limits);
    if (!parts_.empty()) return true;
    parts_ = trials_.numbers(limits, gradients_);
    if (parts_.empty()) return false;
    for (const Hypothesis& each : hypotheses_) {
      const WrongSettings settings = each.settings();
      if (!settings.config_change.empty() || settings.score_factor != 1.0)
        diagnosis_.tried += trials_.try_out({&each}, diagnosis_.limit) ? 1 : 0;
    }
    return true;
  }

  void take(std::vector<Explanation> explanations) {
    for (Explanation& each : explanations) {
      if (!(each.fit.residual <= kBetterThanTruth * truth_fit_.residual)) continue;
      if (!each.named) {
        // Targets and forward pass are right: it is the loss.
        if (is_precise()) std::erase_if(hypotheses_, [](const Hypothesis& h) { return !h.is_of_the_loss(); });
        unnamed_ = std::move(each);
        continue;
      }
      factors_.add(each.fit, each.name, each.sentence);
      parts_.push_back(std::move(each));
    }
  }

  /// Whether there is an engine that makes this model's, batch's and objective's mistakes; else a note.
  bool engine_is_right() {
    try {
      const double off = trials_.engine_error();
      if (off <= kEngineLimit) return true;
      diagnosis_.notes.push_back(
          fmt::format("the engine that makes mistakes is {:.1e} off the truth with none, expected {:.0e}: "
                      "only parts of the "
                      "gradient were tried",
                      off, kEngineLimit));
    } catch (const InputError& error) {
      diagnosis_.notes.push_back(fmt::format("only parts of the gradient were tried: {}", error.what()));
    }
    return false;
  }

  bool is_explanation(const Fit& fit) const {
    return fit.residual <= diagnosis_.limit && fit.residual <= kBetterThanTruth * truth_fit_.residual;
  }

  /// Whether this explains the gradients, where the truth does not as well.
  bool fits(const Tried& tried) const {
    if (tried.of.empty()) return tried.fit.residual <= diagnosis_.limit && tried.fit.has_factor();
    return is_explanation(tried.fit);
  }

  bool is_exact(const Tried& tried) const {
    return is_precise() && fits(tried) &&
           tried.fit.residual <= std::max(kSinglePrecision, kNoiseLimit * noise_);
  }

  void try_pairs() {
    std::vector<MistakePair> pairs = trials_.pairs(hypotheses_, diagnosis_.limit);
    if (head_is_right() && pairs.size() > kPairsInOnePlace) pairs.resize(kPairsInOnePlace);
    for (size_t i = 0; i < pairs.size(); ++i) {
      progress(i + 1, pairs.size(), "pairs of mistakes");
      ++diagnosis_.pairs_tried;
      if (!trials_.try_out({pairs[i].first, pairs[i].second}, diagnosis_.limit)) continue;
      // What fits this well needs no better.
      if (fits(trials_.whole().back()) && trials_.whole().back().fit.residual <= std::max(1e-6, noise_))
        break;
    }
  }

  Explanation explain(const Tried& tried) const {
    std::vector<std::string> names, sentences;
    for (const Hypothesis* each : tried.of) {
      names.push_back(each->name);
      sentences.push_back(each->sentence);
    }
    std::string name = fmt::format("{}", fmt::join(names, " + "));
    std::string sentence = fmt::format("{}", fmt::join(sentences, "; and "));
    factors_.add(tried.fit, name, sentence);
    if (name.empty()) return {"truth", "nothing is wrong", tried.fit};
    return {name, sentence, tried.fit};
  }

  /// Whether tokens that are not in the batch have gradients: then that is what is known.
  bool say_strangers() {
    const std::optional<Strangers> found = find_strangers(subject_, gradients_);
    if (!found) return false;
    diagnosis_.location->name = found->name;
    diagnosis_.location->sentence = found->sentence;
    return true;
  }

  Diagnosis finish() {
    // Within rounding the simpler one, which comes first: the truth, where it leaves as little as float32
    // does.
    const double rounding =
        truth_fit_.residual <= kSinglePrecision ? std::max(kTie * truth_fit_.residual, kRounding) : kRounding;
    std::vector<Tried>& tried = trials_.whole();
    const auto leaves_less = [rounding](const auto& a, const auto& b) {
      return std::max(a.fit.residual, rounding) < std::max(b.fit.residual, rounding);
    };
    std::stable_sort(tried.begin(), tried.end(), leaves_less);
    diagnosis_.explanations = parts_;
    for (const Tried& each : tried) diagnosis_.explanations.push_back(explain(each));
    std::stable_sort(diagnosis_.explanations.begin(), diagnosis_.explanations.end(), leaves_less);
    std::set<std::string> said;  // that two searches have found
    std::erase_if(diagnosis_.explanations,
                  [&](const Explanation& e) { return !said.insert(e.sentence).second; });
    if (!parts_.empty() && truth_fit_.residual <= kTruthAllowance * noise_) {  // biases within the noise
      std::erase_if(diagnosis_.explanations, [](const Explanation& e) { return e.name == "truth"; });
    }
    const double best_residual = diagnosis_.explanations.front().fit.residual;
    if (!parts_.empty() || fits(tried.front())) {
      diagnosis_.kind = Diagnosis::Kind::kExplained;
      const double limit = std::max(kTie * best_residual, kRounding);
      for (const Explanation& each : diagnosis_.explanations)
        diagnosis_.fitting += each.fit.residual <= limit ? 1 : 0;
      diagnosis_.leaves_rest = !(best_residual <= std::max(kSumsFit, kNoiseLimit * noise_));
    } else if ((truth_fit_.residual <= std::max(kSumsFit, kNoiseAllowance * noise_) || all_within_limits()) &&
               !truth_fit_.has_factor()) {
      diagnosis_.kind = Diagnosis::Kind::kRight;
      diagnosis_.location.reset();
      if (noise_ < kRounding && truth_fit_.residual > kRounding)
        diagnosis_.notes.push_back("norms, rotation or softmax in float32 leave as much in a float64 model");
    } else if (location_ && is_precise() && !head_is_right() && say_strangers()) {
      diagnosis_.kind = Diagnosis::Kind::kLocated;
    } else if (location_ && location_->kind != Location::Kind::kEverywhere) {
      diagnosis_.kind = Diagnosis::Kind::kLocated;
    }
    return std::move(diagnosis_);
  }

  const WrongSubject& subject_;
  const Tensors& gradients_;
  const Tensors& truth_;
  const DiagnoseOptions& options_;
  FitGauge gauge_;
  TrialRuns trials_;
  FactorWords factors_;
  std::vector<Hypothesis> hypotheses_;
  double noise_;
  Fit truth_fit_;
  std::optional<Location> location_;
  std::vector<Explanation> parts_;
  std::optional<Explanation> unnamed_;
  bool no_loss_ = false;         // on the right forward pass gives the head's gradient
  bool tokens_explain_ = false;  // weights of tokens have been fitted
  Diagnosis diagnosis_;
};

}  // namespace

double precision_residual(const Tensors& gradients, const Tensors& truth) {
  return FitGauge(gradients, truth).measure(truth).residual;
}

Diagnosis diagnose(const WrongSubject& subject, const Tensors& gradients, const Tensors& truth, double noise,
                   const DiagnoseOptions& options) {
  const double before = tokens_run();
  Diagnosis diagnosis = Search(subject, gradients, truth, noise, options).run();
  diagnosis.passes =
      (tokens_run() - before) / static_cast<double>(std::max<int64_t>(subject.batch.size(), 1));
  return diagnosis;
}

}  // namespace streambp::verify
