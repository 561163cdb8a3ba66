// GPUs by name: what torch can have of their memory, and what kernels ask of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "streambp/runtime/gpu.h"

namespace streambp::plan {

struct Card {
  const char* name;  // "h100-80"
  const char* title;
  /// Bytes that torch calls its total capacity: less than the name says, by what error correction and the
  /// driver take; of cards of the same kind the least.
  int64_t memory;
  GpuLimits limits;

  /// Less usual_margin: what tensors can have, the driver's context and what lies between blocks taken off.
  int64_t usable() const;
};

const std::vector<Card>& cards();

/// The card of this name; null: there is none.
const Card* find_card(const std::string& name);

/// A line for each: name, title, memory, and what tensors can have of it.
std::string describe_cards();

}  // namespace streambp::plan
