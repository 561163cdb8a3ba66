#include "streambp/ops/linear.h"

#include <algorithm>

#include "streambp/ops/differentiable.h"

namespace streambp {

at::Tensor linear_forward(const Linear& linear, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = linear.weight->value.t();
  return linear.bias == nullptr ? at::mm(x, weight) : at::addmm(linear.bias->value, x, weight);
}

void linear_accumulate(const Linear& linear, const at::Tensor& x, const at::Tensor& dy) {
  accumulate_product(*linear.weight, dy, x);
  if (linear.bias != nullptr) accumulate_sum(*linear.bias, dy);
}

void linear_backward_input(const Linear& linear, const at::Tensor& dy, at::Tensor& dx) {
  if (dx.defined()) {
    dx.addmm_(dy, linear.weight->value);
  } else {
    dx = at::mm(dy, linear.weight->value);
  }
}

std::vector<at::Tensor> linear(const at::Tensor& x, const std::vector<Linear>& maps) {
  std::vector<at::Tensor> outputs;
  outputs.reserve(maps.size());
  for (const Linear& map : maps) outputs.push_back(linear_forward(map, x));
  const bool keep_input =
      std::any_of(maps.begin(), maps.end(), [](const Linear& map) { return map.trainable(); });
  at::Tensor kept = keep_input ? x.detach() : at::Tensor();
  return differentiable({x}, std::move(outputs), "linear", [maps, kept](std::vector<at::Tensor>&& dy) {
    at::Tensor dx;
    for (size_t i = 0; i < maps.size(); ++i) {
      if (!dy[i].defined()) continue;
      linear_accumulate(maps[i], kept, dy[i]);
      linear_backward_input(maps[i], dy[i], dx);
      dy[i].reset();
    }
    return std::vector<at::Tensor>{dx};
  });
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Linear& map) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = at::addmm(residual, x, map.weight->value.t());
    if (map.bias != nullptr) output.add_(map.bias->value);
  }
  at::Tensor kept = map.trainable() ? x.detach() : at::Tensor();
  return differentiable({residual, x}, std::move(output), "linear_add",
                        [map, kept](std::vector<at::Tensor>&& dy) {
                          at::Tensor dx;
                          linear_accumulate(map, kept, dy[0]);
                          linear_backward_input(map, dy[0], dx);
                          return std::vector<at::Tensor>{dy[0], dx};
                        });
}

}  // namespace streambp
