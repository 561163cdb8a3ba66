// The factor that all gradients of a file may have in common, fitted so that a few wrong ones don't move it.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::verify {

/// <g, t> / <t, t>: the factor that brings the truth t closest to g. NaN where the truth is zero, shapes
/// differ or an entry is not finite.
double factor_of(const at::Tensor& gradient, const at::Tensor& truth);

struct FactorFit {
  double factor = std::numeric_limits<double>::quiet_NaN();  // NaN: nothing to fit
  double spread = 0.0;  // of one parameter's factor around it, relative to it: a standard deviation
  double low = std::numeric_limits<double>::quiet_NaN();   // the interval in which it lies, from the spread
  double high = std::numeric_limits<double>::quiet_NaN();  // and `bias`
  size_t parameters = 0;

  bool found() const { return factor == factor && factor != 0.0; }
};

/// Of the parameters' factors (those that are NaN don't count): their median, refined to the mean of those
/// within three spreads of it, where the spread is the median distance from the median (times 1.4826, which
/// makes it a standard deviation of normal errors), at least `least_spread`. The interval is one spread and
/// `bias`, relative to the factor, on both sides: errors of parameters are those of the same activations, so
/// that more parameters don't narrow it. Almost half of the parameters may be anything.
FactorFit fit_factor(const std::vector<double>& factors, double least_spread = 0.0, double bias = 0.0);

/// The middle one, or the mean of the two middle ones; NaN of none.
double median_of(std::vector<double> numbers);

/// What a loss may have been divided by, and how it is called.
using Normaliser = std::pair<std::string, double>;

/// Explanations of a common factor c: a divisor other than the truth's, or a number of steps or ranks that
/// was summed or averaged. Only those that fit c within `tolerance`, the closest first, three at most.
std::vector<std::string> explain_factor(double c, double divisor, const std::vector<Normaliser>& normalisers,
                                        double tolerance);

}  // namespace streambp::verify
