#include "streambp/ops/ngrams.h"

#include <cmath>
#include <utility>

#include "streambp/ops/differentiable.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

constexpr double kLeast = 1e-6;  // that roots are taken of

/// How far streams are opened, and what the backward pass takes of how that came about: [n, S, 1] each, in
/// the dtype of sums.
struct Openings {
  Openings(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values)
      : size(values.size(1)), k(streams_of(keys)), q(streams_of(queries)) {
    gate = (k * q).sum(-1, /*keepdim=*/true).div_(std::sqrt(static_cast<double>(size)));
    const at::Tensor sign = gate.sign();
    size_of_gate = gate * sign;
    root = size_of_gate.clamp_min(kLeast).sqrt_();
    open = (root * sign).sigmoid_();
  }

  at::Tensor streams_of(const at::Tensor& x) const {
    return x.reshape({x.size(0), -1, size}).to(sum_dtype(x));
  }

  int64_t size;
  at::Tensor k, q;  // [n, S, D]
  at::Tensor gate, size_of_gate, root, open;
};

}  // namespace

at::Tensor ngram_tokens(const at::Tensor& tokens, const std::vector<int64_t>& offsets, int64_t size,
                        int64_t boundary) {
  const int64_t n = tokens.size(0);
  at::Tensor is_first = at::zeros({n}, at::kBool);
  for (const int64_t begin : offsets) {
    if (begin < n) is_first[begin].fill_(true);
  }
  is_first = is_first.to(tokens.device());
  const auto one_before = [&](const at::Tensor& of) {
    return at::cat({at::full({1}, boundary, of.options()), of.narrow(0, 0, n - 1)})
        .masked_fill_(is_first, boundary);
  };
  std::vector<at::Tensor> columns{tokens.to(at::kLong)};
  for (int64_t i = 1; i < size; ++i) {
    at::Tensor column = one_before(columns.back());
    if (i > 1) column.masked_fill_(columns[1].eq(boundary), boundary);
    columns.push_back(std::move(column));
  }
  return at::stack(columns, /*dim=*/1);
}

at::Tensor ngram_rows(const at::Tensor& ngrams, const std::vector<int64_t>& multipliers,
                      const std::vector<int64_t>& head_rows) {
  const auto size = static_cast<int64_t>(multipliers.size()), heads = static_cast<int64_t>(head_rows.size());
  const int64_t of_length = heads / (size - 1);
  const at::Tensor rows = at::tensor(head_rows, at::kLong).to(ngrams.device());
  const at::Tensor first = (rows.cumsum(0) - rows);
  at::Tensor mixed = ngrams.select(1, 0) * multipliers[0];
  std::vector<at::Tensor> columns;
  for (int64_t i = 1; i < size; ++i) {
    mixed = at::bitwise_xor(mixed, ngrams.select(1, i) * multipliers[static_cast<size_t>(i)]);
    columns.push_back(at::remainder(mixed.unsqueeze(1), rows.narrow(0, (i - 1) * of_length, of_length)));
  }
  return at::cat(columns, /*dim=*/1).add_(first);
}

at::Tensor look_up(const at::Tensor& x, Parameter& table, const at::Tensor& rows) {
  at::Tensor found;
  {
    const at::NoGradGuard no_grad;
    found = gather_rows(table.value, rows.flatten()).view({rows.size(0), -1}).to(x.scalar_type());
  }
  return differentiable({x}, std::move(found), "look_up", [rows, &table](std::vector<at::Tensor>&& dy) {
    accumulate_rows(table, rows.flatten(), dy[0].reshape({rows.numel(), -1}));
    return std::vector<at::Tensor>{at::Tensor()};
  });
}

at::Tensor opened_values(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values) {
  at::Tensor opened;
  {
    const at::NoGradGuard no_grad;
    const Openings openings(keys, queries, values);
    opened = (openings.open * values.to(openings.open.scalar_type()).unsqueeze(1))
                 .flatten(1)
                 .to(values.scalar_type());
  }
  return differentiable(
      {keys, queries, values}, std::move(opened), "opened_values",
      [keys = keys.detach(), queries = queries.detach(),
       values = values.detach()](std::vector<at::Tensor>&& dy) {
        const Openings of(keys, queries, values);
        const at::Tensor d = of.streams_of(dy[0]), v = values.to(d.scalar_type()).unsqueeze(1);
        const at::Tensor d_root = (d * v).sum(-1, /*keepdim=*/true) * of.open * (1.0 - of.open);
        const at::Tensor d_gate = (d_root * of.size_of_gate.ge(kLeast))
                                      .div_(of.root)
                                      .mul_(0.5 / std::sqrt(static_cast<double>(of.size)));
        return std::vector<at::Tensor>{(d_gate * of.q).flatten(1).to(keys.scalar_type()),
                                       (d_gate * of.k).flatten(1).to(queries.scalar_type()),
                                       (d * of.open).sum(1).to(values.scalar_type())};
      });
}

}  // namespace streambp
