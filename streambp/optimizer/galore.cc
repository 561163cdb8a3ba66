#include "streambp/optimizer/galore.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

std::map<std::string, at::Tensor> GaLore::states() const {
  std::map<std::string, at::Tensor> states = AdamW::states();
  for (const auto& [name, state] : states_) {
    state.moments.add_to(states, name);
    states[name + ".space"] = state.space;
  }
  return states;
}

void GaLore::prepare(const Parameter& parameter) {
  if (is_projected(parameter)) {
    state(parameter);
  } else {
    AdamW::prepare(parameter);
  }
}

void GaLore::step(Parameter& parameter) {
  if (!is_projected(parameter)) return AdamW::step(parameter);
  const MemoryScope scope("optimizer step");
  State& projected = state(parameter);
  at::Tensor gradient = std::exchange(parameter.gradient, {}).to(projected.space.scalar_type());
  if (projected.moments.steps % settings_.refresh == 0) choose_space(projected, gradient);
  // Of a weight that is taller than wide, the columns are projected.
  const bool tall = gradient.size(0) > gradient.size(1);
  const at::Tensor& space = projected.space;
  at::Tensor inside = tall ? gradient.matmul(space) : space.t().matmul(gradient);
  inside = transformed(parameter.name, projected, std::move(inside));
  const at::Tensor direction = projected.moments.direction(std::move(inside), settings_);
  gradient.reset();
  parameter.value.mul_(1.0 - settings_.learning_rate * settings_.weight_decay)
      .add_(tall ? direction.matmul(space.t()) : space.matmul(direction),
            -settings_.learning_rate * settings_.scale);
}

void GaLore::take_steps(const std::map<std::string, at::Tensor>& values) {
  AdamW::take_steps(values);
  for (auto& [name, state] : states_) state.moments.steps = values.at(name + ".steps").item<int64_t>();
}

bool GaLore::is_projected(const Parameter& parameter) const {
  const at::Tensor& value = parameter.value;
  return value.dim() == 2 && settings_.rank < std::min(value.size(0), value.size(1));
}

GaLore::State& GaLore::state(const Parameter& parameter) {
  State& state = states_[parameter.name];
  if (state.space.defined()) return state;
  const auto options = state_options(parameter, settings_);
  const int64_t rows = parameter.value.size(0), columns = parameter.value.size(1);
  {
    const MemoryScope scope("optimizer");
    state.space = at::zeros({std::min(rows, columns), settings_.rank}, options);
  }
  state.moments = Moments::zeros(rows > columns ? std::vector<int64_t>{rows, settings_.rank}
                                                : std::vector<int64_t>{settings_.rank, columns},
                                 options);
  prepare_projected(parameter.name, state);
  return state;
}

void GaLore::choose_space(State& state, const at::Tensor& gradient) const {
  if (!has_values(gradient)) return;  // torch has no Meta kernel of the decomposition
  const auto [u, s, vh] = at::linalg_svd(gradient.to(sum_dtype(gradient)), /*full_matrices=*/false);
  const at::Tensor vectors = gradient.size(0) > gradient.size(1) ? vh.t() : u;
  state.space.copy_(vectors.narrow(1, 0, settings_.rank));
}

}  // namespace streambp
