#include "streambp/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"
#include "streambp/optimizer/master_weights.h"

namespace streambp {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerSettings& settings) : settings_(settings) {}

  void set_learning_rate(double learning_rate) override { settings_.learning_rate = learning_rate; }

  void prepare(const Parameter&) override {}
  void step(Parameter& parameter) override {
    parameter.value.add_(parameter.gradient, -settings_.learning_rate);
  }

 private:
  OptimizerSettings settings_;
};

/// Moving averages of a gradient and of its square.
struct Moments {
  at::Tensor first, second;
  int64_t steps = 0;

  static Moments zeros(const std::vector<int64_t>& shape, const at::TensorOptions& options) {
    const MemoryScope scope("optimizer");
    return {at::zeros(shape, options), at::zeros(shape, options), 0};
  }

  /// Takes `gradient` in and returns the direction of the step, written over it.
  at::Tensor direction(at::Tensor gradient, const OptimizerSettings& settings) {
    ++steps;
    const double bias1 = 1.0 - std::pow(settings.beta1, static_cast<double>(steps));
    const double bias2 = 1.0 - std::pow(settings.beta2, static_cast<double>(steps));
    gradient = gradient.to(first.scalar_type());
    first.lerp_(gradient, 1.0 - settings.beta1);
    second.mul_(settings.beta2).addcmul_(gradient, gradient, 1.0 - settings.beta2);
    at::Tensor root = (second / bias2).sqrt_().add_(settings.epsilon);
    return at::div_out(gradient, first, root).div_(bias1);
  }

  void add_to(std::map<std::string, at::Tensor>& states, const std::string& name) const {
    states[name + ".first"] = first;
    states[name + ".second"] = second;
    states[name + ".steps"] = at::scalar_tensor(steps, at::kLong).view({1});
  }
};

/// Options of states: wide enough for sums of small steps. A float32 parameter may be a half one's master.
at::TensorOptions state_options(const Parameter& parameter, const OptimizerSettings& settings) {
  const auto dtype = parameter.value.scalar_type();
  const bool half = c10::elementSize(dtype) < c10::elementSize(at::kFloat) ||
                    (settings.master_weights && dtype == at::kFloat);
  return parameter.value.options().dtype(half ? settings.dtype : dtype);
}

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerSettings& settings) : settings_(settings) {}

  void set_learning_rate(double learning_rate) override { settings_.learning_rate = learning_rate; }

  std::map<std::string, at::Tensor> states() const override {
    std::map<std::string, at::Tensor> states;
    for (const auto& [name, moments] : moments_) moments.add_to(states, name);
    return states;
  }

  void prepare(const Parameter& parameter) override { moments(parameter); }

  void step(Parameter& parameter) override {
    const MemoryScope scope("optimizer step");
    const at::Tensor direction =
        moments(parameter).direction(std::exchange(parameter.gradient, {}), settings_);
    parameter.value.mul_(1.0 - settings_.learning_rate * settings_.weight_decay)
        .add_(direction, -settings_.learning_rate);
  }

 protected:
  OptimizerSettings settings_;

 protected:
  void take_steps(const std::map<std::string, at::Tensor>& values) override {
    for (auto& [name, moments] : moments_) moments.steps = values.at(name + ".steps").item<int64_t>();
  }

 private:
  Moments& moments(const Parameter& parameter) {
    Moments& moments = moments_[parameter.name];
    if (!moments.first.defined())
      moments = Moments::zeros(parameter.value.sizes().vec(), state_options(parameter, settings_));
    return moments;
  }

  std::map<std::string, Moments> moments_;
};

class GaLore final : public AdamW {
 public:
  explicit GaLore(const OptimizerSettings& settings) : AdamW(settings) {}

  bool needs_matrices() const override { return true; }

  std::map<std::string, at::Tensor> states() const override {
    std::map<std::string, at::Tensor> states = AdamW::states();
    for (const auto& [name, state] : states_) {
      state.moments.add_to(states, name);
      states[name + ".space"] = state.space;
    }
    return states;
  }

  void prepare(const Parameter& parameter) override {
    if (is_projected(parameter)) {
      state(parameter);
    } else {
      AdamW::prepare(parameter);
    }
  }

