// The truth of a comparison from tensors of this process, in place of files.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "verify/compare/truth.h"

namespace streambp::verify {

/// A model as its owner holds it.
struct ModelTensors {
  std::string config_json;   // the text of a config.json
  std::string source;        // its name in errors
  std::string adapter_json;  // the text of an adapter_config.json; empty: no adapters
  /// By the names of Model::parameters(), in any floating dtype, on any device.
  std::map<std::string, at::Tensor> values;
};

struct TruthTensors {
  ModelTensors model;
  /// The parameters whose gradients are compared, without adapters: with adapters those are compared.
  std::set<std::string> trained;
  std::optional<ModelTensors> teacher;
  std::optional<ModelTensors> reference;    // whose log-probabilities the objective compares with
  std::map<std::string, at::Tensor> batch;  // as read_objective_batch takes them
};

/// Everything in `dtype`, on the CPU, copied. Of `options` those of the objective and first_labels count.
/// Throws InputError for a weight that is missing, unknown or of another shape, and for bad input.
Truth truth_of(const TruthTensors& tensors, const CompareOptions& options,
               at::ScalarType dtype = at::kDouble);

}  // namespace streambp::verify
