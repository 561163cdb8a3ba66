// Optimizers against torch's formulas written out, and passes that use their gradients up against passes that
// leave them for a step afterwards: the same weights to the last bit.
#include "streambp/optimizer/optimizer.h"

#include <cmath>
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "verify/tests/streambp/model/adapter_testing.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

OptimizerSettings settings_of(const std::string& name) {
  OptimizerSettings settings;
  settings.name = name;
  settings.learning_rate = 0.05;
  settings.rank = 5;
  settings.refresh = 2;
  settings.history = 3;
  return settings;
}

TEST(Optimizer, SgdSubtractsTheGradient) {
  Parameter w = parameter(random({4, 3}, 1));
  w.gradient = random({4, 3}, 2);
  const at::Tensor expected = w.value - 0.05 * w.gradient;
  make_optimizer(settings_of("sgd"))->step(w);
  expect_near(w.value, expected, "weight");
}

TEST(Optimizer, AdamWFollowsItsFormula) {
  const OptimizerSettings settings = settings_of("adamw");
  const auto optimizer = make_optimizer(settings);
  Parameter w = parameter(random({4, 3}, 1));
  at::Tensor expected = w.value.clone(), m = at::zeros({4, 3}, at::kDouble), v = m.clone();
  for (int step = 1; step <= 4; ++step) {
    const at::Tensor g = random({4, 3}, 10 + static_cast<uint64_t>(step));
    m = settings.beta1 * m + (1.0 - settings.beta1) * g;
    v = settings.beta2 * v + (1.0 - settings.beta2) * g * g;
    const at::Tensor unbiased_m = m / (1.0 - std::pow(settings.beta1, step));
    const at::Tensor unbiased_v = v / (1.0 - std::pow(settings.beta2, step));
    expected = expected - settings.learning_rate * (unbiased_m / (unbiased_v.sqrt() + settings.epsilon) +
                                                    settings.weight_decay * expected);
    w.gradient = g.clone();
    optimizer->step(w);
    expect_near(w.value, expected, "weight");
  }
}

/// A gradient of rank 2 lies in the space that its singular vectors span: nothing is lost by projecting, and
/// the step is adamw's in other coordinates.
TEST(Optimizer, GaloreStepsInsideTheGradientsSpace) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{9, 20}, {20, 9}}) {
    OptimizerSettings settings = settings_of("galore");
    settings.rank = 2;
    settings.weight_decay = 0.0;
    const auto optimizer = make_optimizer(settings);
    Parameter w = parameter(random(shape, 1));
    const at::Tensor before = w.value.clone();
    const at::Tensor g = random({shape[0], 2}, 2).matmul(random({2, shape[1]}, 3));
    w.gradient = g.clone();
    optimizer->step(w);
    const at::Tensor moved = before - w.value;
    const auto [u, s, vh] = at::linalg_svd(g, false);
    const at::Tensor space = shape[0] > shape[1] ? vh.narrow(0, 0, 2) : u.narrow(1, 0, 2).t();
    const at::Tensor inside =
        shape[0] > shape[1] ? moved.matmul(space.t()).matmul(space) : space.t().matmul(space.matmul(moved));
    expect_near(inside, moved, "the step's projection", 1e-12);
    // Adam's first step is the gradient's sign, here of its coordinates: 2 x 20 of them, each 1.
    const double expected = settings.learning_rate * settings.scale * std::sqrt(2.0 * 20.0);
    EXPECT_TRUE(std::abs(moved.norm().item<double>() - expected) <= 1e-6 * expected);
  }
}

/// Natural GaLore by its formula written out in float64: the empirical Fisher matrix of the last projected
/// gradients as a dense matrix, and a solution of it.
class DenseNaturalGalore {
 public:
  explicit DenseNaturalGalore(const OptimizerSettings& settings) : settings_(settings) {}

  /// What is added to a weight without decay.
  at::Tensor step(const at::Tensor& gradient) {
    const bool tall = gradient.size(0) > gradient.size(1);
    if (steps_ % settings_.refresh == 0) {
      const auto [u, s, vh] = at::linalg_svd(gradient, false);
      space_ = (tall ? vh.t() : u).narrow(1, 0, settings_.rank).clone();
    }
    const at::Tensor projected = tall ? gradient.matmul(space_) : space_.t().matmul(gradient);
    latest_.push_back(projected.reshape({-1}));
    if (static_cast<int64_t>(latest_.size()) > settings_.history) latest_.erase(latest_.begin());
    at::Tensor fisher = settings_.damping * at::eye(projected.numel(), at::kDouble);
    for (const at::Tensor& r : latest_) fisher = fisher + at::outer(r, r);
    const at::Tensor natural = at::linalg_solve(fisher, latest_.back()).view(projected.sizes());
    ++steps_;
    first_ = average(first_, natural, settings_.beta1);
    second_ = average(second_, natural * natural, settings_.beta2);
    const at::Tensor direction =
        (first_ / (1.0 - std::pow(settings_.beta1, steps_))) /
        ((second_ / (1.0 - std::pow(settings_.beta2, steps_))).sqrt() + settings_.epsilon);
    return -settings_.learning_rate * settings_.scale *
           (tall ? direction.matmul(space_.t()) : space_.matmul(direction));
  }

