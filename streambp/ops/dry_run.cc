#include "streambp/ops/dry_run.h"

#include <torch/library.h>

#include "streambp/runtime/torch_private.h"

namespace streambp {
namespace {

at::Tensor index_select_shape(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.at(static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))) = index.numel();
  return at::empty(sizes, x.options());
}

at::Tensor flip_shape(const at::Tensor& x, at::IntArrayRef) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

}  // namespace

double item_or_zero(const at::Tensor& x) {
  return has_values(x) ? x.item<double>() : 0.0;
}

}  // namespace streambp

// torch registers these from Python; a process that has loaded that has them already.
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  const auto add = [&](const char* name, auto* kernel) {
    if (streambp::torch_private::lacks_meta_kernel(name)) library.impl(name, kernel);
  };
  add("index_select", &streambp::index_select_shape);
  add("flip", &streambp::flip_shape);
}
