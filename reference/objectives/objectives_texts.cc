#include "reference/objectives/objectives_texts.h"

#include <numeric>
#include <string>

#include "reference/objectives/objective_terms.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// first, first + 1, ... first + count - 1
std::vector<int> range(Index first, Index count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), static_cast<int>(first));
  return numbers;
}

Var rows(const Var& x, Index first, Index count) {
  return gather_rows(x, range(first, count));
}

/// Every row divided by its length.
Var unit_rows(const Var& x) {
  return scale_rows(x, exp(scale(log(row_sum(mul(x, x))), -0.5)));
}

/// The mean over rows of ln sum_j e^{s_ij} - s_ii.
Var ranking_loss(const Var& scores) {
  return mean(sub(logsumexp(scores), pick(scores, range(0, scores.rows()))));
}

}  // namespace

TokenObjective reward(const RewardOptions& options) {
  require_range("reward", "center_rewards_coefficient", options.center_rewards_coefficient, 0.0, kInfinity);
  TokenObjective objective;
  objective.log_probabilities = false;
  objective.values = true;
  objective.loss = [options](Tape& tape, const TokenValues& heads) {
    const Index pairs = heads.values.rows() / 2;
    require(heads.values.rows() % 2 == 0, "reward",
            "expected an even number of values, got " + std::to_string(heads.values.rows()));
    std::vector<Number> margins = options.margins;
    if (margins.empty()) margins.assign(static_cast<std::size_t>(pairs), 0.0);
    require_size("reward", "margins", margins, static_cast<std::size_t>(pairs));
    const Var chosen = rows(heads.values, 0, pairs), rejected = rows(heads.values, pairs, pairs);
    const Var ahead = sub(sub(chosen, rejected), constant(tape, margins));
    const Var both = add(chosen, rejected);
    return add(scale(mean(log_sigmoid(ahead)), -1.0),
               scale(mean(mul(both, both)), options.center_rewards_coefficient));
  };
  return objective;
}

TokenObjective info_nce(const InfoNceOptions& options) {
  require(options.scale > 0.0, "infonce", "expected a positive scale, got " + std::to_string(options.scale));
  TokenObjective objective;
  objective.log_probabilities = false;
  objective.pooling = options.pooling;
  objective.loss = [options](Tape&, const TokenValues& heads) {
    const Var all = options.cosine ? unit_rows(heads.embeddings) : heads.embeddings;
    require(all.rows() > 0 && all.rows() % (2 + options.negatives) == 0, "infonce",
            "expected a multiple of " + std::to_string(2 + options.negatives) + " embeddings, got " +
                std::to_string(all.rows()));
    const Index anchors = all.rows() / (2 + options.negatives);
    const Var q = rows(all, 0, anchors), d = rows(all, anchors, all.rows() - anchors);
    const Var to_documents = ranking_loss(scale(linear(q, d), options.scale));
    if (!options.symmetric) return to_documents;
    const Var to_anchors = ranking_loss(scale(linear(rows(d, 0, anchors), q), options.scale));
    return scale(add(to_documents, to_anchors), 0.5);
  };
  return objective;
}

}  // namespace streambp::STREAMBP_REFERENCE
