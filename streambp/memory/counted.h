// What programs that share their process with others' tensors ask of the meter (streambp/memory/meter.h).
#pragma once

#include <c10/core/Allocator.h>

namespace streambp {

/// Whether the CPU's meter has counted this allocation: it was made after install_meters(), and not taken
/// over from elsewhere (a mapped file, another library's array).
bool is_counted(const c10::DataPtr& data);

}  // namespace streambp
