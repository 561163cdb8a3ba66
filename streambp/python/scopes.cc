#include "streambp/python/scopes.h"

#include <memory>
#include <vector>

#include "streambp/memory/meter.h"
#include "streambp/python/guest.h"

namespace streambp::python {
namespace {

/// Those that this thread has open, the innermost last.
std::vector<std::unique_ptr<MemoryScope>>& open_scopes() {
  static thread_local std::vector<std::unique_ptr<MemoryScope>> scopes;
  return scopes;
}

}  // namespace

void scope_push(const std::string& name) {
  open_scopes().push_back(std::make_unique<MemoryScope>(name.c_str()));
}

void scope_pop() {
  answered([] {
    if (open_scopes().empty()) throw InputError("no memory scope is open on this thread");
    open_scopes().pop_back();
  });
}

}  // namespace streambp::python
