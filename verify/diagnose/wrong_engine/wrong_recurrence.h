// A recurrent layer's rule with one of its parts left out or taken otherwise.
#pragma once

#include <map>
#include <vector>

#include "streambp/model/layer.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// What a recurrent layer gives for x [n, D] under autograd, with the mistakes of `wrong` in its rule.
/// `leaves` receives a leaf for each parameter that is not the library's own ops to use. Throws InputError
/// for a layer that has no such part, and for more tokens than are worth running one by one.
at::Tensor wrong_recurrent_layer(const DecoderLayer& layer, const at::Tensor& x, const Rows& rows,
                                 const LayerRun& run, const WrongRecurrence& wrong,
                                 std::map<Parameter*, at::Tensor>& leaves);

/// The same of a layer whose state and convolution have beginnings of their own.
at::Tensor recurrent_layer_by_halves(const DecoderLayer& layer, const at::Tensor& x, const Rows& rows,
                                     const LayerRun& run, const std::vector<int64_t>& of_state,
                                     const std::vector<int64_t>& of_convolution);

}  // namespace streambp::verify
