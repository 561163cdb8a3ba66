// The cases of `streambp-verify long`: sizes at which an index, a length or a product of the two no longer
// fits into 16, 31 or 32 bits. Each runs one op or one whole pass and compares sampled rows with plain loops
// in double (long_truth.h), never with the same op.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::verify {

/// What a case compares. Remembers the comparison that came closest to its limit, or went furthest beyond.
class LongCheck {
 public:
  /// Each row of `got` [m, ...] against the same row of `truth` (float64): relative errors, all of them held
  /// against `limit`. A limit of 0 asks for equal numbers.
  void rows(const std::string& what, const at::Tensor& got, const at::Tensor& truth, double limit);

  /// Rows that may be small relative to the others: errors relative to the row's norm or the root mean square
  /// of all rows' norms, whichever is larger.
  void rows_of_one_scale(const std::string& what, const at::Tensor& got, const at::Tensor& truth,
                         double limit);

  /// A tensor as a whole.
  void whole(const std::string& what, const at::Tensor& got, const at::Tensor& truth, double limit);

  /// Any other error.
  void error(const std::string& what, double error, double limit);

  int64_t sampled() const { return sampled_; }
  const std::string& worst() const { return worst_; }
  double worst_error() const { return worst_error_; }
  double worst_limit() const { return worst_limit_; }
  /// Whether every error was within its limit (NaN is not) and there was one.
  bool good() const { return good_ && sampled_ > 0; }

 private:
  bool good_ = true;
  int64_t sampled_ = 0;
  std::string worst_;
  double worst_error_ = 0.0;
  double worst_limit_ = 0.0;
  double worst_ratio_ = -1.0;
};

struct LongCase {
  std::string name;
  std::string crosses;  // what it goes across, for people
  int64_t bytes = 0;    // of tensors that it needs at most
  bool quick = false;   // also in the small part
  std::function<void(LongCheck&)> run;
};

/// Attention of one long sequence: whole, as a run after a prefix, within a window, capped.
std::vector<LongCase> long_attention_cases();
/// Single ops on tensors of more than 2^31 or 2^32 elements.
std::vector<LongCase> long_element_cases();
/// The LM head with more than 2^31 or 2^32 logits at once.
std::vector<LongCase> long_head_cases();
/// Whole passes of thin models: streambp against standard and against the decoder written out.
std::vector<LongCase> long_pass_cases();

/// All of them, in that order.
std::vector<LongCase> long_cases();

enum class LongVerdict { kPass, kFail, kSkipped, kOutOfMemory };

/// What became of a case.
struct LongOutcome {
  LongVerdict verdict = LongVerdict::kPass;
  LongCheck check;
  double seconds = 0.0;
  int64_t peak_bytes = 0;
  std::string message;  // of an exception, or why it was skipped
};

/// Runs a case unless it needs more than `max_memory` bytes. A case that takes more than it says it needs
/// fails. The meters have to be installed.
LongOutcome run_long_case(const LongCase& of, int64_t max_memory);

}  // namespace streambp::verify
