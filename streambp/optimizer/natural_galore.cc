#include "streambp/optimizer/natural_galore.h"

#include <algorithm>
#include <cstdint>

#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// The least damping, relative to the gradients' squares: below it float64 can't tell a system of gradients
/// that are nearly alike from one without a solution.
constexpr double kLeastDamping = 1e-13;

/// z of (damping I + products) z = e_newest, [k] float64.
at::Tensor weights_of(const at::Tensor& products, int64_t newest, double damping) {
  at::Tensor unit = at::zeros({products.size(0)}, products.options());
  if (!has_values(products)) return unit;
  unit.select(0, newest).fill_(1.0);
  const at::Tensor squares = products.diagonal().sum();
  const at::Tensor added = (squares * kLeastDamping).clamp_min(damping);
  at::Tensor system = products.clone();
  system.diagonal().add_(added);
  // Without a check for failure: gradients that are not finite end in steps that are not, as elsewhere.
  return std::get<0>(at::linalg_solve_ex(system, unit, /*left=*/true, /*check_errors=*/false));
}

}  // namespace

std::map<std::string, at::Tensor> NaturalGaLore::states() const {
  std::map<std::string, at::Tensor> states = GaLore::states();
  for (const auto& [name, history] : histories_) {
    states[name + ".history"] = history.gradients;
    states[name + ".products"] = history.products;
  }
  return states;
}

void NaturalGaLore::prepare_projected(const std::string& name, const State& state) {
  const MemoryScope scope("optimizer");
  const at::Tensor& like = state.moments.first;
  const int64_t kept = settings_.history;
  histories_[name] = {at::zeros({kept, like.numel()}, like.options()),
                      at::zeros({kept, kept}, like.options().dtype(at::kDouble))};
}

at::Tensor NaturalGaLore::transformed(const std::string& name, const State& state, at::Tensor projected) {
  const History& history = histories_.at(name);
  const int64_t newest = state.moments.steps % settings_.history;
  const int64_t known = std::min(state.moments.steps + 1, settings_.history);
  history.gradients.select(0, newest).copy_(projected.view({-1}));
  // Row by row: wider copies of all rows would be several times what is kept.
  const at::Tensor own = history.gradients.select(0, newest).to(at::kDouble);
  for (int64_t i = 0; i < known; ++i) {
    const at::Tensor product = (history.gradients.select(0, i).to(at::kDouble) * own).sum();
    history.products.select(0, newest).select(0, i).copy_(product);
    history.products.select(0, i).select(0, newest).copy_(product);
  }
  const at::Tensor weights =
      weights_of(history.products.narrow(0, 0, known).narrow(1, 0, known), newest, settings_.damping);
  const auto dtype = sum_dtype(projected);
  at::Tensor natural = at::zeros(projected.sizes(), projected.options().dtype(dtype));
  for (int64_t i = 0; i < known; ++i)
    natural.view({-1}).addcmul_(history.gradients.select(0, i).to(dtype), weights.select(0, i).to(dtype));
  return natural;
}

}  // namespace streambp
