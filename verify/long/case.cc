#include "verify/long/case.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "bench/cli/command_line.h"
#include "streambp/memory/meter.h"
#include "streambp/runtime/failure.h"
#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

/// An error relative to its limit.
double ratio_of(double error, double limit) {
  if (limit > 0.0) return error / limit;
  return error == 0.0 ? 0.0 : error * std::numeric_limits<double>::infinity();
}

at::Tensor flat_rows(const at::Tensor& x) {
  return x.reshape({x.size(0), -1}).to(at::kDouble);
}

/// The limit of live bytes while it lives, so that a case can't take more than it is given.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes) : before_(memory_limit(at::kCPU)) { set_memory_limit(at::kCPU, bytes); }
  ~MemoryLimit() { set_memory_limit(at::kCPU, before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  int64_t before_;
};

}  // namespace

void LongCheck::error(const std::string& what, double error, double limit) {
  ++sampled_;
  good_ = good_ && error <= limit;
  const double ratio = ratio_of(error, limit);
  if (!worst_.empty() && !is_worse(ratio, worst_ratio_)) return;
  worst_ = what;
  worst_error_ = error;
  worst_limit_ = limit;
  worst_ratio_ = ratio;
}

void LongCheck::rows(const std::string& what, const at::Tensor& got, const at::Tensor& truth, double limit) {
  if (got.size(0) != truth.size(0)) return error(what, std::numeric_limits<double>::quiet_NaN(), limit);
  const at::Tensor rows = flat_rows(got), expected = flat_rows(truth);
  for (int64_t i = 0; i < rows.size(0); ++i) error(what, relative_error(rows[i], expected[i]), limit);
}

void LongCheck::rows_of_one_scale(const std::string& what, const at::Tensor& got, const at::Tensor& truth,
                                  double limit) {
  if (got.size(0) != truth.size(0)) return error(what, std::numeric_limits<double>::quiet_NaN(), limit);
  const at::Tensor expected = flat_rows(truth);
  const double scale = norm_of(expected) / std::sqrt(static_cast<double>(expected.size(0)));
  const at::Tensor errors = (flat_rows(got) - expected).norm(2, {1}) / expected.norm(2, {1}).clamp_min(scale);
  error(what, errors.max().item<double>(), limit);  // ATen's maximum keeps a NaN
  sampled_ += expected.size(0) - 1;
}

void LongCheck::whole(const std::string& what, const at::Tensor& got, const at::Tensor& truth, double limit) {
  error(what, relative_error(got, truth), limit);
}

std::vector<LongCase> long_cases() {
  std::vector<LongCase> all;
  for (auto&& part : {long_attention_cases(), long_element_cases(), long_head_cases(), long_pass_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

LongOutcome run_long_case(const LongCase& of, int64_t max_memory) {
  LongOutcome outcome;
  if (of.bytes > max_memory) {
    outcome.verdict = LongVerdict::kSkipped;
    outcome.message =
        fmt::format("needs {}, {} are to be had", format_bytes(of.bytes), format_bytes(max_memory));
    return outcome;
  }
  const auto start = std::chrono::steady_clock::now();
  const int64_t before = read_meter(at::kCPU).live_bytes;
  reset_peak(at::kCPU);
  try {
    const MemoryLimit limit(before + of.bytes);
    of.run(outcome.check);
    outcome.verdict = outcome.check.good() ? LongVerdict::kPass : LongVerdict::kFail;
    if (outcome.check.sampled() == 0) outcome.message = "nothing was compared";
  } catch (const std::exception& error) {
    outcome.verdict = is_out_of_memory(error) ? LongVerdict::kOutOfMemory : LongVerdict::kFail;
    const std::string text = error.what();
    outcome.message = text.substr(0, text.find('\n'));
  }
  outcome.peak_bytes = read_meter(at::kCPU).peak_bytes - before;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

}  // namespace streambp::verify
