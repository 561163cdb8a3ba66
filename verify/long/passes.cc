#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>

#include "streambp/backprop/method.h"
#include "streambp/model/scored.h"
#include "verify/error_measure.h"
#include "verify/long/case.h"
#include "verify/long/models.h"
#include "verify/long/truth.h"

namespace streambp::verify {
namespace {

constexpr double kToStandard = 1e-12;
constexpr double kToTruth = 1e-10;

enum class Targets {
  kAll,          // every token's, also of a sequence's last one
  kSampled,      // some, so that the truth can be computed for all of them
  kMaskedChunk,  // none in tokens [1000, 3000), whole chunks of 1000
  kNone,
};

struct PassShape {
  std::vector<int64_t> lengths;
  std::vector<int64_t> chunks;
  Targets targets = Targets::kAll;
  ThinShape model = {};
};

Batch make_batch(const PassShape& shape) {
  Batch batch = random_batch(shape.lengths, shape.model.vocabulary, 5);
  const at::Tensor any = at::randint(shape.model.vocabulary, {batch.size()},
                                     at::detail::createCPUGenerator(6), at::TensorOptions().dtype(at::kLong));
  batch.targets.copy_(any);
  if (shape.targets == Targets::kNone) batch.targets.fill_(kNoTarget);
  if (shape.targets == Targets::kMaskedChunk) batch.targets.narrow(0, 1000, 2000).fill_(kNoTarget);
  if (shape.targets == Targets::kSampled) {
    std::vector<int64_t> near{46340, 65535, 131071};
    for (const int64_t chunk : shape.chunks) near.push_back(std::min(chunk, batch.size()));
    const std::vector<int64_t> indices = sampled_indices(batch.size(), near, 6);
    const at::Tensor index = at::tensor(at::ArrayRef<int64_t>(indices), at::kLong);
    batch.targets.fill_(kNoTarget).index_copy_(0, index, any.index_select(0, index));
  }
  return batch;
}

Tensors gradients_of(const Model& model) {
  Tensors gradients;
  for (const auto& parameter : model.parameters()) gradients[parameter->name] = parameter->gradient.clone();
  return gradients;
}

struct PassResult {
  Outcome outcome;
  Tensors gradients;

  double norm() const {
    double squares = 0.0;
    for (const auto& [name, gradient] : gradients) squares += std::pow(norm_of(gradient), 2);
    return std::sqrt(squares);
  }
};

/// A lone token attends to itself whatever queries and keys are: their gradients are sums that cancel, and
/// have no size of their own to relate an error to.
bool cancels(const std::string& name, const Batch& batch) {
  const bool lone = batch.size() == static_cast<int64_t>(batch.offsets.size()) - 1;
  return lone && (name.find(".q_") != std::string::npos || name.find(".k_") != std::string::npos);
}

PassResult run_pass(Model& model, const Batch& batch, const Settings& settings) {
  model.zero_gradients();
  const auto objective = make_objective("sft", batch);
  PassResult result;
  result.outcome = backpropagate(model, batch, *objective, settings);
  result.gradients = gradients_of(model);
  return result;
}

/// Log-probabilities and one entry of every parameter's gradient, from the decoder written out.
void check_with_truth(const Model& model, const Batch& batch, const PassResult& got, const std::string& what,
                      LongCheck& check) {
  const Weights<double> weights = weights_of(model);
  const std::vector<double> truth = written_log_probabilities(model.config(), weights, batch);
  const at::Tensor indices = scored_indices(batch);
  check.rows(what + ", log-probabilities against the decoder written out",
             got.outcome.log_probabilities.index_select(0, indices).unsqueeze(1),
             at::tensor(at::ArrayRef<double>(truth), at::kDouble).unsqueeze(1), kToTruth);
  // The largest entry of each: an error there is not hidden by a small gradient.
  std::vector<std::string> names;
  for (const auto& [name, gradient] : got.gradients) names.push_back(name);
  std::vector<double> derivatives(names.size()), entries(names.size());
  at::parallel_for(0, static_cast<int64_t>(names.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      const at::Tensor gradient = got.gradients.at(names[at]).flatten();
      const int64_t index = gradient.abs().argmax().item<int64_t>();
      entries[at] = gradient[index].item<double>();
      derivatives[at] = written_derivative(model.config(), weights, batch, names[at], index);
    }
  });
  for (size_t i = 0; i < names.size(); ++i) {
    const double error = cancels(names[i], batch) ? std::abs(entries[i] - derivatives[i]) / got.norm()
                                                  : relative_error(entries[i], derivatives[i]);
    check.error(what + ", an entry of " + names[i] + " against the decoder written out", error, kToTruth);
  }
}

void check_pass(const PassShape& shape, LongCheck& check) {
  const Config config = thin_config(shape.model);
  Model model = thin_model(config, 4);
  const Batch batch = make_batch(shape);
  Settings settings;
  settings.method = Method::kStandard;
  const PassResult standard = run_pass(model, batch, settings);
  settings.method = Method::kStreambp;
  for (const int64_t chunk : shape.chunks) {
    const std::string what = fmt::format("streambp chunk {}", chunk);
    settings.chunk = chunk;
    const PassResult streamed = run_pass(model, batch, settings);
    if (shape.targets == Targets::kNone) {
      check.error(what + ", loss", std::abs(streamed.outcome.loss), 0.0);
      for (const auto& [name, gradient] : streamed.gradients)
        check.error(what + ", " + name, is_zero(gradient) ? 0.0 : 1.0, 0.0);
      continue;
    }
    check.error(what + ", loss", relative_error(streamed.outcome.loss, standard.outcome.loss), kToStandard);
    check.whole(what + ", log-probabilities", streamed.outcome.log_probabilities,
                standard.outcome.log_probabilities, kToStandard);
    for (const ParameterError& error : gradient_errors(streamed.gradients, standard.gradients)) {
      const at::Tensor& gradient = streamed.gradients.at(error.name);
      const double relative = cancels(error.name, batch)
                                  ? norm_of(gradient - standard.gradients.at(error.name)) / standard.norm()
                                  : error.error;
      check.error(what + ", " + error.name, relative, kToStandard);
    }
    if (shape.targets == Targets::kSampled && chunk == shape.chunks.front())
      check_with_truth(model, batch, streamed, what, check);
  }
}

LongCase pass_case(const std::string& name, const std::string& crosses, int64_t megabytes,
                   const PassShape& shape, bool quick = false) {
  return {"pass-" + name, crosses, megabytes * 1'000'000, quick,
          [shape](LongCheck& check) { check_pass(shape, check); }};
}

}  // namespace

