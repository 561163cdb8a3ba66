#include "verify/diagnose/parts/factor_words.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace streambp::verify {
namespace {

/// A factor is no better known.
constexpr double kFactorRounding = 1e-9;

}  // namespace

void FactorWords::add(const Fit& fit, std::string& name, std::string& sentence) const {
  if (!fit.has_factor()) return;
  std::vector<const Scaling*> same = scalings_like(fit);
  const std::optional<Scaling> clipped = clipping(fit),
                               other = other_count(subject_, fit.factor, fit.factor_error);
  if (clipped) same.insert(same.begin(), &*clipped);
  if (same.empty() && other) same.push_back(&*other);
  std::vector<std::string> or_else;
  for (const Scaling* each : same) or_else.push_back(each->sentence);
  name += (name.empty() ? "" : " + ") +
          (same.empty() ? fmt::format("times {:.6g}", fit.factor) : same.front()->name);
  sentence += (sentence.empty() ? "" : "; and ") +
              (same.empty() ? fmt::format("all gradients have a factor of {:.6g}", fit.factor)
                            : fmt::format("{}", fmt::join(or_else, ", or ")));
}

std::optional<Scaling> FactorWords::clipping(const Fit& fit) const {
  const double norm = norm_of_all(gradients_), exponent = std::log2(std::abs(fit.factor));
  const double error = std::max(fit.factor_error, 1e-5);
  for (const double most : {0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0}) {
    if (fit.factor > 0.0 && fit.factor < 1.0 && std::abs(norm / most - 1.0) <= error)
      return Scaling{fmt::format("clipped-{:g}", most),
                     fmt::format("gradients are clipped to a norm of {:g} (max_grad_norm)", most),
                     fit.factor};
  }
  if (exponent > 6.5 && std::abs(exponent - std::round(exponent)) <= error)
    return Scaling{fmt::format("loss-scale-{:g}", fit.factor),
                   fmt::format("a loss scale of {:g} is left in", std::round(fit.factor)), fit.factor};
  return std::nullopt;
}

std::vector<const Scaling*> FactorWords::scalings_like(const Fit& fit) const {
  const auto off = [&](const Scaling& scaling) { return std::abs(fit.factor / scaling.factor - 1.0); };
  double closest = std::max(fit.factor_error, kFactorRounding);
  for (const Scaling& scaling : scalings_) closest = std::min(closest, off(scaling));
  std::vector<const Scaling*> same;
  for (const Scaling& scaling : scalings_) {
    if (off(scaling) <= closest + kFactorRounding && same.size() < 3) same.push_back(&scaling);
  }
  return same;
}

}  // namespace streambp::verify
