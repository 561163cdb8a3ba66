#include "reference/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>

#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

bool is_larger(const Scalar& a, const Scalar& b) {
  return a > b || (math::isnan(a) && !math::isnan(b));
}

}  // namespace

std::vector<std::vector<int>> largest_columns(const Matrix& x, int count) {
  require(count > 0 && count <= x.cols(), "largest_columns",
          "expected from 1 to " + std::to_string(x.cols()) + " columns, got " + std::to_string(count));
  std::vector<std::vector<int>> largest;
  for (Index i = 0; i < x.rows(); ++i) {
    std::vector<int> columns;
    for (int slot = 0; slot < count; ++slot) {
      int best = -1;
      for (int j = 0; j < x.cols(); ++j) {
        const bool is_free = std::find(columns.begin(), columns.end(), j) == columns.end();
        if (is_free && (best < 0 || is_larger(x(i, j), x(i, best)))) best = j;
      }
      columns.push_back(best);
    }
    largest.push_back(std::move(columns));
  }
  return largest;
}

std::vector<std::vector<int>> chosen_experts(const MixtureSettings& mixture, const Matrix& p,
                                             const Matrix& correction) {
  if (!mixture.corrected && mixture.n_group == 1) return largest_columns(p, mixture.num_experts_per_tok);
  Matrix choice = p;
  if (mixture.corrected) {
    require_shape("chosen_experts", "the correction", correction, 1, p.cols());
    choice.rowwise() += correction.row(0);
  }
  const Index size = p.cols() / mixture.n_group;
  for (Index t = 0; mixture.n_group > 1 && t < p.rows(); ++t) {
    Matrix groups(1, mixture.n_group);
    for (Index group = 0; group < mixture.n_group; ++group) {
      const Matrix of_group = choice.row(t).segment(group * size, size);
      const std::vector<int> best = largest_columns(of_group, 2).front();
      groups(0, group) = of_group(0, best[0]) + of_group(0, best[1]);
    }
    const std::vector<int> open = largest_columns(groups, mixture.topk_group).front();
    for (int group = 0; group < mixture.n_group; ++group) {
      const bool is_open = std::find(open.begin(), open.end(), group) != open.end();
      if (!is_open)
        choice.row(t).segment(group * size, size).setConstant(-std::numeric_limits<double>::infinity());
    }
  }
  return largest_columns(choice, mixture.num_experts_per_tok);
}

Var mixture_of_experts(const MixtureSettings& mixture, const Var& x, const Var& p,
                       const std::function<Var(int expert, const Var& rows)>& expert,
                       const Matrix& correction, const ExpertsOfTokens& given) {
  require_shape("mixture_of_experts", "the probabilities", p.value(), x.rows(), mixture.num_experts);
  auto chosen = chosen_experts(mixture, p.value(), correction);
  require(given.empty() || given.size() == chosen.size(), "mixture_of_experts",
          "expected experts of none or of each of " + std::to_string(chosen.size()) + " tokens");
  for (std::size_t t = 0; t < given.size(); ++t) {
    if (given[t].empty()) continue;
    require(given[t].size() == chosen[t].size(), "mixture_of_experts",
            "expected " + std::to_string(chosen[t].size()) + " experts of a token");
    chosen[t] = given[t];
  }

  // Of every token, slot by slot: how probable the chosen expert is.
  std::vector<Var> weights;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(mixture.num_experts_per_tok); ++slot) {
    std::vector<int> columns;
    for (const std::vector<int>& of_token : chosen) columns.push_back(of_token[slot]);
    weights.push_back(pick(p, columns));
  }
  if (mixture.norm_topk_prob) {
    Var total = std::accumulate(weights.begin() + 1, weights.end(), weights.front(), add);
    if (mixture.added_to_sum > 0.0) total = offset(total, mixture.added_to_sum);
    if (mixture.least_sum > 0.0)
      total = clip(total, mixture.least_sum, std::numeric_limits<double>::infinity());
    const Var reciprocal = exp(scale(log(total), -1.0));  // a sum of probabilities is positive
    for (Var& weight : weights) weight = mul(weight, reciprocal);
  }

  if (mixture.routed_scaling_factor != 1.0) {
    for (Var& weight : weights) weight = scale(weight, mixture.routed_scaling_factor);
  }

  std::vector<Var> outputs;
  std::vector<int> tokens;  // of the rows of all outputs, below one another
  for (std::size_t slot = 0; slot < weights.size(); ++slot) {
    for (int e = 0; e < mixture.num_experts; ++e) {
      std::vector<int> rows;
      for (std::size_t t = 0; t < chosen.size(); ++t) {
        if (chosen[t][slot] == e) rows.push_back(static_cast<int>(t));
      }
      if (rows.empty()) continue;
      outputs.push_back(scale_rows(expert(e, gather_rows(x, rows)), gather_rows(weights[slot], rows)));
      tokens.insert(tokens.end(), rows.begin(), rows.end());
    }
  }
  return scatter_rows(concat_rows(outputs), tokens, x.rows());
}

Var clamped_swiglu(const Var& gate, const Var& up, Number alpha, Number limit) {
  require(alpha != 0.0, "clamped_swiglu", "expected an alpha that is not 0");
  const Var g = clip(gate, -std::numeric_limits<double>::infinity(), limit);
  const Var u = clip(up, -limit, limit);
  return mul(offset(u, 1.0), scale(silu(scale(g, alpha)), 1.0 / alpha));
}

Var limited_swiglu(const Var& activated, const Var& up, Number limit) {
  return mul(clip(activated, -std::numeric_limits<double>::infinity(), limit), clip(up, -limit, limit));
}

Var load_balancing_loss(Tape& tape, const MixtureSettings& mixture, const Var& p) {
  require(p.rows() > 0 && p.cols() == mixture.num_experts, "load_balancing_loss",
          "expected probabilities of " + std::to_string(mixture.num_experts) + " experts, got " +
              shape_text(p.value()));
  const auto m = static_cast<Number>(p.rows());
  Matrix f = Matrix::Zero(p.cols(), 1);
  for (const std::vector<int>& of_row : largest_columns(p.value(), mixture.num_experts_per_tok)) {
    for (int e : of_row) f(e, 0) += 1.0 / m;
  }
  return scale(sum(matmul(p, tape.leaf(f))), mixture.num_experts / m);
}

}  // namespace streambp::STREAMBP_REFERENCE
