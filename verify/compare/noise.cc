#include "verify/compare/noise.h"

#include <algorithm>
#include <cmath>

#include <ATen/CPUGeneratorImpl.h>

#include "streambp/ops/transformers_rounding.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// Longer batches are run by streambp: standard would hold the activations of all layers.
constexpr int64_t kLongBatch = 4096;

/// Whether the value of a parameter can be read now: one in 4 or 8 bits has memory while its layer is run. It
/// is frozen, and keeps the numbers of its file in every dtype.
bool is_there(const Parameter& parameter) {
  return parameter.value.storage().data() != nullptr;
}

void copy_weights(const Truth& from, Truth& to) {
  const auto copy = [](const Model& source, Model& target) {
    for (const auto& parameter : target.parameters()) {
      const Parameter& own = source.parameter(parameter->name);
      if (is_there(*parameter) && is_there(own)) parameter->value.copy_(own.value);
    }
  };
  copy(from.model, to.model);
  if (to.teacher) copy(*from.teacher, *to.teacher);
}

template <typename Change>
void change_weights(Truth& truth, const Change& change) {
  const auto of = [&](Model& model) {
    for (const auto& parameter : model.parameters()) {
      if (is_there(*parameter)) parameter->value.copy_(change(parameter->value));
    }
  };
  of(truth.model);
  if (truth.teacher) of(*truth.teacher);
}

Tensors gradients_by(Truth& truth, const Settings& settings) {
  return evaluate(truth.model, truth.batch, *truth.objective, settings,
                  truth.teacher ? &*truth.teacher : nullptr)
      .gradients;
}

/// An embedding's row gets the sum of its tokens' gradients, which frameworks add one after another in the
/// dtype of the parameter (ATen's embedding_dense_backward on a CPU), and this project wide. k terms are then
/// off by about sqrt(k) u / 4 of their sum at random and, where they have the same sign, stall: (k u)^2 / 64
/// fits 1,024 equal terms in bfloat16. u is the unit roundoff.
void add_sums_of_tokens(NoiseSample& sample, const Tensors& exact, const Batch& batch, at::ScalarType dtype) {
  const auto deviation = sample.find("model.embed_tokens.weight");
  if (deviation == sample.end()) return;
  const at::Tensor& truth = exact.at(deviation->first);
  const double norm = norm_of(truth);
  if (!(norm > 0.0)) return;
  const double u = unit_roundoff(dtype);
  const at::Tensor counts = at::bincount(batch.tokens, {}, truth.size(0)).to(at::kDouble);
  const at::Tensor share = (counts.sqrt() * (u / 4.0) + (counts * u).square() / 64.0).clamp_max(1.0);
  const double more = norm_of(truth * share.unsqueeze(1)) / norm;
  deviation->second.error = std::hypot(deviation->second.error, more);
}

}  // namespace

bool are_numbers_of(at::ScalarType dtype, const Model& model) {
  return std::all_of(model.parameters().begin(), model.parameters().end(), [&](const auto& parameter) {
    return !is_there(*parameter) ||
           at::equal(parameter->value.to(dtype).to(parameter->value.scalar_type()), parameter->value);
  });
}

void round_weights(Truth& truth, at::ScalarType dtype) {
  change_weights(truth, [&](const at::Tensor& value) { return value.to(dtype); });
}

void restore_weights(Truth& truth) {
  copy_weights(truth.open_again(at::kDouble), truth);
}

namespace {

Settings settings_of_run(int run, const Batch& batch) {
  Settings settings;
  settings.method = batch.size() > kLongBatch ? Method::kStreambp : Method::kStandard;
  if (run == 1) {
    settings.method = Method::kStreambp;
    settings.chunk = std::max<int64_t>(1, batch.size() / 4);
  }
  return settings;
}

}  // namespace

Tensors NoiseRuns::gradients(int run) const {
  const TransformersRounding as_transformers;
  Truth low = truth_.open_again(dtype_);
  return gradients_by(low, settings_of_run(run, low.batch));
}

NoiseSample NoiseRuns::next(const Tensors& exact) {
  const int run = done_++;
  const TransformersRounding as_transformers(static_cast<uint64_t>(run));
  Truth low = truth_.open_again(dtype_);
  const Settings settings = settings_of_run(run, low.batch);
  const auto sample = [&](const Tensors& gradients, const Tensors& truth) {
    NoiseSample result = noise_sample(gradients, truth);
    add_sums_of_tokens(result, truth, low.batch, dtype_);
    return result;
  };
  if (run < 2) return sample(gradients_by(low, settings), exact);

  // Weights moved at random round otherwise everywhere.
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(run));
  const double unit = 2.0 * unit_roundoff(dtype_);
  change_weights(low, [&](const at::Tensor& value) {
    const at::Tensor wide = value.to(at::kDouble);
    return wide + wide * unit * at::empty_like(wide).uniform_(-1.0, 1.0, generator);
  });
  Truth exact_there = truth_.open_again(at::kDouble);
  copy_weights(low, exact_there);
  Settings streamed;
  streamed.chunk = chunk_;
  return sample(gradients_by(low, settings), gradients_by(exact_there, streamed));
}

}  // namespace streambp::verify
