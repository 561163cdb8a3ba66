#include "verify/ulps.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>

#include "streambp/error.h"
#include "streambp/model/files/tensor_file.h"

namespace streambp::verify {
namespace {

struct Format {
  int digits;          // of the significand, the hidden one among them
  int least_exponent;  // of normal numbers 1.x * 2^exponent
};

Format format_of(at::ScalarType dtype) {
  if (dtype == at::kFloat) return {24, -126};
  if (dtype == at::kBFloat16) return {8, -126};
  if (dtype == at::kHalf) return {11, -14};
  throw InputError("units in the last place of {}: expected float32, bfloat16 or float16", dtype_name(dtype));
}

double unit_of(double value, const Format& format) {
  if (!std::isfinite(value)) return std::numeric_limits<double>::quiet_NaN();
  const int exponent =
      value == 0.0 ? format.least_exponent : std::max(std::ilogb(value), format.least_exponent);
  return std::ldexp(1.0, exponent - format.digits + 1);
}

/// Written so that NaN is in the last one.
int bin_of(double units) {
  int bin = 0;
  while (bin + 1 < EntryErrors::kBins && !(units <= EntryErrors::upper_end(bin))) ++bin;
  return bin;
}

}  // namespace

double unit_in_last_place(double value, at::ScalarType format) {
  return unit_of(value, format_of(format));
}

double EntryErrors::upper_end(int bin) {
  return bin + 1 == kBins ? std::numeric_limits<double>::infinity() : std::ldexp(0.5, bin);
}

std::string EntryErrors::bin_name(int bin) {
  if (bin + 1 == kBins) return "more";
  return bin == 0 ? "1/2" : fmt::format("{:.0f}", upper_end(bin));
}

void EntryErrors::add(const at::Tensor& value, const at::Tensor& truth, at::ScalarType format) {
  if (value.sizes() != truth.sizes()) throw InputError("entries of tensors of two shapes can't be compared");
  const Format units = format_of(format);
  const at::Tensor left = value.to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor right = truth.to(at::kCPU, at::kDouble).contiguous();
  const double* const ours = left.const_data_ptr<double>();
  const double* const exact = right.const_data_ptr<double>();
  for (int64_t i = 0; i < left.numel(); ++i) {
    const double distance = std::abs(ours[i] - exact[i]);
    ++entries;
    absolute += distance;
    magnitude += std::abs(exact[i]);
    if (ours[i] == 0.0 && exact[i] == 0.0) {
      ++zeros;
    } else {
      ++ulps[static_cast<size_t>(bin_of(distance / unit_of(exact[i], units)))];
    }
  }
}

void EntryErrors::add(const EntryErrors& others) {
  for (size_t bin = 0; bin < ulps.size(); ++bin) ulps[bin] += others.ulps[bin];
  zeros += others.zeros;
  entries += others.entries;
  absolute += others.absolute;
  magnitude += others.magnitude;
}

double EntryErrors::share(int bin) const {
  const auto all = std::accumulate(ulps.begin(), ulps.end(), int64_t{0});
  return all == 0 ? 0.0 : static_cast<double>(ulps[static_cast<size_t>(bin)]) / static_cast<double>(all);
}

}  // namespace streambp::verify
