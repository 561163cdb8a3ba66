#include "reference/ops/ops_elementwise.h"

#include <cmath>
#include <numbers>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

void require_same_shape(const char* op, const Var& a, const Var& b) {
  require(a.rows() == b.rows() && a.cols() == b.cols(), op,
          "expected operands of one shape, got " + shape_text(a.value()) + " and " + shape_text(b.value()));
}

/// y = f(x) entry by entry; `slope(x)` is f'(x).
template <typename Function, typename Slope>
Var elementwise(const Var& x, Function f, Slope slope) {
  return Tape::record({x}, x.value().unaryExpr(f), [x, slope](const Var& y) {
    x.gradient() += y.gradient().cwiseProduct(x.value().unaryExpr(slope));
  });
}

/// Each entry of the result is that entry of `a` or of `b` which `first_wins` prefers.
template <typename Prefer>
Var select(const Var& a, const Var& b, Prefer first_wins) {
  auto pick = [first_wins](const Scalar& u, const Scalar& v) -> Scalar {
    return first_wins(u, v) || math::isnan(u) ? u : v;
  };
  return Tape::record({a, b}, a.value().binaryExpr(b.value(), pick), [a, b, first_wins](const Var& y) {
    auto share = [first_wins](const Scalar& u, const Scalar& v) -> Scalar {
      return first_wins(u, v) ? 1.0 : first_wins(v, u) ? 0.0 : 0.5;
    };
    a.gradient() += y.gradient().cwiseProduct(a.value().binaryExpr(b.value(), share));
    b.gradient() += y.gradient().cwiseProduct(b.value().binaryExpr(a.value(), share));
  });
}

Scalar sigmoid(const Scalar& x) {
  return 1.0 / (1.0 + math::exp(-x));
}

Scalar square(const Scalar& x) {
  return x * x;
}

}  // namespace

Var add(const Var& a, const Var& b) {
  require_same_shape("add", a, b);
  return Tape::record({a, b}, a.value() + b.value(), [a, b](const Var& y) {
    a.gradient() += y.gradient();
    b.gradient() += y.gradient();
  });
}

Var sub(const Var& a, const Var& b) {
  require_same_shape("sub", a, b);
  return Tape::record({a, b}, a.value() - b.value(), [a, b](const Var& y) {
    a.gradient() += y.gradient();
    b.gradient() -= y.gradient();
  });
}

Var mul(const Var& a, const Var& b) {
  require_same_shape("mul", a, b);
  return Tape::record({a, b}, a.value().cwiseProduct(b.value()), [a, b](const Var& y) {
    a.gradient() += y.gradient().cwiseProduct(b.value());
    b.gradient() += y.gradient().cwiseProduct(a.value());
  });
}

Var scale(const Var& a, Number c) {
  return Tape::record({a}, c * a.value(), [a, c](const Var& y) { a.gradient() += c * y.gradient(); });
}

Var offset(const Var& x, Number c) {
  return Tape::record({x}, x.value().array() + c, [x](const Var& y) { x.gradient() += y.gradient(); });
}

Var tanh(const Var& x) {
  // 1 - tanh^2 = 1 / cosh^2, which does not cancel where tanh is nearly 1.
  return elementwise(
      x, [](const Scalar& t) { return math::tanh(t); },
      [](const Scalar& t) { return 1.0 / square(math::cosh(t)); });
}

Var exp(const Var& x) {
  auto f = [](const Scalar& t) { return math::exp(t); };
  return Tape::record({x}, x.value().unaryExpr(f),
                      [x](const Var& y) { x.gradient() += y.gradient().cwiseProduct(y.value()); });
}

Var log(const Var& x) {
  return elementwise(
      x, [](const Scalar& t) { return math::log(t); }, [](const Scalar& t) { return 1.0 / t; });
}

Var minimum(const Var& a, const Var& b) {
  require_same_shape("minimum", a, b);
  return select(a, b, [](const Scalar& u, const Scalar& v) { return u < v; });
}

Var maximum(const Var& a, const Var& b) {
  require_same_shape("maximum", a, b);
  return select(a, b, [](const Scalar& u, const Scalar& v) { return u > v; });
}

Var clip(const Var& x, Number low, Number high) {
  require(low <= high, "clip",
          "expected low <= high, got " + std::to_string(low) + " and " + std::to_string(high));
  // Both comparisons are false for a NaN, which so stays what it is.
  return elementwise(
      x, [low, high](const Scalar& t) -> Scalar { return t < low    ? low
                                                         : t > high ? high
                                                                    : t; },
      [low, high](const Scalar& t) -> Scalar { return t < low || t > high ? 0.0 : 1.0; });
}

Var silu(const Var& x) {
  return elementwise(
      x, [](const Scalar& t) { return t * sigmoid(t); },
      [](const Scalar& t) { return sigmoid(t) * (1.0 + t * (1.0 - sigmoid(t))); });
}

Var gelu_tanh(const Var& x) {
  const Number c = std::sqrt(2.0 / std::numbers::pi_v<Number>);
  auto tanh_u = [c](const Scalar& t) { return math::tanh(c * (t + 0.044715 * t * t * t)); };
  return elementwise(
      x, [tanh_u](const Scalar& t) { return 0.5 * t * (1.0 + tanh_u(t)); },
      [tanh_u, c](const Scalar& t) {
        const Scalar h = tanh_u(t);
        const Scalar du = c * (1.0 + 3.0 * 0.044715 * t * t);
        return 0.5 * (1.0 + h) + 0.5 * t * (1.0 - h * h) * du;
      });
}

Var gelu(const Var& x) {
  const Number root = std::numbers::sqrt2_v<Number>;
  const Number density = std::numbers::inv_sqrtpi_v<Number> / root;
  auto below = [root](const Scalar& t) -> Scalar { return 0.5 * (1.0 + math::erf(t / root)); };
  return elementwise(
      x, [below](const Scalar& t) -> Scalar { return t * below(t); },
      [below, density](const Scalar& t) -> Scalar {
        return below(t) + t * density * math::exp(-0.5 * t * t);
      });
}

Var sigmoid(const Var& x) {
  return elementwise(
      x, [](const Scalar& t) { return sigmoid(t); },
      [](const Scalar& t) { return sigmoid(t) * sigmoid(-t); });
}

Var softplus(const Var& x) {
  return elementwise(
      x, [](const Scalar& t) { return (t > 0.0 ? t : Scalar(0.0)) + math::log1p(math::exp(-math::abs(t))); },
      [](const Scalar& t) { return sigmoid(t); });
}

Var log_sigmoid(const Var& x) {
  return elementwise(
      x, [](const Scalar& t) { return (t < 0.0 ? t : Scalar(0.0)) - math::log1p(math::exp(-math::abs(t))); },
      [](const Scalar& t) { return sigmoid(-t); });
}

Var log1mexp(const Var& x) {
  return elementwise(
      x,
      [](const Scalar& t) {
        return t > -std::numbers::ln2_v<Number> ? math::log(-math::expm1(t)) : math::log1p(-math::exp(t));
      },
      [](const Scalar& t) { return -1.0 / math::expm1(-t); });
}

}  // namespace streambp::STREAMBP_REFERENCE
