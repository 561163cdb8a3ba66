#include "verify/diagnose/parts/parts.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <tuple>
#include <utility>

#include "streambp/error.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/input_weights.h"
#include "verify/diagnose/parts/least_squares.h"
#include "verify/diagnose/parts/other_losses.h"
#include "verify/diagnose/parts/plain_divergence.h"
#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/parts/term_tables.h"
#include "verify/diagnose/parts/term_words.h"
#include "verify/diagnose/wrong_engine/layer_pass.h"

namespace streambp::verify {
namespace {

constexpr int64_t kMostRows = 256;
constexpr double kNothing = 1e-9;     // of the truth: a smaller part is rounding
constexpr int64_t kFitsAnything = 3;  // numbers of a gradient for each part: fewer can be made of any parts
constexpr double kRowWeightRounding = 1e-5;  // weights of rows are known no better
class PartsSearch {
 public:
  PartsSearch(const WrongSubject& subject, const FitGauge& gauge, const PartsLimits& limits)
      : subject_(subject),
        gauge_(gauge),
        limits_(limits),
        objective_(make_objective(subject.objective, subject.batch, subject.options)),
        linear_(subject.model, subject.batch, *objective_, subject.teacher),
        truth_(gauge.vector_of(linear_.gradients())) {}

  std::vector<Explanation> run() {
    facts_ = row_facts(subject_.batch, objective_kind(subject_.objective).layout);
    add_other_weights(facts_, subject_.batch, objective_kind(subject_.objective).layout);
    add_input_weights(facts_, subject_, linear_);
    rows(linear_.slopes());
    by_terms();
    if (!found_.empty() && found_.front().name.find(" + ") == std::string::npos) return std::move(found_);
    std::vector<Explanation> of_terms = std::exchange(found_, {});
    if (by_rows({})) return std::move(found_);  // in simpler words than several terms
    const size_t pairs = has_pairs(objective_kind(subject_.objective).layout) ? rows_.size() / 2 : 0;
    if (!of_terms.empty() && !(unnamed_ && stand_for_pairs(terms_, pairs))) return of_terms;
    // One of them alone can't.
    std::erase_if(terms_, [&](const Term& t) { return !of_terms.empty() && t.name == "cross-entropy"; });
    if (!of_terms.empty() && fits_by_terms()) return std::move(found_);
    if (by_rows(terms_)) return std::move(found_);
    if (!facts_.advantages.empty() && !is_zero(besides_)) {
      // Advantages multiply the policy's part of a row alone.
      rows(sum_of(linear_.slopes(), besides_, -1.0));
      facts_.advantages_alone = true;
      by_rows({});
    }
    if (const auto made = found_.empty() ? with_plain_divergence(subject_, gauge_, linear_) : std::nullopt) {
      const double residual = residual_of(*made);
      if (residual <= limits_.residual)
        found("kl-without-temperature", "the KL term's log-probabilities are not divided by the temperature",
              residual, 1.0);
    }
    if (found_.empty() && unnamed_) return {*unnamed_};
    return std::move(found_);
  }

 private:
  std::unique_ptr<Objective> with_options(const std::string& option, const std::string& value) const {
    auto options = subject_.options;
    options[option] = value;
    return make_objective(subject_.objective, subject_.batch, options);
  }

  bool has_zero_advantage() const {
    return std::find(facts_.advantages.begin(), facts_.advantages.end(), 0.0) != facts_.advantages.end();
  }

  at::Tensor part_of(const ScoredValues& slopes) const {
    return gauge_.vector_of(linear_.gradients_of(slopes));
  }

  bool is_nothing(const at::Tensor& part) const {
    return !(part.norm().item<double>() > kNothing * truth_.norm().item<double>());
  }

  /// The rows, by these slopes, and what of the truth is none of theirs: the routers' loss.
  void rows(const ScoredValues& slopes) {
    const auto sequences = static_cast<int64_t>(subject_.batch.offsets.size()) - 1;
    if (sequences > kMostRows) return;
    rows_.clear();
    lengths_.clear();
    const ScoredValues units =
        has_zero_advantage() ? slopes_of_unit_advantages(subject_, linear_) : ScoredValues{};
    rest_ = truth_.clone();
    for (int64_t i = 0; i < sequences; ++i) {
      const auto index = static_cast<size_t>(i);
      const bool has_none = !facts_.advantages.empty() && facts_.advantages[index] == 0.0;
      const Tensors own = linear_.gradients_of(has_none ? units : slopes, {i});
      const at::Tensor part = gauge_.vector_of(own);
      lengths_.push_back(norm_of_all(own));
      rows_.push_back(is_nothing(part) ? at::Tensor() : part);
      if (!has_none) rest_ -= part;
    }
  }

