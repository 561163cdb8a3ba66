#include "verify/diagnose/parts/other_losses.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/other_policies.h"
#include "verify/diagnose/parts/other_sums.h"
#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/parts/token_powers.h"
#include "verify/diagnose/trials/hypotheses.h"
#include "verify/diagnose/wrong_engine/late_objective.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"

namespace streambp::verify {
namespace {

/// Slopes that differ by less are one.
constexpr double kSameSlope = 1e-5;
constexpr double kSameFactor = 1e-5;
/// Of the largest slope: what rounding leaves of one that is none.
constexpr double kOfTheLargest = 1e-9;
/// Orders of rows are tried for no more.
constexpr int64_t kMostRolled = 16;
constexpr size_t kMostPaired = 80;
/// A bound that is never reached.
constexpr double kNever = 1e6;
constexpr int kRefinements = 60;
/// Times that are one.
constexpr double kOnce = 1e-4;

using LossChange = std::function<void(WrongSettings&)>;

struct LossCandidate {
  std::string name, about, sentence;
  LossChange make;
};

class LossSearch {
 public:
  LossSearch(const WrongSubject& subject, const ScoredValues& values, const SeenSlopes& seen,
             const std::vector<int64_t>& chunks)
      : subject_(subject),
        values_(values),
        seen_(seen),
        kind_(objective_kind(subject.objective)),
        temperature_(
            make_objective(subject.objective, subject.batch, subject.options)->request().temperature) {
    for (Hypothesis& each : hypotheses(subject, chunks)) {
      if (each.is_of_the_loss()) candidates_.push_back({each.name, each.about, each.sentence, each.make});
    }
    orders();
    for (OptionChanges& each : changed_options(kind_, subject_.options))
      candidates_.push_back({each.name, "options", each.sentence,
                             [options = std::move(each.options)](WrongSettings& s) { s.options = options; }});
    if (kind_.name == "kto")
      candidates_.push_back({"kto-baseline-missing", "options",
                             "the KL estimate that rewards are held against is 0 (calculate_KL)",
                             [](WrongSettings& s) { s.options["loss_type"] = "apo_zero_unpaired"; }});
    if (kind_.name == "grpo")
      candidates_.push_back({"not-clipped", "options", "ratios are not clipped (epsilon_low, epsilon_high)",
                             [](WrongSettings& s) {
                               s.options["epsilon_low"] = "1";
                               s.options["epsilon_high"] = fmt::format("{}", kNever);
                             }});
    for (const char* type : {"grpo", "bnpo", "dapo"}) {  // which hypotheses() leaves to weights of rows
      if (kind_.name == "grpo")
        candidates_.push_back({fmt::format("loss_type-{}", type), "options",
                               fmt::format("loss_type is {}", type),
                               [type](WrongSettings& s) { s.options["loss_type"] = type; }});
    }
  }

  std::vector<OtherLoss> run() {
    own_ = slopes_of({});
    if (!own_.defined()) return {};
    // What counts for nothing is known no better than the rest.
    const double typical = seen_.values.abs().max().item<double>();
    seen_.errors = seen_.errors.clamp_min(std::max(typical * kOfTheLargest, 1e-300));
    for (const LossCandidate& each : candidates_) try_out(each.name, each.sentence, each.make);
    for (const OtherSums& each : other_sums(subject_, values_)) keep(each.name, each.sentence, each.slopes);
    divided_by_room();
    lost();
    numbers();
    kl_terms();
    if (found_.empty()) {
      const std::string of = term_coefficient(kind_.name);
      const at::Tensor without = of.empty() ? own_ : slopes_with(of, 0.0);
      for (const OtherSums& each : token_powers(subject_, values_, own_, without, of))
        keep(each.name, each.sentence, each.slopes);
    }
    if (found_.empty()) pairs();
    if (std::any_of(found_.begin(), found_.end(), [](const OtherLoss& each) { return each.factor == 1.0; }))
      std::erase_if(found_, [](const OtherLoss& each) { return each.factor != 1.0; });
    return std::move(found_);
  }

