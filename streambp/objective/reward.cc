// Bradley-Terry reward model: with r the value head's number at the end of a text, the loss is the mean over
// pairs of -log sigma(r_chosen - r_rejected - margin) + center_rewards_coefficient (r_chosen + r_rejected)^2.
// arXiv 2203.02155, equation 1; arXiv 2307.09288, equation 2 (margin); arXiv 2312.09244 (centering); TRL,
// RewardTrainer.compute_loss. A text has its score where transformers' GenericForSequenceClassification takes
// it: see score_ends.
#include <algorithm>

#include "streambp/error.h"
#include "streambp/model/scored.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Reward final : public Objective {
 public:
  Reward(const Batch& batch, const Options& options, const Counts& whole)
      : pairs_(number_of_pairs("reward", count(batch).sequences)),
        weight_(1.0 / static_cast<double>(std::max<int64_t>(whole.sequences / 2, 1))),
        centering_(options.number("center_rewards_coefficient", 0.0, kInfinity)) {
    const at::Tensor scored = scored_indices(batch);
    bool one_each = batch.value_mask.defined() && scored.size(0) == 2 * pairs_;
    for (int64_t i = 0; one_each && i < 2 * pairs_; ++i) {
      const auto index = scored[i].item<int64_t>();
      one_each = index >= batch.offsets[static_cast<size_t>(i)] &&
                 index < batch.offsets[static_cast<size_t>(i) + 1] && batch.value_mask[index].item<bool>();
    }
    if (!one_each) throw InputError("reward: expected one token a sequence that is asked for its value");
    margins_ = at::zeros({pairs_}, at::kDouble);
    if (batch.sequence_inputs.contains(inputs::kMargin)) {
      margins_ = ScoredTokens("reward", batch).sequence_input(batch, inputs::kMargin).narrow(0, 0, pairs_);
    }
  }

  std::string name() const override { return "reward"; }
  bool separable() const override { return false; }
  HeadRequest request() const override {
    HeadRequest request;
    request.log_probabilities = false;
    request.values = true;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    const at::Tensor chosen = values.values.narrow(0, 0, pairs_);
    const at::Tensor rejected = values.values.narrow(0, pairs_, pairs_);
    at::Tensor terms = -stable_log_sigmoid(chosen - rejected - margins_.to(chosen.device()));
    if (centering_ > 0.0) terms = terms + (chosen + rejected).square() * centering_;
    return terms.sum() * weight_;
  }

 private:
  int64_t pairs_;
  double weight_;  // of a pair
  double centering_;
  at::Tensor margins_;  // [pairs]
};

}  // namespace

ObjectiveKind reward_kind() {
  ObjectiveKind kind;
  kind.name = "reward";
  kind.summary = "reward model: Bradley-Terry loss of scored pairs of texts";
  kind.source = "arXiv 2203.02155; TRL, RewardTrainer";
  kind.layout = Layout::kRanked;
  kind.options = {{"center_rewards_coefficient", "0", "weight of the squared sum of a pair's scores"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<Reward>(batch, options, whole);
  };
  kind.knows_router_loss = false;
  return kind;
}

}  // namespace streambp
