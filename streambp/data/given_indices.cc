#include "streambp/data/given_indices.h"

#include <limits>

#include "streambp/error.h"

namespace streambp {

at::Tensor read_given_indices(const at::Tensor& given, const std::string& prefix, const char* name,
                              Batch& batch) {
  const bool good = given.dim() == 4 && given.size(0) == batch.padded_rows &&
                    given.size(1) == batch.padded_columns && given.numel() > 0 &&
                    at::isIntegralType(given.scalar_type(), /*includeBool=*/false);
  if (!good)
    throw InputError("{}{}: expected integers [{}, {}, layers, {}], a row for each of input_ids, got {} [{}]",
                     prefix, name, batch.padded_rows, batch.padded_columns,
                     std::string(name) == kRouterIndices ? "experts" : "picks",
                     c10::toString(given.scalar_type()), fmt::join(given.sizes(), ", "));
  batch.indices_source = prefix;
  const at::Tensor of_tokens = given.flatten(0, 1).index_select(0, batch.padded_indices);
  // Numbers that 32 bits do not hold are no experts and no rows either.
  return of_tokens.to(at::kLong).clamp(-2, std::numeric_limits<int32_t>::max()).to(at::kInt);
}

}  // namespace streambp
