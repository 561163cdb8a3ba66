#include "verify/diagnose/parts/longer_rows.h"

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>

#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// Of the largest row of an embedding's gradient: less is rounding.
constexpr double kLeastOfRow = 1e-9;

/// The batch with `token`, or with each row's own first one, in front of each row.
Batch with_one_more(const Batch& batch, std::optional<int64_t> token) {
  Batch longer = batch;
  std::vector<at::Tensor> tokens, targets, positions;
  longer.offsets = {0};
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i], end = batch.offsets[i + 1];
    if (begin < end) {
      const at::Tensor first = batch.tokens.slice(0, begin, begin + 1);
      tokens.insert(tokens.end(),
                    {token ? at::full_like(first, *token) : first, batch.tokens.slice(0, begin, end)});
      targets.insert(targets.end(), {at::full_like(first, kNoTarget), batch.targets.slice(0, begin, end)});
      const at::Tensor own = batch.positions.slice(0, begin, end);
      positions.insert(positions.end(), {own.slice(0, 0, 1), own + 1});
    }
    longer.offsets.push_back(longer.offsets.back() + (begin < end ? end - begin + 1 : 0));
  }
  longer.tokens = at::cat(tokens);
  longer.targets = at::cat(targets);
  longer.positions = at::cat(positions);
  longer.rope_length = batch.rope_length == 0 ? 0 : batch.rope_length + 1;
  longer.padded_columns = batch.padded_columns + 1;
  longer.padded_indices = at::Tensor();
  return longer;
}

std::vector<int64_t> strangers(const WrongSubject& subject, const Tensors& gradients) {
  const auto found = gradients.find("model.embed_tokens.weight");
  if (found == gradients.end() || subject.model.config().tie_word_embeddings) return {};
  at::Tensor rows = found->second.to(at::kCPU, at::kDouble).norm(2, 1);
  const double largest = rows.max().item<double>();
  rows = rows.index_fill(0, subject.batch.tokens, 0.0);
  const at::Tensor others = rows.gt(kLeastOfRow * largest).nonzero().squeeze(1);
  return {others.data_ptr<int64_t>(), others.data_ptr<int64_t>() + others.numel()};
}

}  // namespace

std::vector<Explanation> explain_by_longer_rows(const WrongSubject& subject, const Tensors& gradients,
                                                const FitGauge& gauge, const PartsLimits& limits,
                                                std::vector<std::string>& notes) {
  const Batch& batch = subject.batch;
  const std::vector<int64_t> others = strangers(subject, gradients);
  if (!others.empty()) {
    const std::vector<int64_t> some(
        others.begin(), others.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(others.size(), 8)));
    notes.push_back(
        fmt::format("the embedding has gradients of {} token{} that the batch does not have ({}{}): another "
                    "batch was run",
                    others.size(), others.size() == 1 ? "" : "s", fmt::join(some, ", "),
                    others.size() > some.size() ? ", ..." : ""));
  }
  if (batch.packed || batch.size() == 0 || objective_kind(subject.objective).layout != Layout::kLabels)
    return {};
  if (others.size() > 1) return {};
  const std::optional<int64_t> token = others.empty() ? std::nullopt : std::optional(others.front());
  const Batch longer = with_one_more(batch, token);
  const auto objective = make_objective(subject.objective, longer, subject.options);
  const Tensors made = evaluate(subject.model, longer, *objective, {}, subject.teacher).gradients;
  Explanation found;
  found.name = "one-token-more";
  found.sentence = token ? fmt::format("each row begins with token {}, which is not in the batch", *token)
                         : "each row's first token is there twice";
  found.fit = gauge.measure(made);
  if (found.fit.residual <= limits.residual) return {found};
  return {};
}

}  // namespace streambp::verify
