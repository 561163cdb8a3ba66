#include "streambp/backprop/adapter_reference.h"

#include "streambp/backprop/method.h"
#include "streambp/error.h"

namespace streambp {

bool is_adapter_reference(const std::string& word) {
  return parse_adapter_reference(word) != AdapterReference::kUnsaid;
}

AdapterReference parse_adapter_reference(const std::string& word) {
  if (word == "base") return AdapterReference::kBase;
  return word == "adapter" ? AdapterReference::kAdapter : AdapterReference::kUnsaid;
}

at::Tensor adapter_reference(Model& model, const Batch& batch, double temperature, AdapterReference said) {
  const Batch own = without_given_indices(batch);
  const auto evaluated = [&] { return evaluate(model, own, temperature).log_probabilities; };
  if (said == AdapterReference::kAdapter) return evaluated();
  at::Tensor of_base;
  {
    const AdaptersOff off(model);
    of_base = evaluated();
  }
  // An update of 0 changes no bit.
  if (said == AdapterReference::kBase || of_base.is_meta() || at::equal(of_base, evaluated())) return of_base;
  throw InputError(
      "the adapters change the model already: say what it is compared with: --reference base (the model "
      "without them: they began fresh) or --reference adapter (they were trained before: TRL compares with a "
      "frozen copy of them)");
}

}  // namespace streambp
