#include "streambp/ops/linear.h"

#include <algorithm>
#include <utility>

#include "streambp/ops/differentiable.h"

namespace streambp {
namespace {

/// y += factor * scale * B (A x), in place.
void add_adapter(const Linear& linear, const at::Tensor& x, at::Tensor& y, double factor = 1.0) {
  if (!linear.adapter || !linear.adapter->enabled) return;
  const LowRankAdapter& adapter = *linear.adapter;
  const double scale = factor * adapter.scale;
  y.addmm_(at::mm(x, adapter.a->value.t()), adapter.b->value.t(), /*beta=*/1, scale);
  if (adapter.bias != nullptr) y.add_(adapter.bias->value, scale);
}

/// y += out(in(x)), in place.
void add_pair(const LinearPair& pair, const at::Tensor& x, at::Tensor& y) {
  if (!pair.is_there()) return;
  const at::Tensor inner = linear_forward(*pair.in, x);
  y.addmm_(inner, pair.out->weight->value.t());
  add_adapter(*pair.out, inner, y);
}

}  // namespace

at::Tensor linear_forward(const Linear& linear, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = linear.weight->value.t();
  at::Tensor y = linear.bias == nullptr ? at::mm(x, weight) : at::addmm(linear.bias->value, x, weight);
  add_adapter(linear, x, y);
  add_pair(linear.pair, x, y);
  return linear.output_scale == 1.0 ? y : y.mul_(linear.output_scale);
}

at::Tensor linear_add_forward(const at::Tensor& residual, const at::Tensor& x, const Linear& map) {
  const at::NoGradGuard no_grad;
  const double scale = map.output_scale;
  at::Tensor y = at::addmm(residual, x, map.weight->value.t(), /*beta=*/1, scale);
  if (map.bias != nullptr) y.add_(map.bias->value, scale);
  add_adapter(map, x, y, scale);
  add_pair(map.pair, x, y);
  return y;
}

void linear_accumulate(const Linear& linear, const at::Tensor& x, const at::Tensor& dy) {
  const double scale = linear.output_scale;
  accumulate_product(*linear.weight, dy, x, scale);
  if (linear.bias != nullptr) accumulate_sum(*linear.bias, scale == 1.0 ? dy : dy * scale);
  if (linear.trained_rows != nullptr)
    accumulate_trained_product(*linear.trained_rows, dy, scale == 1.0 ? x : x * scale);
  if (const LinearPair& pair = linear.pair; pair.is_there()) {
    if (pair.out->trainable()) linear_accumulate(*pair.out, linear_forward(*pair.in, x), dy);
    if (pair.in->trainable()) {
      at::Tensor d_inner;
      linear_backward_input(*pair.out, dy, d_inner);
      linear_accumulate(*pair.in, x, d_inner);
    }
  }
  if (!linear.adapter || !linear.adapter->trainable()) return;
  const LowRankAdapter& adapter = *linear.adapter;
  const double of_adapter = scale * adapter.scale;
  if (adapter.bias != nullptr) accumulate_sum(*adapter.bias, dy * of_adapter);
  if (adapter.b->trainable())
    accumulate_product(*adapter.b, dy, at::mm(x, adapter.a->value.t()).mul_(of_adapter));
  if (adapter.a->trainable())
    accumulate_product(*adapter.a, at::mm(dy, adapter.b->value).mul_(of_adapter), x);
}

void linear_backward_input(const Linear& linear, const at::Tensor& dy, at::Tensor& dx) {
  const double scale = linear.output_scale;
  if (dx.defined()) {
    dx.addmm_(dy, linear.weight->value, /*beta=*/1, scale);
  } else {
    dx = at::mm(dy, linear.weight->value);
    if (scale != 1.0) dx.mul_(scale);
  }
  if (linear.pair.is_there()) {
    at::Tensor d_inner;
    linear_backward_input(*linear.pair.out, dy, d_inner);
    linear_backward_input(*linear.pair.in, d_inner, dx);
  }
  if (!linear.adapter || !linear.adapter->enabled) return;
  const LowRankAdapter& adapter = *linear.adapter;
  dx.addmm_(at::mm(dy, adapter.b->value), adapter.a->value, /*beta=*/1, scale * adapter.scale);
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
