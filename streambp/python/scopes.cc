// Scopes of the meter for Python: names of the allocations that are made between two calls of a thread.
#include <memory>
#include <string>
#include <vector>

#include <torch/library.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/python/guest.h"

namespace streambp::python {
namespace {

/// Those that this thread has open, the innermost last.
std::vector<std::unique_ptr<MemoryScope>>& open_scopes() {
  static thread_local std::vector<std::unique_ptr<MemoryScope>> scopes;
  return scopes;
}

void scope_push(const std::string& name) {
  open_scopes().push_back(std::make_unique<MemoryScope>(name.c_str()));
}

void scope_pop() {
  answered([] {
    if (open_scopes().empty()) throw InputError("no memory scope is open on this thread");
    open_scopes().pop_back();
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(streambp, m) {
  m.def("scope_push(str name) -> ()", &scope_push);
  m.def("scope_pop() -> ()", &scope_pop);
  m.def("meter_counts(Tensor tensor) -> bool", [](const at::Tensor& tensor) {
    return tensor.has_storage() && is_counted(tensor.storage().data_ptr());
  });
}

}  // namespace streambp::python