  void terms() {
    const ScoredValues& slopes = linear_.slopes();
    const auto add = [&](std::string name, std::string text, at::Tensor part, bool expected = true) {
      if (!is_nothing(part)) terms_.push_back({std::move(name), std::move(text), std::move(part), expected});
    };
    const auto add_slopes = [&](const char* name, const char* text, const ScoredValues& of,
                                bool expected = true) {
      if (is_zero(of)) return;
      add(name, text, part_of(of), expected);
      if (expected) besides_ = sum_of(besides_, of);
    };
    for (const ColumnTerm& each : kColumnTerms) {
      ScoredValues own;
      own.columns[each.column] = slopes.columns[each.column];
      add_slopes(each.name, each.text, own);
    }
    const Options options =
        complete_options(objective_kind(subject_.objective), subject_.options, subject_.batch);
    for (const CoefficientOption& each : kCoefficients) {
      if (subject_.objective != each.objective) continue;
      const bool there = options.number(each.option, 0.0, kInfinity) > 0.0;
      try {
        const auto other = with_options(each.option, there ? "0" : "1");
        const ScoredValues changed = slopes_at(*other, linear_.values());
        add_slopes(each.name, each.text,
                   there ? sum_of(slopes, changed, -1.0) : sum_of(changed, slopes, -1.0), there);
      } catch (const InputError&) {  // the batch has no numbers of a reference
      }
    }
    weight_decay();
    several_losses(options, add_slopes);
    not_there(slopes, add_slopes);
    if (rest_.defined() && !has_zero_advantage())
      add("router-loss", "the loss that balances the experts (router_aux_loss_coef)", rest_);
    const MixtureSettings& mixture = subject_.model.config().mixture;
    if (mixture.num_experts == 0 || !mixture.has_router_loss() ||
        objective_->router_loss.of(mixture) != 0.0 || !objective_kind(subject_.objective).knows_router_loss)
      return;
    const auto with = with_options("router_aux_loss_coef", "1");
    add("router-loss", "the loss that balances the experts (router_aux_loss_coef)",
        gauge_.vector_of(evaluate(subject_.model, subject_.batch, *with, {}, subject_.teacher).gradients) -
            truth_,
        false);
  }

  /// Parameters themselves: what weight decay adds, where it is not the optimizer's.
  void weight_decay() {
    for (const bool matrices : {true, false}) {
      Tensors values;
      for (const auto& [name, gradient] : linear_.gradients())
        values[name] = (gradient.dim() >= 2) == matrices ? subject_.model.parameter(name).value
                                                         : at::zeros_like(gradient);
      const at::Tensor part = gauge_.vector_of(values);
      const char* const of = matrices ? "the matrices" : "norms and biases";
      if (!is_nothing(part))
        terms_.push_back(
            {"weight-decay", fmt::format("half the squared norm of {} (weight decay)", of), part, false});
    }
  }

  /// Each of several losses of pairs.
  template <typename Add>
  void several_losses(const Options& options, const Add& add_slopes) {
    if (subject_.objective != "dpo") return;
    const std::vector<std::string> types = options.words("loss_type");
    if (types.size() < 2) return;
    const std::vector<double> weights = options.given("loss_weights")
                                            ? options.numbers("loss_weights")
                                            : std::vector<double>(types.size(), 1.0);
    for (size_t i = 0; i < types.size() && i < weights.size(); ++i) {
      auto one = subject_.options;
      one["loss_type"] = types[i];
      one["loss_weights"] = fmt::format("{:.17g}", weights[i]);
      const auto objective = make_objective(subject_.objective, subject_.batch, one);
      add_slopes(types[i].c_str(), fmt::format("the loss {}", types[i]).c_str(),
                 slopes_at(*objective, linear_.values()));
    }
  }

