#include "reference/objectives/objectives_likelihood.h"

#include <string>

#include "reference/objectives/objective_terms.h"
#include "reference/ops/ops.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

void require_positive(const std::string& objective, const std::string& name, Number x) {
  require(x > 0.0, objective, "expected a positive " + name + ", got " + std::to_string(x));
}

}  // namespace

Objective sft(Number divisor) {
  return [divisor](Tape&, const Var& log_probabilities) {
    require_positive("sft", "divisor", divisor);
    return scale(sum(log_probabilities), -1.0 / divisor);
  };
}

TokenObjective sft(Number divisor, Number label_smoothing) {
  require_positive("sft", "divisor", divisor);
  require_range("sft", "label_smoothing", label_smoothing, 0.0, 1.0);
  TokenObjective objective;
  objective.mean_log_probabilities = true;
  objective.loss = [divisor, label_smoothing](Tape&, const TokenValues& heads) {
    const Var target = scale(sum(heads.log_probabilities), -(1.0 - label_smoothing) / divisor);
    return add(target, scale(sum(heads.mean_log_probabilities), -label_smoothing / divisor));
  };
  return objective;
}

TokenObjective dft(Number divisor) {
  require_positive("dft", "divisor", divisor);
  TokenObjective objective;
  objective.loss = [divisor](Tape& tape, const TokenValues& heads) {
    const Var probability = exp(detached(tape, heads.log_probabilities));
    return scale(sum(mul(probability, heads.log_probabilities)), -1.0 / divisor);
  };
  return objective;
}

TokenObjective distill(const DistillOptions& options, const Matrix& teacher_logits) {
  require_positive("distill", "temperature", options.temperature);
  require_positive("distill", "divisor", options.divisor);
  require_range("distill", "alpha", options.alpha, 0.0, 1.0);
  require_range("distill", "beta", options.beta, 0.0, 1.0);
  TokenObjective objective;
  objective.teacher = Teacher{teacher_logits, options.temperature, options.beta, options.shares_first_tokens};
  objective.loss = [options](Tape&, const TokenValues& heads) {
    const Number softening = options.softening ? options.temperature * options.temperature : 1.0;
    const Var teacher = scale(sum(heads.divergences), options.alpha * softening / options.divisor);
    return add(teacher, scale(sum(heads.log_probabilities), -(1.0 - options.alpha) / options.divisor));
  };
  return objective;
}

}  // namespace streambp::STREAMBP_REFERENCE
