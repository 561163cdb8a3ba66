#include "streambp/plan/workload.h"

#include "streambp/data/objective_inputs.h"
#include "streambp/objective/terms.h"

namespace streambp::plan {

std::map<std::string, std::string> options_of(const std::string& name,
                                              const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> options;
  for (const Option& option : objective_kind(name).options) {
    if (const auto found = given.find(option.name); found != given.end()) options.insert(*found);
  }
  return options;
}

bool needs_value_head(const std::string& objective) {
  const Layout layout = objective_kind(objective).layout;
  return layout == Layout::kResponses || layout == Layout::kRanked;
}

bool uses_reference(const std::string& name, const std::map<std::string, std::string>& given) {
  const ObjectiveKind& kind = objective_kind(name);
  return kind.uses_reference && kind.uses_reference(complete_options(kind, options_of(name, given)));
}

Batch make_batch(const TrainingStep& step, int64_t vocab_size) {
  if (step.batch) return *step.batch;
  const ObjectiveKind& kind = objective_kind(step.objective);
  return synthetic_batch(kind, complete_options(kind, options_of(step.objective, step.options)),
                         step.sequences, step.seq_len, vocab_size, step.seed, step.prompt);
}

bool fill_reference(const TrainingStep& step, Batch& batch) {
  const ObjectiveKind& kind = objective_kind(step.objective);
  if (!needs_reference(kind, complete_options(kind, options_of(step.objective, step.options)), batch))
    return false;
  batch.token_inputs[inputs::kReferenceLogProbabilities] = at::zeros({batch.size()}, at::kDouble);
  return true;
}

}  // namespace streambp::plan