  /// Terms that are sometimes left in.
  template <typename Add>
  void not_there(const ScoredValues& slopes, const Add& add_slopes) {
    const at::Tensor& log_p = linear_.values().columns[0];
    if (!log_p.defined()) return;
    const Layout layout = objective_kind(subject_.objective).layout;
    if (subject_.objective == "sft") {
      if (slopes.columns[2].defined() || !slopes.columns[0].defined()) return;
      ScoredValues smoothing;
      smoothing.columns[2] = slopes.columns[0];
      add_slopes("label-smoothing", "label smoothing", smoothing, false);
      return;
    }
    ScoredValues cross_entropy, entropy;
    cross_entropy.columns[0] = at::full_like(log_p, -1.0 / static_cast<double>(log_p.size(0)));
    entropy.columns[1] = cross_entropy.columns[0];
    if (layout == Layout::kPairs || layout == Layout::kCompletions)
      add_slopes("cross-entropy", "the completions' cross-entropy", cross_entropy, false);
    if (layout == Layout::kPairs && subject_.objective == "dpo") {
      at::Tensor chosen = at::zeros_like(log_p);
      for (size_t i = 0; 2 * i + 2 < subject_.batch.offsets.size(); ++i)
        chosen = chosen + linear_.of_sequence(static_cast<int64_t>(i));
      ScoredValues of_chosen;
      of_chosen.columns[0] = chosen / -chosen.sum().clamp_min(1.0);
      add_slopes("chosen-cross-entropy", "the chosen completions' cross-entropy (rpo_alpha, loss_type sft)",
                 of_chosen, false);
    }
    if (layout == Layout::kCompletions && !slopes.columns[1].defined())
      add_slopes("entropy", "an entropy bonus", entropy, false);
  }

  double residual_of(const at::Tensor& made) const {
    return (gauge_.own() - made).norm().item<double>() / std::sqrt(static_cast<double>(limits_.parameters));
  }

  bool within(const Solution& solution) const { return solution.residual <= limits_.residual; }

  void found(std::string name, std::string sentence, double residual, double factor) {
    Fit fit;
    fit.residual = fit.without_factor = residual;
    // No better known than what is left lets it.
    fit.factor = std::abs(factor - 1.0) <= std::clamp(16.0 * residual, 1e-9, 1e-5) ? 1.0 : factor;
    fit.factor_error = std::max(0.3 * residual, 1e-9);
    found_.push_back({std::move(name), std::move(sentence), fit});
  }

  bool by_terms() {
    terms();
    return fits_by_terms() || (add_terms_of_logits() && fits_by_terms());
  }

  /// Whether there are terms of the logits themselves.
  bool add_terms_of_logits() {
    bool any = false;
    for (const auto& [name, text, weight] : kLogitTerms) {
      WrongSettings settings;
      settings.*weight = 1.0;
      const std::optional<Tensors> with = with_terms_of_logits(subject_, settings);
      if (!with) continue;
      const at::Tensor part = gauge_.vector_of(*with) - truth_;
      any = any || !is_nothing(part);
      if (!is_nothing(part)) terms_.push_back({name, text, part, false});
    }
    return any;
  }

  /// A loss that is maximised next to terms that nobody has asked for: of few rows the terms can stand for
  /// any weights of the rows, which say more.
  bool is_made_up(const Solution& solution) const {
    if (solution.weights[0] > 0.0) return false;
    for (size_t i = 0; i < terms_.size(); ++i) {
      const double error = std::max(4.0 * solution.deviations[i + 1], 1e-6 * std::abs(solution.weights[0]));
      if (!terms_[i].expected && std::abs(solution.weights[i + 1]) > error) return true;
    }
    return false;
  }

  bool fits_by_terms() {
    if (terms_.empty()) return false;
    std::vector<at::Tensor> parts{truth_};
    for (const Term& term : terms_) parts.push_back(term.part);
    if (kFitsAnything * static_cast<int64_t>(parts.size()) > gauge_.own().numel()) return false;
    const Solution solution = solve(parts, gauge_.own(), limits_.parameters);
    if (!within(solution)) return false;
    if (auto alone = term_alone(subject_.objective, terms_, solution)) {
      found(alone->name, alone->sentence, solution.residual, alone->factor);
      return true;
    }
    if (is_made_up(solution)) return false;
    const auto [name, sentence] =
        words_of_terms(terms_, solution, 1, solution.weights[0], solution.deviations[0]);
    if (name.empty()) return false;
    found(name, sentence, solution.residual, solution.weights[0] + smoothing_of(solution));
    return true;
  }

  /// Label smoothing takes from the labels what it gives to all: what it changes the loss's weight by; and
  /// how often the targets' logits are there besides.
  double smoothing_of(const Solution& solution) const {
    double sum = 0.0;
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (terms_[i].name == kTargetLogits) sum += solution.weights[i + 1];
      if (subject_.objective != "sft" || terms_[i].name != "label-smoothing") continue;
      const Options options = complete_options(objective_kind("sft"), subject_.options);
      sum +=
          solution.weights[i + 1] * (terms_[i].expected ? options.number("label_smoothing", 0.0, 1.0) : 1.0);
    }
    return sum;
  }

