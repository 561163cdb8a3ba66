#include "streambp/ops/linear.h"

#include <algorithm>
#include <utility>

#include "streambp/ops/differentiable.h"

namespace streambp {
namespace {

/// y += scale * B (A x), in place.
void add_adapter(const Linear& linear, const at::Tensor& x, at::Tensor& y) {
  if (!linear.adapter || !linear.adapter->enabled) return;
  const LowRankAdapter& adapter = *linear.adapter;
  y.addmm_(at::mm(x, adapter.a->value.t()), adapter.b->value.t(), /*beta=*/1, adapter.scale);
  if (adapter.bias != nullptr) y.add_(adapter.bias->value, adapter.scale);
}

}  // namespace

at::Tensor linear_forward(const Linear& linear, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = linear.weight->value.t();
  at::Tensor y = linear.bias == nullptr ? at::mm(x, weight) : at::addmm(linear.bias->value, x, weight);
  add_adapter(linear, x, y);
  return y;
}

at::Tensor linear_add_forward(const at::Tensor& residual, const at::Tensor& x, const Linear& map) {
  const at::NoGradGuard no_grad;
  at::Tensor y = at::addmm(residual, x, map.weight->value.t());
  if (map.bias != nullptr) y.add_(map.bias->value);
  add_adapter(map, x, y);
  return y;
}

void linear_accumulate(const Linear& linear, const at::Tensor& x, const at::Tensor& dy) {
  accumulate_product(*linear.weight, dy, x);
  if (linear.bias != nullptr) accumulate_sum(*linear.bias, dy);
  if (linear.trained_rows != nullptr) accumulate_trained_product(*linear.trained_rows, dy, x);
  if (!linear.adapter || !linear.adapter->trainable()) return;
  const LowRankAdapter& adapter = *linear.adapter;
  if (adapter.bias != nullptr) accumulate_sum(*adapter.bias, dy * adapter.scale);
  if (adapter.b->trainable())
    accumulate_product(*adapter.b, dy, at::mm(x, adapter.a->value.t()).mul_(adapter.scale));
  if (adapter.a->trainable())
    accumulate_product(*adapter.a, at::mm(dy, adapter.b->value).mul_(adapter.scale), x);
}

void linear_backward_input(const Linear& linear, const at::Tensor& dy, at::Tensor& dx) {
  if (dx.defined()) {
    dx.addmm_(dy, linear.weight->value);
  } else {
    dx = at::mm(dy, linear.weight->value);
  }
  if (!linear.adapter || !linear.adapter->enabled) return;
  const LowRankAdapter& adapter = *linear.adapter;
  dx.addmm_(at::mm(dy, adapter.b->value), adapter.a->value, /*beta=*/1, adapter.scale);
}

std::vector<at::Tensor> linear(const at::Tensor& x, const std::vector<const Linear*>& maps,
                               const std::vector<at::Tensor>& known) {
  std::vector<at::Tensor> outputs = known;
  outputs.resize(maps.size());
  for (size_t i = 0; i < maps.size(); ++i) {
    if (!outputs[i].defined()) outputs[i] = linear_forward(*maps[i], x);
  }
  const bool keep_input =
      std::any_of(maps.begin(), maps.end(), [](const Linear* map) { return map->trainable(); });
  at::Tensor kept = keep_input ? x.detach() : at::Tensor();
  return differentiable({x}, std::move(outputs), "linear", [maps, kept](std::vector<at::Tensor>&& dy) {
    at::Tensor dx;
    for (size_t i = 0; i < maps.size(); ++i) {
      if (!dy[i].defined()) continue;
      linear_accumulate(*maps[i], kept, dy[i]);
      linear_backward_input(*maps[i], dy[i], dx);
      dy[i].reset();
    }
    return std::vector<at::Tensor>{dx};
  });
}

at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Linear& map,
                      const at::Tensor& known) {
  at::Tensor kept = map.trainable() ? x.detach() : at::Tensor();
  at::Tensor y = known.defined() ? known : linear_add_forward(residual, x, map);
  return differentiable({residual, x}, std::move(y), "linear_add",
                        [&map, kept](std::vector<at::Tensor>&& dy) {
                          at::Tensor dx;
                          linear_accumulate(map, kept, dy[0]);
                          linear_backward_input(map, dy[0], dx);
                          return std::vector<at::Tensor>{dy[0], dx};
                        });
}

}  // namespace streambp
