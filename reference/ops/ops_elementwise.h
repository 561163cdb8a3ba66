// Operations that treat every entry by itself. Operands have equal shapes, else std::invalid_argument; there
// is no broadcasting.
#pragma once

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// y = a + b.   da = dy, db = dy
Var add(const Var& a, const Var& b);

/// y = a - b.   da = dy, db = -dy
Var sub(const Var& a, const Var& b);

/// y = a b, entry by entry.   da = dy b, db = dy a
Var mul(const Var& a, const Var& b);

/// y = c a for a constant c.   da = c dy
Var scale(const Var& a, Number c);

/// y = x + c for a constant c.   dx = dy
Var offset(const Var& x, Number c);

/// y = e^x.   dx = dy y
Var exp(const Var& x);

/// y = ln x (NaN for x < 0).   dx = dy / x
Var log(const Var& x);

/// y = tanh x.   dx = dy (1 - y^2). The cap c tanh(x / c) of Gemma 2 (https://arxiv.org/abs/2408.00118) is
/// made of this and two of `scale`.
Var tanh(const Var& x);

/// y = min(a, b). The gradient goes to the smaller one; where they are equal each gets half, as in PyTorch. A
/// NaN in either operand is a NaN in the result.
Var minimum(const Var& a, const Var& b);

/// y = max(a, b), with the conventions of minimum.
Var maximum(const Var& a, const Var& b);

/// y = min(max(x, low), high).   dx = dy where low <= x <= high, else 0. Throws std::invalid_argument unless
/// low <= high.
Var clip(const Var& x, Number low, Number high);

/// y = x s with s = 1 / (1 + e^-x).   dx = dy s (1 + x (1 - s))
Var silu(const Var& x);

/// y = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), the "gelu_pytorch_tanh" of Hugging Face.
/// dx = dy [(1 + tanh u) / 2 + x (1 - tanh^2 u) u' / 2]
Var gelu_tanh(const Var& x);

/// y = x Phi(x) with Phi(x) = (1 + erf(x / sqrt(2))) / 2, the "gelu" of Hugging Face.   dx = dy [Phi(x) + x
/// phi(x)] with phi = Phi'.
Var gelu(const Var& x);

/// y = 1 / (1 + e^-x).   dx = dy y (1 - y)
Var sigmoid(const Var& x);

/// y = ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), which does not overflow.   dx = dy / (1 + e^-x). (PyTorch
/// takes x itself above 20, where the rest is less than 2.1e-9.)
Var softplus(const Var& x);

/// y = ln(1 / (1 + e^-x)) = min(x, 0) - ln(1 + e^-|x|), which neither overflows nor cancels.   dx = dy / (1 +
/// e^x)
Var log_sigmoid(const Var& x);

/// y = ln(1 - e^x) for x < 0 (-infinity at 0, NaN above): ln(-(e^x - 1)) where e^x > 1/2 and ln(1 + (-e^x))
/// elsewhere, neither of which cancels (Maechler 2012,
/// https://cran.r-project.org/web/packages/Rmpfr/vignettes/log1mexp-note.pdf).
/// dx = -dy / (e^-x - 1)
Var log1mexp(const Var& x);

}  // namespace streambp::STREAMBP_REFERENCE
