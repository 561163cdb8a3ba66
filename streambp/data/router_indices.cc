#include "streambp/data/router_indices.h"

#include <limits>

#include "streambp/error.h"

namespace streambp {

void read_router_indices(const at::Tensor& given, const std::string& prefix, Batch& batch) {
  const bool good = given.dim() == 4 && given.size(0) == batch.padded_rows &&
                    given.size(1) == batch.padded_columns && given.numel() > 0 &&
                    at::isIntegralType(given.scalar_type(), /*includeBool=*/false);
  if (!good)
    throw InputError(
        "{}{}: expected integers [{}, {}, layers, experts], a row for each of input_ids, got {} [{}]", prefix,
        kRouterIndices, batch.padded_rows, batch.padded_columns, c10::toString(given.scalar_type()),
        fmt::join(given.sizes(), ", "));
  const at::Tensor of_tokens = given.flatten(0, 1).index_select(0, batch.padded_indices);
  // Numbers that 32 bits do not hold are no experts either.
  batch.router_indices = of_tokens.to(at::kLong).clamp(-2, std::numeric_limits<int32_t>::max()).to(at::kInt);
  batch.router_indices_source = prefix;
}

}  // namespace streambp
