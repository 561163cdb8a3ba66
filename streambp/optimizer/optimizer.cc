#include "streambp/optimizer/optimizer.h"

#include <cmath>
#include <map>
#include <utility>

#include "streambp/error.h"
#include "streambp/optimizer/adamw.h"
#include "streambp/optimizer/galore.h"
#include "streambp/optimizer/master_weights.h"
#include "streambp/optimizer/natural_galore.h"

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
  return {"sgd", "adamw", "galore", "natural-galore"};
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
  require(settings.history >= 1, "history", static_cast<double>(settings.history), "1 or more");
  require(settings.damping > 0.0 && std::isfinite(settings.damping), "damping", settings.damping, "above 0");
  std::unique_ptr<Optimizer> optimizer;
  if (settings.name == "sgd") optimizer = std::make_unique<Sgd>(settings);
  if (settings.name == "adamw") optimizer = std::make_unique<AdamW>(settings);
  if (settings.name == "galore") optimizer = std::make_unique<GaLore>(settings);
  if (settings.name == "natural-galore") optimizer = std::make_unique<NaturalGaLore>(settings);
  if (optimizer != nullptr && settings.master_weights)
    optimizer = std::make_unique<MasterWeights>(std::move(optimizer));
  if (optimizer != nullptr) return optimizer;
  throw InputError("optimizer '{}': expected one of {}", settings.name, fmt::join(optimizer_names(), ", "));
}

}  // namespace streambp