  /// Other losses of the same rows.
  bool by_losses(const RowWeights& weights) {
    const at::Tensor& own = linear_.slopes().columns[0];
    if (!own.defined() || own.numel() == 0) return false;
    SeenSlopes seen{own.clone(), own.abs() * kRowWeightRounding};
    for (size_t i = 0; i < weights.values.size(); ++i) {
      if (std::isnan(weights.values[i])) continue;
      const at::Tensor rows = linear_.of_sequence(static_cast<int64_t>(i)).to(at::kDouble);
      seen.values = seen.values + own * rows * (weights.values[i] - 1.0);
      seen.errors = seen.errors + own.abs() * rows * (4.0 * weights.deviations[i]);
    }
    const size_t before = found_.size();
    for (const OtherLoss& each : other_losses(subject_, linear_.values(), seen, {})) {
      ScoredValues slopes = linear_.slopes();
      slopes.columns[0] = each.slopes * each.factor;
      const double residual = residual_of(part_of(slopes));
      if (residual <= limits_.residual) found(each.name, each.sentence, residual, each.factor);
    }
    return found_.size() > before;
  }

  bool by_rows(const std::vector<Term>& terms) {
    std::vector<at::Tensor> parts;
    std::vector<size_t> of;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].defined()) continue;
      of.push_back(i);
      parts.push_back(rows_[i]);
    }
    if (parts.size() < 2) return false;
    if (terms.empty() && !is_nothing(rest_)) parts.push_back(rest_);
    const size_t first_term = parts.size();
    for (const Term& term : terms) parts.push_back(term.part);
    const Solution solution = solve(parts, gauge_.own(), limits_.parameters);
    if (!within(solution)) return false;
    if (terms.empty() && is_one_of_each(solution, kRowWeightRounding)) return false;
    RowWeights weights{std::vector<double>(rows_.size(), kNaN), std::vector<double>(rows_.size(), 0.0)};
    for (size_t i = 0; i < of.size(); ++i) {
      weights.values[of[i]] = solution.weights[i];
      weights.deviations[of[i]] = solution.deviations[i];
    }
    std::string name, sentence;
    if (!terms.empty()) std::tie(name, sentence) = words_of_terms(terms_, solution, first_term, 1.0, 0.0);
    const std::vector<RowWords> all = words_for(facts_, weights);
    const bool unclear = std::any_of(all.begin(), all.end(),
                                     [](const RowWords& words) { return words.name == kRowsWeighted; });
    // How much a pair counts depends on its numbers, and may come to nothing.
    const bool has_factor = std::any_of(
        all.begin(), all.end(), [](const RowWords& words) { return std::abs(words.factor - 1.0) > 1e-6; });
    bool any =
        (unclear || has_factor || has_pairs(objective_kind(subject_.objective).layout)) && by_losses(weights);
    for (const RowWords& words : all) {
      double residual = solution.residual;
      if (!words.weights.empty()) {  // held to what the words say
        at::Tensor made = at::zeros_like(gauge_.own());
        for (size_t i = 0; i < parts.size(); ++i)
          made += parts[i] * (i < of.size() ? words.weights[of[i]] : solution.weights[i]);
        residual = residual_of(made);
      }
      if (!(residual <= limits_.residual)) continue;
      if (words.name == kRowsWeighted) {
        if (const auto clipped = terms.empty() ? clipped_rows(facts_, weights, lengths_) : std::nullopt) {
          any = true;
          found(clipped->name, clipped->sentence, residual, 1.0);
          continue;
        }
        found(words.name, words.sentence, residual, 1.0);
        if (!unnamed_) unnamed_ = std::move(found_.back());
        unnamed_->named = false;
        found_.pop_back();
        continue;
      }
      any = true;
      found(name.empty() ? words.name : words.name + " + " + name,
            sentence.empty() ? words.sentence : words.sentence + "; and " + sentence, residual, words.factor);
    }
    return any;
  }

  const WrongSubject& subject_;
  const FitGauge& gauge_;
  PartsLimits limits_;
  std::unique_ptr<Objective> objective_;
  Linearised linear_;
  at::Tensor truth_, rest_;
  ScoredValues besides_;  // the slopes of the loss's terms but the main one
  RowFacts facts_;
  std::vector<at::Tensor> rows_;  // undefined: without a gradient
  std::vector<double> lengths_;   // of the gradients of each
  std::vector<Term> terms_;
  std::vector<Explanation> found_;
  std::optional<Explanation> unnamed_;
};

}  // namespace

std::vector<Explanation> explain_by_parts(const WrongSubject& subject, const FitGauge& gauge,
                                          const PartsLimits& limits) {
  return PartsSearch(subject, gauge, limits).run();
}

}  // namespace streambp::verify
