#include "streambp/distributed/parameter_runs.h"

#include <map>
#include <utility>

namespace streambp {

std::vector<std::vector<Parameter*>> parameter_runs(const std::vector<Parameter*>& group) {
  std::map<std::pair<at::ScalarType, bool>, std::vector<Parameter*>> by_kind;
  for (Parameter* parameter : group) {
    const at::ScalarType dtype = parameter->value.scalar_type();
    by_kind[{dtype, dtype == at::kBFloat16 && parameter->value.dim() == 1}].push_back(parameter);
  }
  std::vector<std::vector<Parameter*>> runs;
  for (auto& [kind, parameters] : by_kind) runs.push_back(std::move(parameters));
  return runs;
}

}  // namespace streambp
