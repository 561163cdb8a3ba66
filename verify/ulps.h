// Distances of numbers from the truth in units in the last place of a format, counted by powers of two.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <ATen/ATen.h>

namespace streambp::verify {

/// The unit in the last place of `value` in a format (float32, bfloat16, float16): the distance of the two
/// numbers of the format around it, with the format's exponents; of 0 and of what is below its normal
/// numbers, that of the least of those. NaN where `value` is not finite. Throws InputError for other dtypes.
double unit_in_last_place(double value, at::ScalarType format);

/// How far the entries of tensors are from the truth.
struct EntryErrors {
  /// Distances of up to a half (what rounding the truth gives), 1, 2, 4, ..., 256 units, and larger ones.
  static constexpr int kBins = 11;

  std::array<int64_t, kBins> ulps{};  // entries by distance; those that are not finite are in the last one
  int64_t zeros = 0;                  // entries that are 0, as the truth is: in no bin
  int64_t entries = 0;                // all
  double absolute = 0.0;              // sum of |entry - truth|
  double magnitude = 0.0;             // sum of |truth|

  /// The upper end of a bin in units, infinite for the last one.
  static double upper_end(int bin);
  /// "1/2", "1", ..., "256", "more".
  static std::string bin_name(int bin);

  /// The entries of `value` against those of `truth`, in units of the truth in `format`. Throws InputError
  /// where shapes differ.
  void add(const at::Tensor& value, const at::Tensor& truth, at::ScalarType format);
  void add(const EntryErrors& others);

  /// Of entries in bins, the share that lies in `bin`; 0 where there are none.
  double share(int bin) const;
  double mean_absolute() const { return absolute / static_cast<double>(entries); }
  double relative() const { return absolute / magnitude; }
};

}  // namespace streambp::verify
