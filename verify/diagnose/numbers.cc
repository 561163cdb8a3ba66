#include "verify/diagnose/numbers.h"

#include <cmath>
#include <fmt/format.h>
#include <optional>

#include "streambp/error.h"
#include "verify/diagnose/wrong_engine/config_changes.h"

namespace streambp::verify {
namespace {

/// The first step, of a number's logarithm.
constexpr double kStep = 1e-3;
/// What the first step has to explain of an error, as the square of a cosine, to be followed.
constexpr double kFollowed = 0.5;
/// Newton's steps, and how far they may lead.
constexpr int kSteps = 8;
constexpr double kFarthest = 1.5;
/// What is left of an exact number.
constexpr double kExact = 1e-8;

class NumberSearch {
 public:
  NumberSearch(const WrongSubject& subject, const FitGauge& gauge, const Tensors& truth,
               const PartsLimits& limits,
               const std::function<Tensors(const WrongSubject&, const WrongSettings&)>& run)
      : subject_(subject),
        gauge_(gauge),
        limits_(limits),
        run_(run),
        truth_(gauge.vector_of(truth)),
        error_(gauge.own() - truth_) {}

  std::vector<Explanation> search() {
    for (const ConfigNumber& number : config_numbers()) {
      Config config = subject_.model.config();
      const double right = number.of(config);
      if (right > 0.0 && right != 1.0) follow(number, right);  // else it stands for what there is not
    }
    return std::move(found_);
  }

 private:
  std::optional<at::Tensor> at(const ConfigNumber& number, double value) const {
    WrongSettings settings;
    settings.config_number = number.name;
    settings.config_value = value;
    try {
      return gauge_.vector_of(run_(subject_, settings));
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  static double along(const at::Tensor& error, const at::Tensor& slope) {
    return at::dot(error, slope).item<double>() / at::dot(slope, slope).item<double>();
  }

  double residual_of(const at::Tensor& error) const {
    return error.norm().item<double>() / std::sqrt(static_cast<double>(limits_.parameters));
  }

  void follow(const ConfigNumber& number, double right) {
    std::optional<at::Tensor> other = at(number, right * std::exp(kStep));
    if (!other) return;
    at::Tensor slope = (*other - truth_) / kStep;
    const double size = slope.norm().item<double>();
    if (!(size > 0.0)) return;
    double x = along(error_, slope);
    const double cosine = x * size / error_.norm().item<double>();
    if (!(cosine * cosine >= kFollowed) || !(std::abs(x) <= kFarthest)) return;
    double before = 0.0, best = 0.0, best_residual = residual_of(error_);
    at::Tensor at_before = truth_;
    for (int step = 0; step < kSteps && std::abs(x) <= kFarthest && x != before; ++step) {
      other = at(number, right * std::exp(x));
      if (!other) return;
      const at::Tensor left = gauge_.own() - *other;
      const double residual = residual_of(left);
      if (!(residual < best_residual)) break;
      best = x;
      best_residual = residual;
      if (residual <= kExact) break;
      slope = (*other - at_before) / (x - before);  // of the last step: as good, and no pass
      before = x;
      at_before = *other;
      x += along(left, slope);
    }
    if (best_residual <= limits_.residual) add(number, right, right * std::exp(best), best_residual);
  }

  void add(const ConfigNumber& number, double right, double found, double residual) {
    Explanation explanation;
    explanation.name = fmt::format("{}-{:.6g}", number.name, found);
    explanation.sentence = fmt::format("{} is {:.6g} where it should be {:.6g}", number.text, found, right);
    explanation.fit.residual = explanation.fit.without_factor = residual;
    found_.push_back(std::move(explanation));
  }

  const WrongSubject& subject_;
  const FitGauge& gauge_;
  PartsLimits limits_;
  const std::function<Tensors(const WrongSubject&, const WrongSettings&)>& run_;
  at::Tensor truth_, error_;
  std::vector<Explanation> found_;
};

}  // namespace

std::vector<Explanation> explain_by_numbers(
    const WrongSubject& subject, const FitGauge& gauge, const Tensors& truth, const PartsLimits& limits,
    const std::function<Tensors(const WrongSubject&, const WrongSettings&)>& run) {
  return NumberSearch(subject, gauge, truth, limits, run).search();
}

}  // namespace streambp::verify
