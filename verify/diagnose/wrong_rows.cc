#include "verify/diagnose/wrong_rows.h"

#include <cmath>
#include <cstdint>
#include <fmt/format.h>

#include "verify/compare/fit.h"
#include "verify/error_measure.h"

namespace streambp::verify {

namespace {

/// Of rows, or of columns where both are transposed.
std::string wrong_lines_text(const at::Tensor& gradient, const at::Tensor& truth, double limit,
                             const char* line) {
  const at::Tensor g = gradient.reshape({gradient.size(0), -1}), t = truth.reshape({truth.size(0), -1});
  const at::Tensor off = (g - t).norm(2, 1), norm = t.norm(2, 1);
  const at::Tensor wrong = off > limit * norm.max();
  const at::Tensor indices = wrong.nonzero().squeeze(1);
  const int64_t all = t.size(0), count = indices.size(0);
  if (count == 0 || 4 * count > 3 * all) return "";
  const int64_t first = indices[0].item<int64_t>(), last = indices[count - 1].item<int64_t>();
  if (last - first + 1 != count) return "";
  const at::Tensor own = g.narrow(0, first, count), right = t.narrow(0, first, count);
  const double factor = factor_of(own, right);
  const bool none = norm_of(own) <= kNoGradient * norm_of(right);
  const bool multiple =
      !none && std::isfinite(factor) && factor != 0.0 && relative_error(own / factor, right) <= limit;
  return fmt::format("{}{} of {}{}", line,
                     count == 1 ? fmt::format(" {}", first) : fmt::format("s {} to {}", first, last), all,
                     none       ? ", which have no gradient"
                     : multiple ? fmt::format(", by a factor of {:.6g}", factor)
                                : "");
}

}  // namespace

std::string wrong_rows_text(const at::Tensor& gradient, const at::Tensor& truth, double limit) {
  const std::string text = wrong_lines_text(gradient, truth, limit, "row");
  return text.empty() && truth.dim() == 2 ? wrong_lines_text(gradient.t(), truth.t(), limit, "column") : text;
}

}  // namespace streambp::verify