 private:
  /// Undefined where the objective refuses it, or asks the head for more than the subject's does.
  at::Tensor slopes_of(const WrongSettings& settings, const at::Tensor& lost = {}) const {
    try {
      Batch batch = wrong_batch(subject_.batch, subject_.input_ids, subject_.labels, settings).batch;
      ScoredValues values = values_;
      at::Tensor kept;
      if (lost.defined()) {
        const at::Tensor scored = scored_indices(batch);
        batch.targets = batch.targets.index_fill(0, scored.masked_select(lost), kNoTarget);
        kept = lost.logical_not().nonzero().squeeze(1);
        for (at::Tensor& column : values.columns) {
          if (column.defined()) column = column.index_select(0, kept);
        }
      }
      const LateObjective objective(subject_, settings, batch);
      if (objective.targets().defined() || !is_known(objective.request()) ||
          scored_indices(batch).size(0) != values.columns[0].size(0))
        return {};
      const ScoredValues slopes = slopes_at(objective, values);
      for (size_t i = 1; i < slopes.columns.size(); ++i) {
        if (slopes.columns[i].defined() && !is_zero(slopes.columns[i])) return {};
      }
      if (!lost.defined() || !slopes.columns[0].defined()) return slopes.columns[0];
      return at::zeros_like(seen_.values).index_copy(0, kept, slopes.columns[0]);
    } catch (const InputError&) {
      return {};
    }
  }

