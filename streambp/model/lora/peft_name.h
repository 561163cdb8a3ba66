// Which tensors and parameters are PEFT's.
#pragma once

#include <string>

#include "streambp/model/lora/lora.h"

namespace streambp {

inline bool is_peft_name(const std::string& name) {
  return name.starts_with(kPeftPrefix);
}

}  // namespace streambp
