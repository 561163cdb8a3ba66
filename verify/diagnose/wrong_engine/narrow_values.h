// Values of the forward pass that code keeps in bfloat16, where all else is exact.
#pragma once

#include "streambp/model/model.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// x rounded to bfloat16, with the gradient of what is not.
at::Tensor narrowed(const at::Tensor& x);

/// Makes the tables of `stream`, prepared of a batch for a model of `config`, those of `rotation`. Throws
/// InputError where frequencies are trained: they are no buffer.
void narrow_rotation(const Config& config, NarrowRotation rotation, Stream& stream);

}  // namespace streambp::verify