std::vector<LongCase> long_pass_cases() {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const ThinShape one_head{.heads = 1};
  const ThinShape windowed{.window = 512};
  const ThinShape two_layers{.layers = 2, .window = 512};
  const ThinShape sinks{.window = 512, .sinks = true};
  const ThinShape recurrent{.recurrent = true};
  const ThinShape shared{.layers = 3, .window = 512, .shared = true};
  return {
      pass_case("46341", "46,341 tokens; a chunk of 1,000 (the last is odd)", 200,
                {{46341}, {1000}, Targets::kSampled, one_head}),
      pass_case("65535", "65,535 tokens; a chunk of 65,536, more than there are", 200,
                {{65535}, {65536}, Targets::kAll, one_head}),
      pass_case("65536", "65,536 tokens; a chunk of 46,341", 200,
                {{65536}, {46341}, Targets::kAll, one_head}),
      pass_case("65537", "65,537 tokens; a chunk of 65,536, the last has one token", 200,
                {{65537}, {65536}, Targets::kSampled, one_head}),
      pass_case("120001", "batch x tokens: 3 x 40,000 + 1; a chunk of 30,011", 500,
                {{40000, 40000, 40000, 1}, {30011}, Targets::kAll, one_head}),
      pass_case("masked-chunk", "65,537 tokens within a window of 512, whole chunks without a target", 300,
                {{65537}, {1000}, Targets::kMaskedChunk, two_layers}),
      pass_case("window", "131,073 tokens within a window of 512; chunks of 1,000 and 2^63 - 1", 450,
                {{131073}, {1000, kHuge}, Targets::kSampled, windowed}, /*quick=*/true),
      pass_case("sinks", "65,537 tokens within a window of 512, with sinks; chunks of 1,000 and 65,536", 300,
                {{65537}, {1000, 65536}, Targets::kSampled, sinks}),
      pass_case(
          "shared",
          "65,537 tokens within a window of 512, three layers with one's keys and values; chunks of 1,000 "
          "and 65,536",
          500, {{65537}, {1000, 65536}, Targets::kSampled, shared}),
      pass_case("recurrent", "65,537 tokens of a recurrent layer; chunks of 1,000 and 65,536", 300,
                {{65537}, {1000, 65536}, Targets::kSampled, recurrent}, /*quick=*/true),
      pass_case("recurrent-sequences",
                "65,537 sequences of two tokens in a recurrent layer; a chunk of 1,001", 600,
                {std::vector<int64_t>(65537, 2), {1001}, Targets::kSampled, recurrent}),
      pass_case("one-token-sequences", "1,000 sequences of one token; chunks of 7, 999 and 1,001", 100,
                {std::vector<int64_t>(1000, 1), {7, 999, 1001}, Targets::kSampled}, /*quick=*/true),
      pass_case("unscored", "1,000 sequences of one token without any target", 100,
                {std::vector<int64_t>(1000, 1), {7, 1001}, Targets::kNone}, /*quick=*/true),
      pass_case("65537-sequences", "65,537 sequences of two tokens; chunks of 1,001 and 65,537", 600,
                {std::vector<int64_t>(65537, 2), {1001, 65537}, Targets::kSampled}),
  };
}

}  // namespace streambp::verify
