// Why a run failed.
#pragma once

#include <exception>

namespace streambp {

/// Whether `error` says that memory ran out: OutOfMemory, std::bad_alloc, a device's out-of-memory error, or
/// the text that LibTorch's own CPU allocator throws.
bool is_out_of_memory(const std::exception& error);

}  // namespace streambp
