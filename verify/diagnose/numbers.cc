#include "verify/diagnose/numbers.h"

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "streambp/error.h"
#include "streambp/objective/objective.h"
#include "verify/diagnose/wrong_engine/config_changes.h"
#include "verify/diagnose/wrong_engine/other_weights.h"

namespace streambp::verify {
namespace {

/// The first step, of a number's logarithm.
constexpr double kStep = 1e-3;
/// What the first step has to explain of an error, as the square of a cosine, to be followed.
constexpr double kFollowed = 0.5;
/// The same of a step of all weights, which bends what it does.
constexpr double kFollowedStep = 0.2;
/// Newton's steps, and how far they may lead.
constexpr int kSteps = 8;
constexpr double kFarthest = 1.5;
/// How far a count may be from a whole number, relative to it.
constexpr double kWhole = 1e-5;
/// What is left of an exact number.
constexpr double kExact = 1e-8;

/// A number that may be another one.
struct Number {
  std::string name, text;
  double right = 1.0;
  std::function<void(WrongSettings&, double)> set;
  double unit = 0.0;   // of a number that should be 0: it is so many times this, and no multiple of `right`
  bool whole = false;  // it is a count

  double at(double x) const { return unit > 0.0 ? unit * x : right * std::exp(x); }
};

/// A step as long as this share of the weights is one of the search's.
constexpr double kStepShare = 0.3;

void add_steps(const WrongSubject& subject, const WeightDirections& directions, std::vector<Number>& all) {
  if (subject.model.has_adapters() || subject.model.has_value_head()) return;
  double squares = 0.0;
  for (const auto& parameter : subject.model.parameters()) {
    if (parameter->trainable()) squares += std::pow(parameter->value.norm().item<double>(), 2);
  }
  for (const auto& [text, along] : directions) {
    const double norm = norm_of_all(*along);
    if (!(norm > 0.0) || !std::isfinite(norm)) continue;
    all.push_back({"weights-step", text, 0.0,
                   [along = along](WrongSettings& s, double value) {
                     s.step = {along, value};
                   },
                   kStepShare * std::sqrt(squares) / norm});
  }
}

/// What parts of a layer give, or embeddings, multiplied by a number.
void add_weights(const WrongSubject& subject, std::vector<Number>& all) {
  if (subject.model.has_adapters() || subject.model.has_value_head()) return;
  std::set<std::string> kinds;
  for (const auto& parameter : subject.model.parameters()) kinds.insert(kind_of(parameter->name));
  for (const auto& [name, text, kind] :
       {std::tuple{"attention-output", "what attention gives is multiplied by a number that",
                   "self_attn.o_proj"},
        std::tuple{"mlp-output", "what the MLP gives is multiplied by a number that", "mlp.down_proj"},
        std::tuple{"experts-output", "what experts give is multiplied by a number that",
                   "mlp.experts.*.down_proj"}}) {
    if (!kinds.contains(fmt::format("{}.weight", kind))) continue;
    all.push_back({name, text, 1.0, [kind = std::string(kind)](WrongSettings& s, double value) {
                     for (const char* part : {".weight", ".bias"})
                       s.weights.push_back({kind + part, WeightChange::How::kTimes, 0, 0, value});
                   }});
  }
}

std::vector<Number> numbers_of(const WrongSubject& subject, const WeightDirections& directions) {
  std::vector<Number> all;
  for (const ConfigNumber& number : config_numbers()) {
    Config config = subject.model.config();
    const double right = number.of(config);
    // Others stand for what there is not.
    const bool counts = right != 1.0 || number.name == std::string("logits-scaling");
    if (right > 0.0 && counts)
      all.push_back({number.name, number.text, right, [name = number.name](WrongSettings& s, double value) {
                       s.config_number = name;
                       s.config_value = value;
                     }});
  }
  add_weights(subject, all);
  if (subject.model.has_adapters())
    all.push_back({"adapter-scale", "what adapters are multiplied by, over their scale,", 1.0,
                   [](WrongSettings& s, double value) { s.adapter_scale_factor = value; }});
  const DeltaRuleSettings& rule = subject.model.config().delta_rule;
  if (rule.value_heads > 0 && !rule.state_space && !rule.convolution_alone)
    all.push_back({"delta-beta", "what beta of the delta rule is multiplied by (2: allow_neg_eigval)", 1.0,
                   [](WrongSettings& s, double value) { s.recurrence.beta = value; }});
  if (subject.model.has_head())
    all.push_back({"more-logits", "the softmax", 0.0,
                   [](WrongSettings& s, double value) { s.more_logits = value; },
                   static_cast<double>(subject.model.config().vocab_size), true});
  add_steps(subject, directions, all);
  return all;
}

class NumberSearch {
 public:
  NumberSearch(const WrongSubject& subject, const FitGauge& gauge, const Tensors& truth,
               const PartsLimits& limits, const WeightDirections& directions, const MakeMistake& run,
               const std::function<Fit(const WrongSettings&)>& confirm)
      : subject_(subject),
        gauge_(gauge),
        limits_(limits),
        directions_(directions),
        run_(run),
        confirm_(confirm),
        truth_(gauge.vector_of(truth)),
        error_(gauge.own() - truth_) {}

  std::vector<Explanation> search() {
    for (const Number& number : numbers_of(subject_, directions_)) follow(number);
    return std::move(found_);
  }

