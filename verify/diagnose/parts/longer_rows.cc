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
/// Lengths that are tried.
constexpr int64_t kMostEnds = 6;

/// Where tokens of a batch of rows stand in its padded input, each row from the first column on.
at::Tensor without_left_padding(const Batch& batch) {
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * batch.padded_columns;
    rows.push_back(at::arange(begin, begin + batch.offsets[i + 1] - batch.offsets[i], at::kLong));
  }
  return at::cat(rows);
}

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
  longer.padded_indices = without_left_padding(longer);
  return longer;
}

}  // namespace

std::vector<int64_t> strangers(const WrongSubject& subject, const Tensors& gradients) {
  const auto found = gradients.find("model.embed_tokens.weight");
  if (found == gradients.end() || subject.model.config().tie_word_embeddings) return {};
  at::Tensor rows = found->second.to(at::kCPU, at::kDouble).norm(2, 1);
  const double largest = rows.max().item<double>();
  rows = rows.index_fill(0, subject.batch.tokens, 0.0);
  const at::Tensor others = rows.gt(kLeastOfRow * largest).nonzero().squeeze(1);
  return {others.data_ptr<int64_t>(), others.data_ptr<int64_t>() + others.numel()};
}

namespace {

/// Of each row the last `kept` tokens.
Batch with_ends(const Batch& batch, int64_t kept) {
  Batch shorter = batch;
  std::vector<at::Tensor> tokens, targets, positions;
  shorter.offsets = {0};
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t end = batch.offsets[i + 1], begin = std::max(batch.offsets[i], end - kept);
    tokens.push_back(batch.tokens.slice(0, begin, end));
    targets.push_back(batch.targets.slice(0, begin, end));
    const int64_t before = begin - batch.offsets[i];
    positions.push_back(batch.positions.slice(0, begin, end) - before);
    shorter.offsets.push_back(shorter.offsets.back() + end - begin);
  }
  shorter.tokens = at::cat(tokens);
  shorter.targets = at::cat(targets);
  shorter.positions = at::cat(positions);
  shorter.padded_columns = std::min(batch.padded_columns, kept);
  shorter.padded_indices = without_left_padding(shorter);
  return shorter;
}

/// Whether rows of the embedding's gradient are there for the tokens that `shorter` has before the last of a
/// row, and for no others.
bool has_the_tokens_of(const Batch& shorter, const at::Tensor& there) {
  at::Tensor heard = at::zeros_like(there), known = at::zeros_like(there);
  known.index_fill_(0, shorter.tokens, true);
  for (size_t i = 0; i + 1 < shorter.offsets.size(); ++i) {
    const at::Tensor targets = shorter.targets.slice(0, shorter.offsets[i], shorter.offsets[i + 1]);
    const at::Tensor scored = targets.ne(kNoTarget).nonzero();
    if (scored.numel() > 0)
      heard.index_fill_(
          0,
          shorter.tokens.slice(0, shorter.offsets[i], shorter.offsets[i] + scored.max().item<int64_t>() + 1),
          true);
  }
  return heard.logical_and(there.logical_not()).any().item<bool>() == false &&
         there.logical_and(known.logical_not()).any().item<bool>() == false;
}

}  // namespace

std::vector<Explanation> explain_by_ends_of_rows(const WrongSubject& subject, const Tensors& gradients,
                                                 const FitGauge& gauge, const PartsLimits& limits) {
  const Batch& batch = subject.batch;
  const auto found = gradients.find("model.embed_tokens.weight");
  if (found == gradients.end() || subject.model.config().tie_word_embeddings || batch.packed ||
      batch.size() == 0 || objective_kind(subject.objective).layout != Layout::kLabels)
    return {};
  const at::Tensor norms = found->second.to(at::kCPU, at::kDouble).norm(2, 1);
  const at::Tensor there = norms.gt(kLeastOfRow * norms.max());
  int64_t longest = 0, tried = 0;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    longest = std::max(longest, batch.offsets[i + 1] - batch.offsets[i]);
  if (has_the_tokens_of(batch, there)) return {};  // all of them are
  for (int64_t kept = longest - 1; kept >= 2 && tried < kMostEnds; --kept) {
    const Batch shorter = with_ends(batch, kept);
    if (!has_the_tokens_of(shorter, there) || !shorter.targets.ne(kNoTarget).any().item<bool>()) continue;
    ++tried;
    const auto objective = make_objective(subject.objective, shorter, subject.options);
    Explanation explanation;
    explanation.name = fmt::format("last-{}-tokens", kept);
    explanation.sentence =
        fmt::format("rows are cut off on the left: of each the last {} tokens are left", kept);
    explanation.fit =
        gauge.measure(evaluate(subject.model, shorter, *objective, {}, subject.teacher).gradients);
    if (explanation.fit.residual <= limits.residual) return {explanation};
  }
  return {};
}

std::vector<Explanation> explain_by_longer_rows(const WrongSubject& subject, const Tensors& gradients,
                                                const FitGauge& gauge, const PartsLimits& limits,
                                                const std::function<bool(const WrongSubject&)>& may_be,
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
  if (!may_be({subject.model, longer, subject.objective, subject.options, {}, {}, subject.teacher}))
    return {};
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
