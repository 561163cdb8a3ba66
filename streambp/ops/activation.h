// The activation of a gated MLP. Without torch: a config names it.
#pragma once

namespace streambp {

enum class Activation {
  kSilu,      // x sigmoid(x)
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: gelu_pytorch_tanh
};

}  // namespace streambp
