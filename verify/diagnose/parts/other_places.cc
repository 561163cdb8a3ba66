#include "verify/diagnose/parts/other_places.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "verify/diagnose/wrong_engine/other_weights.h"

namespace streambp::verify {
namespace {

/// Rows of an order that are written out.
constexpr int64_t kShownRows = 6;

/// What was done to one parameter's gradient: how it is said of its kind, and the truth with it.
struct Place {
  std::string text;
  at::Tensor made;
};

/// "layer 3", or nothing for what is in no layer.
std::string layer_of(const std::string& name) {
  static const std::string kLayers = "layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string::npos) return "";
  const size_t begin = at + kLayers.size();
  return "layer " + name.substr(begin, name.find('.', begin) - begin);
}

bool is_same(const at::Tensor& gradient, const at::Tensor& made, double limit) {
  return relative_error(gradient, made) <= limit;
}

std::optional<Place> under_another_name(const std::string& name, const at::Tensor& gradient,
                                        const Tensors& truth, double limit) {
  for (const auto& [other, of_other] : truth) {
    if (other == name || of_other.sizes() != gradient.sizes() || !is_same(gradient, of_other, limit))
      continue;
    if (kind_of(name) == kind_of(other) && layer_of(name) != layer_of(other))
      return Place{fmt::format("what is under the name of {} is {}'s", layer_of(name), layer_of(other)),
                   of_other};
    return Place{fmt::format("what is under the name of {} is {}'s", kind_of(name), kind_of(other)),
                 of_other};
  }
  return std::nullopt;
}

/// Rows in another order: found where their projections on one direction are the same numbers.
std::optional<Place> in_another_order(const std::string& name, const at::Tensor& gradient,
                                      const at::Tensor& truth, double limit, bool columns) {
  const auto rows_of = [&](const at::Tensor& x) { return columns ? x.t() : x.reshape({x.size(0), -1}); };
  const at::Tensor g = rows_of(gradient), t = rows_of(truth);
  const at::Tensor direction =
      at::randn({g.size(1)}, at::detail::createCPUGenerator(1), at::TensorOptions().dtype(at::kDouble));
  const at::Tensor own = at::mv(g, direction).argsort(), right = at::mv(t, direction).argsort();
  const at::Tensor order = at::empty_like(own).index_copy_(0, own, right);
  const at::Tensor made = t.index_select(0, order);
  if (g.size(0) < 2 || !is_same(g, made, limit)) return std::nullopt;
  std::vector<int64_t> first;
  for (int64_t i = 0; i < std::min(kShownRows, order.size(0)); ++i) first.push_back(order[i].item<int64_t>());
  return Place{fmt::format("{} of {} are in another order ({}{})", columns ? "columns" : "rows",
                           kind_of(name), fmt::join(first, ", "), order.size(0) > kShownRows ? ", ..." : ""),
               columns ? made.t() : made.reshape(truth.sizes())};
}

/// What is done to entries one by one.
std::optional<Place> entry_by_entry(const at::Tensor& gradient, const at::Tensor& truth, double limit) {
  const double largest = gradient.abs().max().item<double>();
  if (!(largest > 0.0) || gradient.numel() < 2) return std::nullopt;
  const at::Tensor clipped = truth.clamp(-largest, largest);
  if (is_same(gradient, clipped, limit))
    return Place{fmt::format("entries are clipped to {:.6g} (clip_grad_value_)", largest), clipped};
  const at::Tensor signs = truth.sign() * largest;
  if (is_same(gradient, signs, limit))
    return Place{fmt::format("each entry is its sign alone, times {:.6g}", largest), signs};
  const at::Tensor kept = gradient.ne(0);
  const at::Tensor some = truth * kept, size = truth.abs();
  if (kept.all().item<bool>() || !is_same(gradient, some, limit)) return std::nullopt;
  const double least = size.masked_select(kept).min().item<double>();
  if (size.masked_select(kept.logical_not()).max().item<double>() > least) return std::nullopt;
  return Place{"the smaller entries are 0 (sparsified, the largest alone are sent)", some};
}

std::optional<Place> place_of(const std::string& name, const at::Tensor& gradient, const Tensors& truth,
                              double limit) {
  const at::Tensor& right = truth.at(name);
  if (auto found = under_another_name(name, gradient, truth, limit)) return found;
  if (right.dim() == 2 && right.size(0) == right.size(1) && is_same(gradient, right.t(), limit))
    return Place{fmt::format("{} is transposed", kind_of(name)), right.t()};
  for (const bool columns : {false, true}) {
    if (right.dim() == 0 || (columns && right.dim() != 2)) continue;
    if (auto found = in_another_order(name, gradient, right, limit, columns)) return found;
  }
  return entry_by_entry(gradient, right, limit);
}

}  // namespace

std::vector<Explanation> explain_by_places(const Tensors& gradients, const Tensors& truth,
                                           const GradientLimits& limits, const FitGauge& gauge) {
  Tensors made = truth;
  std::set<std::string> texts;
  for (const auto& [name, right] : truth) {
    const auto given = gradients.find(name);
    if (given == gradients.end() || is_zero(right)) continue;
    const at::Tensor gradient = given->second.to(at::kDouble);
    const auto limit = limits.find(name);
    const double most = limit == limits.end() ? 0.0 : limit->second;
    if (is_same(gradient, right, most)) continue;
    std::optional<Place> place = place_of(name, gradient, truth, most);
    if (!place) return {};
    made[name] = place->made;
    texts.insert(std::move(place->text));
  }
  if (texts.empty()) return {};
  Explanation explanation{"another-place",
                          fmt::format("loss, forward and backward pass are right, what came after is not: {}",
                                      fmt::join(texts, "; ")),
                          gauge.measure(made)};
  return {std::move(explanation)};
}

}  // namespace streambp::verify
