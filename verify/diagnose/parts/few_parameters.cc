#include "verify/diagnose/parts/few_parameters.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <utility>

#include "streambp/error.h"
#include "verify/diagnose/parts/least_squares.h"
#include "verify/diagnose/wrong_engine/run_mistake.h"

namespace streambp::verify {
namespace {

/// Of one and the same share.
constexpr double kSameShare = 1e-4;

/// How often one half of the tokens, or of the heads, is in these parameters' own gradients, and how often
/// the other.
std::optional<Explanation> by_shares(const WrongSubject& subject, const FitGauge& gauge, const Tensors& right,
                                     const std::string& alone, double limit, OwnShare share) {
  WrongSettings settings;
  settings.own_share = share;
  Tensors first, second;
  try {
    if (!wrong_engine_knows(subject)) return std::nullopt;
    const Tensors made = run_mistake(subject, settings);
    for (const auto& [name, of_truth] : right) {
      first[name] = made.at(name);
      second[name] = of_truth - made.at(name);
    }
  } catch (const InputError&) {
    return std::nullopt;
  }
  const at::Tensor one = gauge.vector_of(first), other = gauge.vector_of(second);
  const double least = kSameShare * gauge.vector_of(right).norm().item<double>();
  if (one.norm().item<double>() <= least || other.norm().item<double>() <= least) return std::nullopt;
  const Solution solution = solve({one, other}, gauge.own(), gauge.parameters());
  if (!(solution.residual <= limit)) return std::nullopt;
  const double a = solution.weights[0], b = solution.weights[1];
  if (std::abs(a - b) <= kSameShare) return std::nullopt;
  const bool heads = share == OwnShare::kFirstHeads;
  const char* const of = heads ? "heads" : "columns";
  const auto is = [](double weight, double expected) { return std::abs(weight - expected) <= kSameShare; };
  const std::string what =
      is(a, 1.0) && is(b, 0.0) ? fmt::format("have the gradient of the first half of the {} alone", of)
      : is(a, 0.0) && is(b, 1.0)
          ? fmt::format("have the gradient of the second half of the {} alone", of)
          : fmt::format(
                "have the gradient of the first half of the {0} {1:.6g} times and that of "
                "the second half {2:.6g} times",
                of, a, b);
  Fit fit;
  fit.residual = fit.without_factor = solution.residual;
  return Explanation{
      heads ? "share-of-heads" : "share-of-columns",
      fmt::format("{} {}, while all else is right: a sum over {} ranks is missing (an all-reduce)", alone,
                  what, heads ? "tensor-parallel" : "sequence-parallel"),
      fit};
}

}  // namespace

std::vector<Explanation> explain_few(const WrongSubject& subject, const Tensors& gradients,
                                     const Tensors& truth, const Location& location, double limit) {
  Tensors own, right;
  for (const std::string& name : location.parameters) {
    right[name] = truth.at(name);
    const auto found = gradients.find(name);
    own[name] = found == gradients.end() ? at::zeros_like(right[name]) : found->second;
  }
  const FitGauge gauge(own, right);
  std::vector<Explanation> all;
  for (Explanation& each : explain_by_parts(subject, gauge, {limit, gauge.parameters()})) {
    if (!each.named) continue;
    each.name += "-of-some";
    each.sentence = fmt::format("of {} alone, while all else is right: {}", location.alone, each.sentence);
    all.push_back(std::move(each));
  }
  for (const OwnShare share : {OwnShare::kFirstColumns, OwnShare::kFirstHeads}) {
    const bool heads = share == OwnShare::kFirstHeads;
    const bool may_be = std::all_of(right.begin(), right.end(), [&](const auto& entry) {
      const std::string& name = entry.first;
      return name.find(".layers.") != std::string::npos && (!heads || name.find("norm") != std::string::npos);
    });
    if (!all.empty() || !may_be) continue;
    if (auto found = by_shares(subject, gauge, right, location.alone, limit, share))
      all.push_back(std::move(*found));
  }
  return all;
}

}  // namespace streambp::verify
