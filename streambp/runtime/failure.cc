#include "streambp/runtime/failure.h"

#include <new>
#include <string_view>

#include "streambp/runtime/torch_private.h"

namespace streambp {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (torch_private::is_out_of_device_memory(error)) return true;
  // What ATen, the CUDA runtime, cuBLAS and cuDNN say where they have no exception of its kind.
  const std::string_view text = error.what();
  for (const char* said : {"can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED"}) {
    if (text.find(said) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace streambp
