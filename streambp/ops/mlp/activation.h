// The activation of an MLP. Without torch: a config names it.
#pragma once

namespace streambp {

enum class Activation {
  kSilu,      // x sigmoid(x)
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: gelu_pytorch_tanh
  kGelu,      // x (1 + erf(x / sqrt(2))) / 2
  kRelu,      // max(x, 0)
  kRelu2,     // max(x, 0)^2, of an MLP without a gate
};

}  // namespace streambp