 private:
  static at::Tensor average(const at::Tensor& mean, const at::Tensor& value, double beta) {
    return mean.defined() ? beta * mean + (1.0 - beta) * value : (1.0 - beta) * value;
  }

  OptimizerSettings settings_;
  at::Tensor space_, first_, second_;
  std::vector<at::Tensor> latest_;
  int64_t steps_ = 0;
};

/// Steps of natural-galore and of the formula on gradients of `norm` times a random matrix of unit entries:
/// more of them than the history holds, over several choices of the space. The largest relative distance.
double distance_to_dense(const OptimizerSettings& settings, const std::vector<int64_t>& shape,
                         at::ScalarType dtype, double norm) {
  const auto optimizer = make_optimizer(settings);
  DenseNaturalGalore dense(settings);
  Parameter w = parameter(at::zeros(shape, dtype));
  double worst = 0.0;
  for (uint64_t step = 0; step < 8; ++step) {
    // Alike, as gradients of a training run are.
    const at::Tensor gradient = norm * (random(shape, 5) + 0.3 * random(shape, 10 + step)).to(dtype);
    w.value.zero_();
    w.gradient = gradient.clone();
    optimizer->step(w);
    worst = std::max(worst, relative_distance(w.value.to(at::kDouble), dense.step(gradient.to(at::kDouble))));
  }
  return worst;
}

TEST(Optimizer, NaturalGaloreAppliesTheInverseFisherMatrix) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{9, 20}, {20, 9}}) {
    for (const int64_t history : {1, 3, 20}) {
      OptimizerSettings settings = settings_of("natural-galore");
      settings.weight_decay = 0.0;
      settings.refresh = 5;
      settings.history = history;
      for (const double damping : {1e-3, 10.0}) {
        settings.damping = damping;
        const double distance = distance_to_dense(settings, shape, at::kDouble, 1.0);
        // The dense matrix has a condition of up to 1e7.
        EXPECT_TRUE(distance <= 1e-10) << history << " " << damping << ": " << distance;
      }
      // Of one gradient alone it is a multiple of it, which Adam does not see; of several it turns it.
      settings.damping = 1e-3;
      OptimizerSettings plain = settings;
      plain.name = "galore";
      const auto natural = make_optimizer(settings), other = make_optimizer(plain);
      Parameter a = parameter(at::zeros(shape, at::kDouble)), b = parameter(at::zeros(shape, at::kDouble));
      for (uint64_t step = 0; step < 3; ++step) {
        a.gradient = random(shape, 20 + step);
        b.gradient = a.gradient.clone();
        natural->step(a);
        other->step(b);
        const double apart = relative_distance(a.value, b.value);
        EXPECT_EQ(apart <= 1e-4, step == 0) << apart;
      }
    }
  }
}

/// Gradients of a norm of 1,000 and more: g / damping less what Woodbury's identity takes from it would be
/// float32's rounding errors alone, 1e9 times as large as what remains.
TEST(Optimizer, NaturalGaloreIsAsPreciseForLargeGradients) {
  OptimizerSettings settings = settings_of("natural-galore");
  settings.weight_decay = 0.0;
  settings.refresh = 100;
  const double distance = distance_to_dense(settings, {9, 20}, at::kFloat, 100.0);
  EXPECT_TRUE(distance <= 1e-3) << distance;
}

/// The same gradient again and again, of a size at which the damping is lost in float64: still a step.
TEST(Optimizer, NaturalGaloreStaysFiniteForEqualGradients) {
  OptimizerSettings settings = settings_of("natural-galore");
  settings.epsilon = 1e-30;
  const auto optimizer = make_optimizer(settings);
  Parameter w = parameter(at::zeros({9, 20}, at::kDouble));
  for (int step = 0; step < 6; ++step) {
    w.gradient = 1e9 * random({9, 20}, 5);
    optimizer->step(w);
    EXPECT_TRUE(w.value.isfinite().all().item<bool>()) << step;
    EXPECT_GT(w.value.abs().max().item<double>(), 0.0);
  }
}

