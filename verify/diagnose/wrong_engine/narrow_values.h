// Values of the forward pass that code keeps in bfloat16, or in float8, where all else is exact.
#pragma once

#include <string>

#include "streambp/model/model.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// x rounded to bfloat16, with the gradient of what is not.
at::Tensor narrowed(const at::Tensor& x);

/// The largest number of float8 (e4m3).
inline constexpr double kLargestFloat8 = 448.0;

/// x rounded to float8 (e4m3) in units of `scale`, which is broadcast.
at::Tensor in_float8(const at::Tensor& x, const at::Tensor& scale);

/// What the map with the weight `name` reads, rounded where `inputs` says so, with the gradient of what is
/// not.
at::Tensor narrow_input(const at::Tensor& x, const std::string& name, const NarrowInputs& inputs);

/// Makes the tables of `stream`, prepared of a batch for a model of `config`, those of `rotation`. Throws
/// InputError where frequencies are trained: they are no buffer.
void narrow_rotation(const Config& config, NarrowRotation rotation, Stream& stream);

}  // namespace streambp::verify
