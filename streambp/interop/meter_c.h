// The meter behind a C interface: a program in another language that has loaded the same libtorch counts its
// tensors on the CPU as our records do. Built as a shared library of its own, streambp_meter_c.
#pragma once

#include <cstdint>

extern "C" {

/// Puts the counting allocator in place: what is allocated from now on is counted. Keeps oneDNN to
/// instructions that the machine allows, as our programs do (streambp/runtime/processor.h). Call once, before
/// the first tensor op.
void streambp_meter_install();

/// The peak becomes what is alive now.
void streambp_meter_reset_peak();

int64_t streambp_meter_live_bytes();

/// The most that was alive since the last reset.
int64_t streambp_meter_peak_bytes();

/// How many bytes may be alive at once; an allocation beyond throws a C++ exception (streambp::OutOfMemory)
/// at its caller in libtorch. 0: as many as the system gives.
void streambp_meter_set_limit(int64_t bytes);

/// Bytes this process could still take on this machine.
int64_t streambp_meter_available_bytes();
}
