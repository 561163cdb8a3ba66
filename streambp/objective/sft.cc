// Supervised fine-tuning: loss = -(1/divisor) sum_t [(1 - e) log p_t + e (1/V) sum_v log p_tv], e the label
// smoothing; with loss_type dft, dynamic fine-tuning, -(1/divisor) sum_t p_t log p_t with the factor p_t held
// constant.
//
// The divisor is the number of scored tokens of the whole batch (mean), 1 (sum), or given: transformers,
// loss/loss_utils.py, ForCausalLMLoss, with num_items_in_batch. Smoothing is torch's cross_entropy's (arXiv
// 1512.00567, section 7). DFT: arXiv 2508.05629; TRL, trainer/sft_trainer.py, SFTTrainer.compute_loss.
#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

class Sft final : public Objective {
 public:
  Sft(at::Tensor has_target, double divisor, double smoothing, bool dynamic)
      : has_target_(std::move(has_target)), divisor_(divisor), smoothing_(smoothing), dynamic_(dynamic) {}

  std::string name() const override { return "sft"; }
  bool separable() const override { return true; }
  HeadRequest request() const override {
    HeadRequest request;
    request.mean_log_probabilities = smoothing_ > 0.0;
    return request;
  }
  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    at::Tensor terms = values.log_probabilities;
    if (dynamic_) terms = terms * terms.detach().exp();
    if (smoothing_ > 0.0) terms = terms * (1.0 - smoothing_) + values.mean_log_probabilities * smoothing_;
    return (terms * part(has_target_, begin, end, terms)).sum() * (-1.0 / divisor_);
  }

 private:
  at::Tensor has_target_;
  double divisor_;
  double smoothing_;
  bool dynamic_;
};

}  // namespace

ObjectiveKind sft_kind() {
  ObjectiveKind kind;
  kind.name = "sft";
  kind.summary = "supervised fine-tuning: cross-entropy of the labels";
  kind.source = "transformers, ForCausalLMLoss; arXiv 2508.05629";
  kind.layout = Layout::kLabels;
  kind.options = {
      {"loss_type", "nll", "weight labels alike, or by their own probability", {"nll", "dft"}},
      reduction_option(),
      divisor_option(),
      {"label_smoothing", "0", "share of the target's weight that is spread over the vocabulary"}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    const double smoothing = options.number("label_smoothing", 0.0, 1.0);
    const bool dynamic = options.word("loss_type") == "dft";
    if (dynamic && smoothing > 0.0) {
      throw InputError("sft: label_smoothing is {} with loss_type dft, expected 0", smoothing);
    }
    return std::make_unique<Sft>(ScoredTokens("sft", batch).has_target(),
                                 token_divisor("sft", options, whole), smoothing, dynamic);
  };
  return kind;
}

}  // namespace streambp
