#include "verify/diagnose/parts/few_parameters.h"

#include <fmt/format.h>
#include <utility>

namespace streambp::verify {

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
  return all;
}

}  // namespace streambp::verify
