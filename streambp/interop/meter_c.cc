#include "streambp/interop/meter_c.h"

#include "streambp/memory/host_blocks.h"
#include "streambp/memory/meter.h"
#include "streambp/runtime/processor.h"

void streambp_meter_install() {
  streambp::avoid_refused_instructions();
  // Another program's tensors come and go as they would without the meter.
  streambp::keep_host_blocks(false);
  streambp::install_meters();
}

void streambp_meter_reset_peak() {
  streambp::reset_peak(c10::DeviceType::CPU);
}

int64_t streambp_meter_live_bytes() {
  return streambp::read_meter(c10::DeviceType::CPU).live_bytes;
}

int64_t streambp_meter_peak_bytes() {
  return streambp::read_meter(c10::DeviceType::CPU).peak_bytes;
}

void streambp_meter_set_limit(int64_t bytes) {
  streambp::set_memory_limit(c10::DeviceType::CPU, bytes);
}

int64_t streambp_meter_available_bytes() {
  return streambp::available_memory();
}
