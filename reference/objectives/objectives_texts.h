// Losses that compare whole texts: by a score at their end, or by their embeddings.
#pragma once

#include <vector>

#include "reference/model.h"

namespace streambp::STREAMBP_REFERENCE {

struct RewardOptions {
  Number center_rewards_coefficient = 0.0;
  std::vector<Number> margins = {};  // of each pair; empty: 0
};

/// The reward model of Bradley and Terry's preferences (Ouyang et al. 2022, https://arxiv.org/abs/2203.02155,
/// equation 1), with a margin (Touvron et al. 2023, https://arxiv.org/abs/2307.09288) and rewards drawn to 0
/// (Eisenstein et al. 2023, https://arxiv.org/abs/2312.09244). With r the 2n values, those of the chosen
/// texts before those of the rejected:
///     loss = (1 / n) sum over pairs i of [-ln sigma(r_i - r_{n+i} - margin_i) + c (r_i + r_{n+i})^2]
/// Throws std::invalid_argument when evaluated unless there is an even number of values and a margin for each
/// pair, and for a negative coefficient.
TokenObjective reward(const RewardOptions& options);

struct InfoNceOptions {
  Pooling pooling = Pooling::kLast;
  Number scale = 20.0;
  bool cosine = true;      // else the product
  int negatives = 0;       // of each anchor
  bool symmetric = false;  // half of it from the positives to the anchors
};

/// InfoNCE (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748, equation 4; sentence-transformers'
/// MultipleNegativesRankingLoss). With q the embeddings of the n anchors, d those of all documents after
/// them, positives first, and s_ij = scale sim(q_i, d_j):
///     loss = (1 / n) sum_i [ln sum_j e^{s_ij} - s_ii],   symmetric: its mean with (1 / n) sum_i [ln
///     sum_{j<n} e^{s_ji} - s_ii]
/// Throws std::invalid_argument unless scale > 0, and when evaluated unless the embeddings are a multiple of
/// 2
/// + negatives.
TokenObjective info_nce(const InfoNceOptions& options);

}  // namespace streambp::STREAMBP_REFERENCE