/// What is predicted on the meta device, and that a step there needs no values.
TEST(Optimizer, StatesTakeTheBytesThatADryRunSays) {
  install_meters();
  for (const std::string& name : optimizer_names()) {
    OptimizerSettings settings = settings_of(name);
    const auto bytes_on = [&](c10::DeviceType device) {
      const auto live = [&] {
        reset_peak(device);
        const std::map<std::string, int64_t> scopes = read_meter(device).at_peak;
        return scopes.contains("optimizer") ? scopes.at("optimizer") : 0;
      };
      const int64_t before = live();
      const auto optimizer = make_optimizer(settings);
      const auto options = at::TensorOptions(at::kFloat).device(device);
      for (const auto& [index, shape] :
           {std::pair{0, std::vector<int64_t>{9, 20}}, {1, {20, 9}}, {2, {11}}}) {
        Parameter one = parameter(at::ones(shape, options));
        one.name = std::to_string(index);
        optimizer->prepare(one);
        one.gradient = at::ones(shape, options);
        optimizer->step(one);
      }
      return live() - before;
    };
    const int64_t measured = bytes_on(at::kCPU), predicted = bytes_on(at::kMeta);
    EXPECT_EQ(measured, predicted) << name;
    // Of rank 5, with 3 gradients kept: averages of 5 x 20 numbers and a space of 9 x 5, twice; those of 11.
    const int64_t averages = 4 * 2 * (100 + 100), spaces = 4 * 2 * 45, plain = 4 * 2 * 11;
    const int64_t histories = 2 * (4 * 3 * 100 + 8 * 3 * 3);
    const std::map<std::string, int64_t> expected{{"sgd", 0},
                                                  {"adamw", 4 * 2 * (180 + 180) + plain},
                                                  {"galore", averages + spaces + plain},
                                                  {"natural-galore", averages + spaces + plain + histories}};
    EXPECT_EQ(measured, expected.at(name)) << name;
  }
}

/// Of a half-precision parameter with a master: the steps of a float32 parameter, rounded each time; also
/// after its states have been put into another optimizer.
TEST(Optimizer, MasterWeightsAreSteppedInFloat32) {
  for (const std::string& name : optimizer_names()) {
    for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
      OptimizerSettings settings = settings_of(name);
      auto alone = make_optimizer(settings);
      settings.master_weights = true;
      auto optimizer = make_optimizer(settings);
      Parameter narrow = parameter(random({9, 12}, 1).to(half)),
                wide = parameter(narrow.value.to(at::kFloat));
      optimizer->prepare(narrow);
      for (uint64_t step = 1; step <= 4; ++step) {
        if (step == 3) {
          std::map<std::string, at::Tensor> values;
          for (const auto& [state, value] : optimizer->states()) values[state] = value.clone();
          optimizer = make_optimizer(settings);
          Parameter elsewhere = parameter(at::zeros_like(narrow.value));
          optimizer->prepare(elsewhere);
          optimizer->restore(values);
        }
        const at::Tensor gradient = random({9, 12}, 10 + step).to(half);
        narrow.gradient = gradient.clone();
        wide.gradient = gradient.to(at::kFloat);
        optimizer->step(narrow);
        alone->step(wide);
        EXPECT_TRUE(at::equal(narrow.value, wide.value.to(half))) << name << " " << step;
        EXPECT_TRUE(at::equal(optimizer->states().at(narrow.name + ".master"), wide.value)) << name;
      }
    }
  }
}

/// Parameters that are wide enough have no master, and half-precision ones states of the dtype asked for.
TEST(Optimizer, MasterWeightsAreOfHalfPrecisionAlone) {
  OptimizerSettings settings = settings_of("adamw");
  settings.master_weights = true;
  settings.dtype = at::kBFloat16;
  const auto optimizer = make_optimizer(settings);
  Parameter narrow = parameter(random({4}, 1).to(at::kBFloat16)), wide = parameter(random({4}, 1));
  narrow.name = "narrow";
  wide.name = "wide";
  optimizer->prepare(narrow);
  optimizer->prepare(wide);
  const std::map<std::string, at::Tensor> states = optimizer->states();
  EXPECT_EQ(states.count("wide.master"), 0U);
  EXPECT_EQ(states.at("narrow.master").scalar_type(), at::kFloat);
  EXPECT_EQ(states.at("narrow.first").scalar_type(), at::kBFloat16);
  EXPECT_EQ(states.at("wide.first").scalar_type(), at::kDouble);
}

TEST(Optimizer, RefusesNumbersOutOfTheirRange) {
  OptimizerSettings settings = settings_of("adamw");
  settings.beta2 = 1.0;
  EXPECT_THROW(make_optimizer(settings), InputError);
  EXPECT_THROW(make_optimizer(settings_of("lion")), InputError);
  settings = settings_of("natural-galore");
  settings.history = 0;
  EXPECT_THROW(make_optimizer(settings), InputError);
  settings.history = 3;
  settings.damping = 0.0;
  EXPECT_THROW(make_optimizer(settings), InputError);
  settings = settings_of("sgd");
  settings.learning_rate = std::nan("");
  EXPECT_THROW(make_optimizer(settings), InputError);
}