 private:
  static WrongSettings with(const Number& number, double value) {
    WrongSettings settings;
    number.set(settings, value);
    return settings;
  }

  std::optional<at::Tensor> at(const Number& number, double value) const {
    try {
      return gauge_.vector_of(run_(subject_, with(number, value)));
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  static double along(const at::Tensor& error, const at::Tensor& slope) {
    return at::dot(error, slope).item<double>() / at::dot(slope, slope).item<double>();
  }

  double residual_of(const at::Tensor& error) const {
    return error.norm().item<double>() / std::sqrt(static_cast<double>(gauge_.parameters()));
  }

  /// A step of the weights bends the gradients: of `x` and its multiples the one that leaves the least.
  double farther(const Number& number, double x) const {
    double best = x, least = std::numeric_limits<double>::infinity();
    for (const double times : {1.0, 2.0, 4.0, 8.0}) {
      const std::optional<at::Tensor> other = at(number, number.at(times * x));
      const double residual = other ? residual_of(gauge_.own() - *other) : least;
      if (!(residual < least)) break;
      least = residual;
      best = times * x;
    }
    return best;
  }

  void follow(const Number& number) {
    std::optional<at::Tensor> other = at(number, number.at(kStep));
    if (!other) return;
    at::Tensor slope = (*other - truth_) / kStep;
    const double size = slope.norm().item<double>();
    if (!(size > 0.0)) return;
    double x = along(error_, slope);
    const double cosine = x * size / error_.norm().item<double>();
    if (!(cosine * cosine >= (number.unit > 0.0 ? kFollowedStep : kFollowed)) || !(std::abs(x) <= kFarthest))
      return;
    if (number.unit > 0.0) x = farther(number, x);
    double before = 0.0, best = 0.0, best_residual = residual_of(error_);
    at::Tensor at_before = truth_;
    for (int step = 0; step < kSteps && std::abs(x) <= kFarthest && x != before; ++step) {
      other = at(number, number.at(x));
      if (!other) return;
      const at::Tensor left = gauge_.own() - *other;
      const double residual = residual_of(left);
      if (!(residual < best_residual)) break;
      best = x;
      best_residual = residual;
      if (residual <= kExact) break;
      slope = (*other - at_before) / (x - before);  // of the last step: as good, and no run
      before = x;
      at_before = *other;
      x += along(left, slope);
    }
    if (best_residual <= limits_.residual) add(number, number.at(best));
  }

  void add(const Number& number, double found) {
    if (number.whole) {
      if (std::abs(found - std::round(found)) > kWhole * found) return;
      found = std::round(found);
    }
    Explanation explanation;
    explanation.fit.residual = explanation.fit.without_factor = confirm_(with(number, found)).without_factor;
    if (!(explanation.fit.residual <= limits_.residual)) return;
    explanation.name = fmt::format("{}-{:.6g}", number.name, found);
    explanation.sentence =
        number.whole ? fmt::format("{} has {:g} more entries, whose logit is 0 (a padded vocabulary)",
                                   number.text, found)
        : number.unit > 0.0
            ? fmt::format(
                  "the weights are not those that are given: they are {:.6g} times {} further, as those of "
                  "the step before or after",
                  found, number.text)
            : fmt::format("{} is {:.6g} where it should be {:.6g}", number.text, found, number.right);
    if (number.name == "logits-scaling") say_temperature(found / number.right, explanation.sentence);
    found_.push_back(std::move(explanation));
  }

  /// What logits are divided by beside the model's own scaling is the objective's temperature, where it has
  /// one.
  void say_temperature(double times, std::string& sentence) const {
    const ObjectiveKind& kind = objective_kind(subject_.objective);
    const Options options = complete_options(kind, subject_.options, subject_.batch);
    if (!options.has("temperature") || subject_.objective == "distill") return;
    const double own = logit_temperature(kind, options);
    sentence = fmt::format("temperature is {:.6g} instead of {:.6g}, or {}", own * times, own, sentence);
  }

  const WrongSubject& subject_;
  const FitGauge& gauge_;
  PartsLimits limits_;
  const WeightDirections& directions_;
  const MakeMistake& run_;
  const std::function<Fit(const WrongSettings&)>& confirm_;
  at::Tensor truth_, error_;
  std::vector<Explanation> found_;
};

}  // namespace

WeightDirections steps_of(const Tensors& truth, const Tensors& gradients) {
  const auto signs = [](const Tensors& of) {
    Tensors made;
    for (const auto& [name, tensor] : of) made.emplace(name, tensor.to(at::kDouble).sign());
    return std::make_shared<const Tensors>(std::move(made));
  };
  return {{"their gradient", std::make_shared<const Tensors>(truth)},
          {"the given gradients", std::make_shared<const Tensors>(gradients)},
          {"the sign of their gradient", signs(truth)},
          {"the sign of the given gradients", signs(gradients)}};
}

std::vector<Explanation> explain_by_numbers(const WrongSubject& subject, const FitGauge& gauge,
                                            const Tensors& truth, const PartsLimits& limits,
                                            const WeightDirections& directions, const MakeMistake& run,
                                            const std::function<Fit(const WrongSettings&)>& confirm) {
  return NumberSearch(subject, gauge, truth, limits, directions, run, confirm).search();
}

}  // namespace streambp::verify
