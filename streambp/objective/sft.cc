// Supervised fine-tuning: loss = -(1/divisor) sum_t log p_t.
#include <algorithm>
#include <cmath>

#include "streambp/error.h"
#include "streambp/objective/objective.h"

namespace streambp {
namespace {

class Sft final : public Objective {
 public:
  explicit Sft(double divisor) : divisor_(divisor) {}

  std::string name() const override { return "sft"; }
  bool separable() const override { return true; }
  at::Tensor loss(const at::Tensor& log_probabilities, int64_t, int64_t) const override {
    return log_probabilities.sum() * (-1.0 / divisor_);
  }

 private:
  double divisor_;
};

}  // namespace

std::unique_ptr<Objective> make_sft(const Batch& batch, std::optional<double> divisor) {
  if (divisor && !(*divisor > 0.0 && std::isfinite(*divisor))) {
    throw InputError("sft: the divisor of the loss is {}: expected a positive number", *divisor);
  }
  // A batch without any target has loss 0 whatever it is divided by.
  const auto scored = static_cast<double>(batch.targets.ne(kNoTarget).sum().item<int64_t>());
  return std::make_unique<Sft>(divisor.value_or(std::max(scored, 1.0)));
}

}  // namespace streambp
