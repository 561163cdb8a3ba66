// Scopes of the meter for Python: names of the allocations that a thread makes between two calls.
#pragma once

#include <string>

namespace streambp::python {

/// Opens a MemoryScope on this thread.
void scope_push(const std::string& name);

/// Closes the one that this thread opened last. Throws as answered() does where there is none.
void scope_pop();

}  // namespace streambp::python
