#include "streambp/driver/failure.h"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>

namespace streambp {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  return std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

}  // namespace streambp
