#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "streambp/memory/meter.h"

namespace streambp {
namespace {

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

}  // namespace

int64_t available_memory() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    int64_t kibibytes = 0;
    if (!(meminfo >> kibibytes)) break;
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kibibytes * 1024;
  }
  const int64_t group_limit =
      read_number("/sys/fs/cgroup/memory.max");  // "max" where there is none: not a number
  const int64_t group_use = read_number("/sys/fs/cgroup/memory.current");
  if (group_limit > 0 && group_use >= 0) available = std::min(available, group_limit - group_use);
  return available;
}

}  // namespace streambp