  /// Whether the subject's forward pass has what the head is asked for.
  bool is_known(const HeadRequest& request) const {
    const std::array<bool, 6> asked{request.log_probabilities,
                                    request.entropies,
                                    request.mean_log_probabilities,
                                    request.values,
                                    request.divergence != Divergence::kNone,
                                    request.log_sum_squares};
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i] && !values_.columns[i].defined()) return false;
    }
    return request.pooling == Pooling::kNone && request.temperature == temperature_;
  }

  /// The factor by which slopes are those that are seen.
  std::optional<double> factor_of(const at::Tensor& slopes) const {
    if (!slopes.defined()) return std::nullopt;
    const at::Tensor trust = seen_.errors.square().reciprocal();
    const double square = (trust * slopes.square()).sum().item<double>();
    if (!(square > 0.0) || !std::isfinite(square)) return std::nullopt;
    double factor = (trust * slopes * seen_.values).sum().item<double>() / square;
    if (std::abs(factor - 1.0) <= std::max(kSameFactor, 4.0 / std::sqrt(square))) factor = 1.0;
    const at::Tensor off = (seen_.values - slopes * factor).abs();
    const bool like =
        (off <= at::maximum(seen_.errors, (slopes * factor).abs() * kSameSlope)).all().item<bool>();
    return like && factor > 0.0 ? std::optional(factor) : std::nullopt;
  }

  bool keep(std::string name, std::string sentence, const at::Tensor& slopes) {
    const std::optional<double> factor = factor_of(slopes);
    if (!factor) return false;
    found_.push_back({std::move(name), std::move(sentence), slopes, *factor});
    return true;
  }

  void try_out(const std::string& name, const std::string& sentence, const LossChange& make) {
    WrongSettings settings;
    make(settings);
    keep(name, sentence, slopes_of(settings));
  }

  int64_t sequences() const { return static_cast<int64_t>(subject_.batch.offsets.size()) - 1; }

  /// Rows that take what is another's.
  void orders() {
    const int64_t all = sequences();
    if (all < 2 || all > kMostRolled) return;
    std::vector<std::pair<std::string, std::vector<int64_t>>> orders;
    const auto add_order = [&](std::string text, const std::function<int64_t(int64_t)>& other) {
      std::vector<int64_t> order;
      for (int64_t i = 0; i < all; ++i) order.push_back(other(i));
      if (std::none_of(orders.begin(), orders.end(),
                       [&](const auto& known) { return known.second == order; }))
        orders.emplace_back(std::move(text), std::move(order));
    };
    const bool pairs = has_pairs(kind_.layout);
    const int64_t half = all / 2;
    if (pairs) {
      add_order("chosen and rejected are exchanged", [&](int64_t i) { return (i + half) % all; });
      for (int64_t by = 1; by < half; ++by) {
        add_order(fmt::format("each pair has those of the pair {} further on", by),
                  [&](int64_t i) { return i / half * half + (i + by) % half; });
        add_order(fmt::format("the rejected have those of the pair {} further on", by),
                  [&](int64_t i) { return i < half ? i : half + (i + by) % half; });
      }
      add_order("the rejected have those of the pairs in reverse order",
                [&](int64_t i) { return i < half ? i : all - 1 - (i - half); });
    }
    for (int64_t by = 1; by < all; ++by)
      add_order(fmt::format("each row has that of the row {} further on", by),
                [&](int64_t i) { return (i + by) % all; });
    add_order("rows have them in reverse order", [&](int64_t i) { return all - 1 - i; });
    for (const auto& [text, order] : orders) {
      if (subject_.batch.sequence_inputs.contains(inputs::kReferenceSums))
        candidates_.push_back({"reference-of-others", "reference",
                               "the reference's log-probabilities are other rows': " + text,
                               [order = order](WrongSettings& s) { s.reference_order = order; }});
      if (subject_.batch.token_inputs.contains(inputs::kAdvantages))
        candidates_.push_back({"advantages-of-others", "advantages", "advantages are other rows': " + text,
                               [order = order](WrongSettings& s) { s.advantage_order = order; }});
    }
  }

  /// Tokens that have no slope are not there at all, for sums and counts either.
  void lost() {
    const at::Tensor gone = (seen_.values.abs() <= seen_.errors).logical_and(own_.ne(0.0));
    const int64_t count = gone.sum().item<int64_t>();
    if (count == 0 || count == gone.size(0)) return;
    const at::Tensor scored = scored_indices(subject_.batch);
    std::vector<int64_t> lasts, of_several, numbers;
    for (size_t i = 0; i + 1 < subject_.batch.offsets.size(); ++i) {
      const at::Tensor own = scored.masked_select(
          scored.ge(subject_.batch.offsets[i]).logical_and(scored.lt(subject_.batch.offsets[i + 1])));
      if (own.numel() > 0) lasts.push_back(own.max().item<int64_t>());
      if (own.numel() > 1) of_several.push_back(lasts.back());
    }
    const at::Tensor tokens = scored.masked_select(gone);
    for (int64_t i = 0; i < tokens.size(0); ++i) numbers.push_back(tokens[i].item<int64_t>());
    keep("tokens-lost",
         numbers == lasts || numbers == of_several
             ? "each row's last token is neither scored nor counted (the end of text)"
             : fmt::format("{} of {} scored tokens are neither scored nor counted: {} of the stream", count,
                           gone.size(0), list_text("token", numbers)),
         slopes_of({}, gone));
  }

  /// Dr. GRPO's mean, with a room of completions that is not told.
  void divided_by_room() {
    if (kind_.name != "grpo") return;
    WrongSettings settings;
    settings.options = {{"loss_type", "dr_grpo"}, {"max_completion_length", "1"}};
    const at::Tensor slopes = slopes_of(settings);
    const std::optional<double> factor = factor_of(slopes);
    if (!factor) return;
    const double room = std::round(1.0 / *factor);
    if (!(room >= 2.0) || std::abs(room * *factor - 1.0) > kSameFactor) return;
    keep("loss_type-dr_grpo",
         fmt::format(
             "loss_type is dr_grpo: the loss is divided by the rows and by {:g} (max_completion_length)",
             room),
         slopes / room);
  }

  double mismatch(const at::Tensor& slopes) const {
    if (!slopes.defined()) return std::numeric_limits<double>::infinity();
    return ((seen_.values - slopes) / seen_.errors).norm().item<double>();
  }

  at::Tensor slopes_with(const std::string& option, double value) const {
    WrongSettings settings;
    settings.options[option] = fmt::format("{:.17g}", value);
    return slopes_of(settings);
  }

  /// Numbers among the options, with other values than any that is likely.
  void numbers() {
    for (const Option& option : kind_.options) {
      if (!option.choices.empty()) continue;
      const auto found = subject_.options.find(option.name);
      const std::string& given = found == subject_.options.end() ? option.default_value : found->second;
      char* end = nullptr;
      const double value = std::strtod(given.c_str(), &end);
      if (given.empty() || *end != '\0') continue;
      std::set<double> grid{0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, kNever};
      for (int power = -6; power <= 6; ++power) grid.insert(value * std::pow(2.0, power));
      number(option.name, given, {grid.begin(), grid.end()});
    }
  }

  void number(const std::string& option, const std::string& given, const std::vector<double>& grid) {
    std::vector<double> off;
    for (const double value : grid) off.push_back(mismatch(slopes_with(option, value)));
    const auto at = static_cast<size_t>(std::min_element(off.begin(), off.end()) - off.begin());
    if (!(off[at] < mismatch(own_))) return;
    double low = grid[at == 0 ? 0 : at - 1], high = grid[std::min(at + 1, grid.size() - 1)];
    for (int i = 0; i < kRefinements && grid[at] < kNever; ++i) {
      const double third = (high - low) / 3.0;
      if (mismatch(slopes_with(option, low + third)) < mismatch(slopes_with(option, high - third))) {
        high -= third;
      } else {
        low += third;
      }
    }
    const double value = grid[at] < kNever ? (low + high) / 2.0 : grid[at];
    for (const double rounded :
         {grid[at], std::strtod(fmt::format("{:.3g}", value).c_str(), nullptr), value}) {
      const at::Tensor slopes = slopes_with(option, rounded);
      if (factor_of(slopes) != 1.0) continue;
      const bool exchanged = option == std::string("cdpo_label_smoothing") && rounded == 1.0;
      keep(fmt::format("{}-{:.6g}", option, rounded),
           exchanged          ? fmt::format("chosen and rejected completions are exchanged ({} of 1)", option)
           : rounded < kNever ? fmt::format("{} is {:.6g} instead of {}", option, rounded, given)
                              : fmt::format("{} is not applied: {} is asked for", option, given),
           slopes);
      return;
    }
  }

  at::Tensor never_clipped() const {
    WrongSettings settings;
    settings.options = {{"epsilon_low", "1"}, {"epsilon_high", fmt::format("{}", kNever)}, {"beta", "0"}};
    return slopes_of(settings);
  }

  /// Ratios that are clipped otherwise, and a KL term that is averaged as another loss_type averages, or is
  /// that of the reference to the policy.
  void kl_terms() {
    if (kind_.name != "grpo") return;
    for (const OtherSums& each :
         other_clips(subject_, values_, own_, slopes_with("beta", 0.0), never_clipped()))
      keep(each.name, each.sentence, each.slopes);
    const at::Tensor without = slopes_with("beta", 0.0);
    if (!without.defined() || is_zero(own_ - without)) return;
    for (const OtherSums& each : other_divergences(subject_, values_, own_ - without)) {
      // How often it is there is fitted.
      const at::Tensor trust = seen_.errors.square().reciprocal();
      const double times = (trust * each.slopes * (seen_.values - without)).sum().item<double>() /
                           (trust * each.slopes.square()).sum().item<double>();
      const bool once = std::abs(times - 1.0) <= kOnce;
      if (keep(each.name,
               once ? each.sentence
                    : fmt::format("{}, and counts {:.6g} times as much as it should", each.sentence, times),
               without + each.slopes * (once ? 1.0 : times)))
        return;
    }
    for (const Option& option : kind_.options) {
      if (option.name != "loss_type") continue;
      for (const std::string& type : option.choices) {
        WrongSettings other;
        other.options["loss_type"] = type;
        const at::Tensor with = slopes_of(other);
        other.options["beta"] = "0";
        const at::Tensor policy = slopes_of(other);
        // Types that average alike are one.
        if (with.defined() && policy.defined() &&
            keep("kl-averaged-as-" + type,
                 fmt::format("the KL term is averaged as loss_type {} does, the rest is not", type),
                 without + with - policy))
          return;
      }
    }
  }

  void pairs() {
    if (candidates_.size() > kMostPaired) return;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      for (size_t j = i + 1; j < candidates_.size(); ++j) {
        const LossCandidate &first = candidates_[i], &second = candidates_[j];
        if (first.about == second.about) continue;
        WrongSettings settings;
        first.make(settings);
        second.make(settings);
        const at::Tensor slopes = slopes_of(settings);
        if (factor_of(slopes) == 1.0)
          keep(first.name + " + " + second.name, first.sentence + "; and " + second.sentence, slopes);
      }
    }
  }

  const WrongSubject& subject_;
  const ScoredValues& values_;
  SeenSlopes seen_;
  const ObjectiveKind& kind_;
  double temperature_;
  std::vector<LossCandidate> candidates_;
  at::Tensor own_;
  std::vector<OtherLoss> found_;
};

}  // namespace

std::vector<OtherLoss> other_losses(const WrongSubject& subject, const ScoredValues& values,
                                    const SeenSlopes& seen, const std::vector<int64_t>& chunks) {
  return LossSearch(subject, values, seen, chunks).run();
}

}  // namespace streambp::verify
