// The configurations of a back-propagation, a method with its settings: they differ in time and memory and in
// nothing else.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "streambp/backprop/method.h"

namespace streambp::plan {

/// Every method.
std::vector<Method> all_methods();

/// Which configurations a search looks at.
struct SearchSpace {
  std::vector<Method> methods = all_methods();
  /// Of methods by chunks. 0: auto_chunk's; {0}: that and a few others.
  std::vector<int64_t> chunks{0};
  /// Settings that are not searched, for the methods that take them: those whose SettingKind::searched is
  /// off, stream_head where it is set, and those that `fixed` names.
  Settings given;
  std::set<std::string> fixed;
};

/// Every configuration in `space` of a stream of `tokens` tokens on `device` through `layers` layers: chunks,
/// whether the head is streamed, and the candidates of the settings that each method takes (with
/// `may_offload` offloading too). No two are the same.
std::vector<Settings> list_configurations(const SearchSpace& space, c10::Device device, int64_t layers,
                                          int64_t tokens, bool may_offload);

}  // namespace streambp::plan