/// Three passes that use gradients up, on `fused`, against passes and steps afterwards, on `plain`: both the
/// same model.
void expect_the_same_weights(Model& fused, Model& plain, const std::string& optimizer_name) {
  const auto consumed = make_optimizer(settings_of(optimizer_name)),
             afterwards = make_optimizer(settings_of(optimizer_name));
  Settings settings;
  settings.chunk = 5;
  for (uint64_t pass = 0; pass < 4; ++pass) {
    Batch batch = random_batch({13, 4}, fused.config().vocab_size, pass);
    // Gradients of zeros: averages and weights decay all the same.
    if (pass == 2) batch.targets.fill_(kNoTarget);
    const auto objective = make_objective("sft", batch, {});
    settings.consumer = consumed.get();
    const double loss = backpropagate(fused, batch, *objective, settings).loss;
    settings.consumer = nullptr;
    plain.zero_gradients();
    EXPECT_EQ(loss, backpropagate(plain, batch, *objective, settings).loss);
    for (const auto& parameter : plain.parameters()) {
      if (!parameter->trainable()) continue;
      const at::Tensor gradient = parameter->gradient.clone();
      afterwards->step(*parameter);
      parameter->gradient = gradient;
    }
    // The parts of fused maps look at the gradients that were there before.
    plain.defer_gradients();
    std::vector<Parameter*> all;
    for (const auto& parameter : plain.parameters()) all.push_back(parameter.get());
    plain.allocate_gradients(all);
  }
  for (const auto& parameter : plain.parameters()) {
    const Parameter& other = fused.parameter(parameter->name);
    EXPECT_TRUE(at::equal(other.value, parameter->value)) << parameter->name;
    EXPECT_FALSE(other.gradient.defined()) << parameter->name;
    EXPECT_EQ(other.trainable(), parameter->trainable()) << parameter->name;
  }
}

class Fused : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Fused, PassesEndWithTheSameWeights) {
  const auto& [preset_name, optimizer_name] = GetParam();
  const Config config = preset(preset_name);
  const Model::Placement placement{at::kDouble, at::kCPU, at::kDouble, {}};
  Model fused = Model::random(config, placement, 1), plain = Model::random(config, placement, 1);
  expect_the_same_weights(fused, plain, optimizer_name);
}

TEST(Fused, AdaptersOfEveryKindEndTheSame) {
  for (const AdapterVariant& variant : adapter_variants()) {
    Model fused = adapted_model(variant), plain = adapted_model(variant);
    const Model before = adapted_model(variant);
    expect_the_same_weights(fused, plain, "adamw");
    for (const auto& parameter : before.parameters()) {
      if (is_peft_name(parameter->name)) {
        EXPECT_FALSE(at::equal(fused.parameter(parameter->name).value, parameter->value)) << parameter->name;
      }
    }
  }
}

using Names = std::pair<std::string, std::string>;
INSTANTIATE_TEST_SUITE_P(Models, Fused,
                         testing::Values(Names{"qwen3-tiny", "sgd"}, Names{"llama-tied-tiny", "adamw"},
                                         Names{"phi3-tiny", "adamw"}, Names{"gemma3-tiny", "galore"},
                                         Names{"qwen3-moe-tiny", "galore"},
                                         Names{"llama-tied-tiny", "natural-galore"}));

TEST(Fused, OneLayersGradientsAreAliveAtATime) {
  install_meters();
  const Config config = preset("qwen3-8b");
  const auto gradients_at_peak = [&](bool fuse) {
    Model model = Model::random(config, {at::kBFloat16, at::kMeta, at::kBFloat16, {}}, 1);
    const auto optimizer = make_optimizer(settings_of("sgd"));
    Settings settings;
    if (fuse) {
      model.defer_gradients();
      settings.consumer = optimizer.get();
    }
    const Batch batch = random_batch({8192}, config.vocab_size, 1);
    reset_peak(at::kMeta);
    backpropagate(model, batch, *make_objective("sft", batch, {}), settings);
    return read_meter(at::kMeta).at_peak.at("gradients");
  };
  const int64_t all = gradients_at_peak(false), alive = gradients_at_peak(true);
  // The largest share is the head's, 151,936 x 4096.
  // In half precision those of norms, and of the matrices of the layer that is run, are also held in float32
  // while chunks add to them, and next to the head's lies what rounding leaves out of each.
  const int64_t norms =
      config.num_hidden_layers * 2 * (config.hidden_size + config.head_dim) + config.hidden_size;
  const int64_t head = int64_t{151936} * 4096;
  const int64_t layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288;
  EXPECT_EQ(all, 2 * parameter_count(config) + 4 * norms + 2 * head + 4 * layer);
  EXPECT_LE(alive, 2 * (2 * head) + 2 * 4096);
}

}  // namespace
}  // namespace streambp