  void step(Parameter& parameter) override {
    if (!is_projected(parameter)) return AdamW::step(parameter);
    const MemoryScope scope("optimizer step");
    State& projected = state(parameter);
    at::Tensor gradient = std::exchange(parameter.gradient, {}).to(projected.space.scalar_type());
    if (projected.moments.steps % settings_.refresh == 0) choose_space(projected, gradient);
    // Of a weight that is taller than wide, the columns are projected.
    const bool tall = gradient.size(0) > gradient.size(1);
    const at::Tensor& space = projected.space;
    const at::Tensor direction =
        projected.moments.direction(tall ? gradient.matmul(space) : space.t().matmul(gradient), settings_);
    gradient.reset();
    parameter.value.mul_(1.0 - settings_.learning_rate * settings_.weight_decay)
        .add_(tall ? direction.matmul(space.t()) : space.matmul(direction),
              -settings_.learning_rate * settings_.scale);
  }

 private:
  struct State {
    at::Tensor space;  // [min(m, n), rank], orthonormal columns
    Moments moments;
  };

  void take_steps(const std::map<std::string, at::Tensor>& values) override {
    AdamW::take_steps(values);
    for (auto& [name, state] : states_) state.moments.steps = values.at(name + ".steps").item<int64_t>();
  }

  bool is_projected(const Parameter& parameter) const {
    const at::Tensor& value = parameter.value;
    return value.dim() == 2 && settings_.rank < std::min(value.size(0), value.size(1));
  }

  State& state(const Parameter& parameter) {
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
    return state;
  }

  void choose_space(State& state, const at::Tensor& gradient) const {
    if (!has_values(gradient)) return;  // torch has no Meta kernel of the decomposition
    const auto [u, s, vh] = at::linalg_svd(gradient.to(sum_dtype(gradient)), /*full_matrices=*/false);
    const at::Tensor vectors = gradient.size(0) > gradient.size(1) ? vh.t() : u;
    state.space.copy_(vectors.narrow(1, 0, settings_.rank));
  }

  std::map<std::string, State> states_;
};

void require(bool holds, const char* what, double value, const char* expected) {
  if (!holds) throw InputError("optimizer: {} is {}, expected {}", what, value, expected);
}

}  // namespace

void Optimizer::use(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    step(*parameter);
    parameter->gradient.reset();
  }
}

void Optimizer::restore(const std::map<std::string, at::Tensor>& values) {
  const std::map<std::string, at::Tensor> own = states();
  for (const auto& [name, state] : own) {
    const auto value = values.find(name);
    if (value == values.end() || value->second.sizes() != state.sizes() ||
        value->second.scalar_type() != state.scalar_type())
      throw InputError("optimizer: no state {} of the right shape and dtype", name);
  }
  if (values.size() != own.size())
    throw InputError("optimizer: {} states, expected {}", values.size(), own.size());
  for (const auto& [name, state] : own) state.copy_(values.at(name));
  take_steps(values);
}

std::vector<std::string> optimizer_names() {
  return {"sgd", "adamw", "galore"};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings) {
  require(settings.learning_rate >= 0.0 && std::isfinite(settings.learning_rate), "learning rate",
          settings.learning_rate, "0 or more");
  require(settings.beta1 >= 0.0 && settings.beta1 < 1.0, "beta1", settings.beta1, "0 or more, below 1");
  require(settings.beta2 >= 0.0 && settings.beta2 < 1.0, "beta2", settings.beta2, "0 or more, below 1");
  require(settings.epsilon > 0.0, "epsilon", settings.epsilon, "above 0");
  require(settings.weight_decay >= 0.0, "weight decay", settings.weight_decay, "0 or more");
  require(settings.rank >= 1, "rank", static_cast<double>(settings.rank), "1 or more");
  require(settings.refresh >= 1, "refresh", static_cast<double>(settings.refresh), "1 or more");
  std::unique_ptr<Optimizer> optimizer;
  if (settings.name == "sgd") optimizer = std::make_unique<Sgd>(settings);
  if (settings.name == "adamw") optimizer = std::make_unique<AdamW>(settings);
  if (settings.name == "galore") optimizer = std::make_unique<GaLore>(settings);
  if (optimizer != nullptr && settings.master_weights)
    optimizer = std::make_unique<MasterWeights>(std::move(optimizer));
  if (optimizer != nullptr) return optimizer;
  throw InputError("optimizer '{}': expected one of {}", settings.name, fmt::join(optimizer_names(), ", "));
}

}  // namespace streambp
