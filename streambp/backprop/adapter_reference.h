// What a model with adapters is compared with (DPO, KTO, GRPO) where no other model is named.
#pragma once

#include <string>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"
#include "streambp/model/model.h"

namespace streambp {

enum class AdapterReference {
  kUnsaid,
  kBase,     // the model without its adapters: TRL's of an adapter that began fresh
  kAdapter,  // the model as it is: TRL's of one that was trained before, of which it keeps a frozen copy
};

/// Whether `word`, that of `--reference`, names one of them (base, adapter) and no model. A folder of such a
/// name is ./base.
bool is_adapter_reference(const std::string& word);
/// kUnsaid for any other word.
AdapterReference parse_adapter_reference(const std::string& word);

/// The reference's log-probabilities of `batch`'s targets [N] float64, of a model with adapters. Throws
/// InputError where nothing is said and the adapters change them already: which of the two TRL takes then
/// depends on how training began.
at::Tensor adapter_reference(Model& model, const Batch& batch, double temperature, AdapterReference said);

}  // namespace streambp
