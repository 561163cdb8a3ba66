// Derivatives without differences: numbers with a small imaginary part.
//
// For an analytic f, f(x + i h) = f(x) + i h f'(x) - h^2 f''(x) / 2 - ...: with h so small that h^2 is lost
// in a sum with 1, the real part is f(x) and the imaginary part over h is f'(x), to the last digits of
// either, because nothing is subtracted from its like (Squire & Trapp 1998,
// https://doi.org/10.1137/S003614459631241X). No derivative is written down here: these are the functions of
// complex numbers.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <numbers>

namespace streambp::reference {

/// x + i y in extended precision. Its order, and with it every branch of a program, is that of the real part;
/// a function that is not defined for a negative real number is NaN for a negative real part as well.
class ComplexStep {
 public:
  /// Not initialized, as a double is not; `ComplexStep{}` is 0.
  ComplexStep() = default;
  ComplexStep(long double real, long double imaginary = 0) : x_(real), y_(imaginary) {}

  long double real() const { return x_; }
  long double imag() const { return y_; }

  friend ComplexStep operator+(const ComplexStep& a) { return a; }
  friend ComplexStep operator-(const ComplexStep& a) { return {-a.x_, -a.y_}; }
  friend ComplexStep operator+(const ComplexStep& a, const ComplexStep& b) {
    return {a.x_ + b.x_, a.y_ + b.y_};
  }
  friend ComplexStep operator-(const ComplexStep& a, const ComplexStep& b) {
    return {a.x_ - b.x_, a.y_ - b.y_};
  }
  friend ComplexStep operator*(const ComplexStep& a, const ComplexStep& b) {
    return {a.x_ * b.x_ - a.y_ * b.y_, a.x_ * b.y_ + a.y_ * b.x_};
  }
  /// By Smith's formula for divisors whose real part is the larger one, which rounds it as a real division.
  friend ComplexStep operator/(const ComplexStep& a, const ComplexStep& b) {
    const long double r = b.y_ / b.x_;
    const long double size = b.x_ + b.y_ * r;
    return {(a.x_ + a.y_ * r) / size, (a.y_ - a.x_ * r) / size};
  }
  ComplexStep& operator+=(const ComplexStep& b) { return *this = *this + b; }
  ComplexStep& operator-=(const ComplexStep& b) { return *this = *this - b; }
  ComplexStep& operator*=(const ComplexStep& b) { return *this = *this * b; }
  ComplexStep& operator/=(const ComplexStep& b) { return *this = *this / b; }

  friend bool operator==(const ComplexStep& a, const ComplexStep& b) { return a.x_ == b.x_; }
  friend bool operator!=(const ComplexStep& a, const ComplexStep& b) { return a.x_ != b.x_; }
  friend bool operator<(const ComplexStep& a, const ComplexStep& b) { return a.x_ < b.x_; }
  friend bool operator>(const ComplexStep& a, const ComplexStep& b) { return a.x_ > b.x_; }
  friend bool operator<=(const ComplexStep& a, const ComplexStep& b) { return a.x_ <= b.x_; }
  friend bool operator>=(const ComplexStep& a, const ComplexStep& b) { return a.x_ >= b.x_; }

 private:
  long double x_, y_;
};

inline bool isnan(const ComplexStep& z) {
  return std::isnan(z.real());
}

/// The branch of |x| that z is on, z or -z, each of which is analytic.
inline ComplexStep abs(const ComplexStep& z) {
  return z.real() < 0 ? -z : z;
}

/// e^x (cos y + i sin y)
inline ComplexStep exp(const ComplexStep& z) {
  const long double size = std::exp(z.real());
  return {size * std::cos(z.imag()), size * std::sin(z.imag())};
}

/// e^z - 1, of which the real part is (e^x - 1) cos y - (1 - cos y).
inline ComplexStep expm1(const ComplexStep& z) {
  const long double half = std::sin(z.imag() / 2);
  return {std::expm1(z.real()) * std::cos(z.imag()) - 2 * half * half,
          std::exp(z.real()) * std::sin(z.imag())};
}

/// ln |z| + i arg z
inline ComplexStep log(const ComplexStep& z) {
  if (z.real() < 0) return std::numeric_limits<long double>::quiet_NaN();
  return {std::log(std::hypot(z.real(), z.imag())), std::atan2(z.imag(), z.real())};
}

/// ln(1 + z), with |1 + z|^2 = (1 + x)^2 (1 + r^2) where r = y / (1 + x).
inline ComplexStep log1p(const ComplexStep& z) {
  if (z.real() < -1) return std::numeric_limits<long double>::quiet_NaN();
  const long double r = z.imag() / (1 + z.real());
  return {std::log1p(z.real()) + std::log1p(r * r) / 2, std::atan(r)};
}

/// The root whose real part is not negative.
inline ComplexStep sqrt(const ComplexStep& z) {
  if (z.real() < 0) return std::numeric_limits<long double>::quiet_NaN();
  const long double root = std::sqrt((std::hypot(z.real(), z.imag()) + z.real()) / 2);
  return {root, z.imag() / (2 * root)};
}

/// cos x cosh y - i sin x sinh y
inline ComplexStep cos(const ComplexStep& z) {
  return {std::cos(z.real()) * std::cosh(z.imag()), -std::sin(z.real()) * std::sinh(z.imag())};
}

/// sin x cosh y + i cos x sinh y
inline ComplexStep sin(const ComplexStep& z) {
  return {std::sin(z.real()) * std::cosh(z.imag()), std::cos(z.real()) * std::sinh(z.imag())};
}

/// cosh x cos y + i sinh x sin y
inline ComplexStep cosh(const ComplexStep& z) {
  return {std::cosh(z.real()) * std::cos(z.imag()), std::sinh(z.real()) * std::sin(z.imag())};
}

/// (sinh 2x + i sin 2y) / (cosh 2x + cos 2y), where nothing cancels.
inline ComplexStep tanh(const ComplexStep& z) {
  const long double size = std::cosh(2 * z.real()) + std::cos(2 * z.imag());
  return {std::sinh(2 * z.real()) / size, std::sin(2 * z.imag()) / size};
}

/// 2 / sqrt(pi) e^(-z^2) sum over n of 2^n z^(2n+1) / (1 3 5 ... (2n+1)), whose terms have one sign on the
/// real axis.
inline ComplexStep erf(const ComplexStep& z) {
  const ComplexStep square = z * z;
  ComplexStep term = z, sum = z;
  for (long double odd = 3; std::abs(term.real()) > 1e-22L * std::abs(sum.real()); odd += 2) {
    term = term * square * ComplexStep(2 / odd);
    sum = sum + term;
  }
  return ComplexStep(2 * std::numbers::inv_sqrtpi_v<long double>) * exp(-square) * sum;
}

}  // namespace streambp::reference

/// To Eigen it is a real number: an order, no conjugates.
template <>
struct Eigen::NumTraits<streambp::reference::ComplexStep>
    : Eigen::GenericNumTraits<streambp::reference::ComplexStep> {
  using Real = streambp::reference::ComplexStep;
  using NonInteger = streambp::reference::ComplexStep;
  using Nested = streambp::reference::ComplexStep;
  using Literal = streambp::reference::ComplexStep;
  enum {
    IsComplex = 0,
    IsInteger = 0,
    IsSigned = 1,
    RequireInitialization = 0,
    ReadCost = 2,
    AddCost = 2,
    MulCost = 6
  };
};
