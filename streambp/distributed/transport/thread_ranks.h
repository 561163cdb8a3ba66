// Ranks as threads of one process: no sockets, the same bits in every run, and a debugger sees all of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "streambp/distributed/transport/communicator.h"

namespace streambp {

/// How long a rank waits for another one before all of them end.
inline constexpr std::chrono::milliseconds kPatience{30'000};

/// Runs body(communicator) as `ranks` ranks, each on a thread of its own, and returns when all have ended.
/// The first exception of a rank ends the others at their next message and is thrown again with the rank's
/// number before its message: InputError and OutOfMemory as such, others as CommunicationError.
void run_on_threads(int64_t ranks, const std::function<void(Communicator&)>& body,
                    std::chrono::milliseconds patience = kPatience);

}  // namespace streambp
