// Files of somebody's gradients.
#pragma once

#include <string>

#include "verify/error_measure.h"

namespace streambp::verify {

/// The tensors of `path`: a safetensors file, of a golden case those named grad.; a folder of such files, or
/// the index (*.index.json) that save_pretrained and accelerate write next to their shards. Throws InputError
/// for a tensor that two files hold, and where there is none.
Tensors read_gradients(const std::string& path);

}  // namespace streambp::verify
