#include "streambp/backprop/head/head.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "streambp/model/model.h"
#include "verify/long/case.h"
#include "verify/long/models.h"
#include "verify/long/truth.h"

namespace streambp::verify {
namespace {

constexpr int64_t kVocabulary = int64_t{1} << 24;  // the largest that a config may have
constexpr int64_t kSize = 8;

/// loss = sum over the tokens of w log p, with w as given.
class WeightedSum final : public Objective {
 public:
  explicit WeightedSum(at::Tensor weights) : weights_(std::move(weights)) {}
  std::string name() const override { return "weighted sum"; }
  bool separable() const override { return true; }
  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    return (values.log_probabilities * weights_.narrow(0, begin, end - begin)).sum();
  }

 private:
  at::Tensor weights_;
};

/// One token's hidden state through norm and head, by plain loops: every vocabulary entry's share
/// of d log p / d normed is summed.
struct HeadRow {
  std::vector<double> normed;
  double rstd = 0.0;
  double log_sum_exp = 0.0;
  std::vector<double> d_normed;  // -sum_v p_v w_v
};

HeadRow head_row(const Elements& weight, const double* hidden, double eps) {
  HeadRow row{std::vector<double>(kSize), 0.0, 0.0, std::vector<double>(kSize)};
  double squares = 0.0;
  for (int64_t j = 0; j < kSize; ++j) squares += hidden[j] * hidden[j];
  row.rstd = 1.0 / std::sqrt(squares / kSize + eps);
  for (int64_t j = 0; j < kSize; ++j) row.normed[static_cast<size_t>(j)] = hidden[j] * row.rstd;
  double sum = 0.0;
  double entry[kSize];
  for (int64_t v = 0; v < kVocabulary; ++v) {
    weight.load(v * kSize, kSize, entry);
    double logit = 0.0;
    for (int64_t j = 0; j < kSize; ++j) logit += entry[j] * row.normed[static_cast<size_t>(j)];
    const double exponential = std::exp(logit);
    sum += exponential;
    for (int64_t j = 0; j < kSize; ++j) row.d_normed[static_cast<size_t>(j)] -= exponential * entry[j];
  }
  for (double& d : row.d_normed) d /= sum;
  row.log_sum_exp = std::log(sum);
  return row;
}

/// A streamed head whose chunk is all `tokens` tokens. Only sampled tokens have a weight, so that the rows of
/// the head's gradient are sums over those.
void check_head(int64_t tokens, LongCheck& check) {
  const Config config = thin_config({.vocabulary = kVocabulary, .hidden = kSize, .tied = true});
  Model model = Model::random(config, {at::kFloat, at::kCPU, at::kFloat, {}}, 1);
  Parameter& head = model.parameter("model.embed_tokens.weight");
  head.value.mul_(25.0);  // logits of about 1
  model.parameter("model.norm.weight").value.fill_(1.0);
  Batch batch = random_batch({tokens}, kVocabulary, 2);
  // Targets on both sides of the elements of the logits' matrix that no longer fit.
  batch.targets.copy_((at::arange(tokens, at::kLong) * 4'567'891 + 11) % kVocabulary);
  batch.targets[tokens - 1].fill_(kVocabulary - 1);
  const std::vector<int64_t> indices = sampled_indices(tokens, {127, 128, 255, 256}, 0);
  at::Tensor weights = at::zeros({tokens}, at::kDouble);
  for (const int64_t index : indices) weights[index].fill_(1.0 + 0.25 * static_cast<double>(index % 5));

  at::Tensor hidden = patterned_normal({tokens, kSize}, at::kFloat, 3);
  const at::Tensor states = rows_at(hidden, indices);
  const HeadTargets scored = head_targets(batch, at::kCPU);
  const HeadPass pass{model, scored, {}, {}};
  const WeightedSum objective(weights);
  StreamedHead streamed(pass, objective, /*chunk=*/tokens);
  streamed.run(0, hidden);
  const HeadOutcome outcome = streamed.outcome();

  const Elements weight(head.value);
  std::vector<HeadRow> rows(indices.size());
  at::parallel_for(0, static_cast<int64_t>(indices.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rows[static_cast<size_t>(i)] =
          head_row(weight, states.const_data_ptr<double>() + i * kSize, config.rms_norm_eps);
    }
  });
  constexpr double kLimit = 1e-3;  // ATen adds up 2^24 exponentials in float32: about 1e-4
  const std::vector<int64_t> shape{static_cast<int64_t>(indices.size()), kSize};
  std::vector<double> log_probabilities, d_hidden;
  std::vector<int64_t> entries = sampled_indices(kVocabulary, {}, 20);
  for (size_t i = 0; i < indices.size(); ++i) {
    const HeadRow& row = rows[i];
    const auto target = batch.targets[indices[i]].item<int64_t>();
    entries.push_back(target);
    double entry[kSize];
    weight.load(target * kSize, kSize, entry);
    double logit = 0.0, along = 0.0;
    std::vector<double> d(kSize);
    for (size_t j = 0; j < kSize; ++j) {
      logit += entry[j] * row.normed[j];
      d[j] = (entry[j] + row.d_normed[j]) * (1.0 + 0.25 * static_cast<double>(indices[i] % 5));
      along += d[j] * row.normed[j] / kSize;
    }
    log_probabilities.push_back(logit - row.log_sum_exp);
    for (size_t j = 0; j < kSize; ++j) d_hidden.push_back(row.rstd * (d[j] - row.normed[j] * along));
  }
  check.rows("log-probabilities", rows_at(outcome.values.log_probabilities.unsqueeze(1), indices),
             at::tensor(at::ArrayRef<double>(log_probabilities), at::kDouble).unsqueeze(1), kLimit);
  check.rows("hidden states' gradients", rows_at(hidden, indices),
             at::tensor(at::ArrayRef<double>(d_hidden), at::kDouble).view(shape), kLimit);
  std::vector<double> d_weight;
  for (const int64_t v : entries) {
    std::vector<double> sum(kSize, 0.0);
    double entry[kSize];
    weight.load(v * kSize, kSize, entry);
    for (size_t i = 0; i < indices.size(); ++i) {
      double logit = 0.0;
      for (size_t j = 0; j < kSize; ++j) logit += entry[j] * rows[i].normed[j];
      const double is_target = batch.targets[indices[i]].item<int64_t>() == v ? 1.0 : 0.0;
      const double d = (is_target - std::exp(logit - rows[i].log_sum_exp)) *
                       (1.0 + 0.25 * static_cast<double>(indices[i] % 5));
      for (size_t j = 0; j < kSize; ++j) sum[j] += d * rows[i].normed[j];
    }
    d_weight.insert(d_weight.end(), sum.begin(), sum.end());
  }
  check.rows("head's gradient", rows_at(head.gradient, entries),
             at::tensor(at::ArrayRef<double>(d_weight), at::kDouble).view({-1, kSize}), kLimit);
}

}  // namespace

std::vector<LongCase> long_head_cases() {
  return {{"head-2p31-float32", "129 x 2^24 logits", 11'000'000'000, false,
           [](LongCheck& check) { check_head(129, check); }},
          {"head-2p32-float32", "257 x 2^24 logits", 19'500'000'000, false,
           [](LongCheck& check) { check_head(257, check); }}};
}

}  // namespace streambp::verify
