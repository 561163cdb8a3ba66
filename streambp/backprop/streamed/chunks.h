// A stream cut into chunks, inside the library only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "streambp/model/model.h"

namespace streambp {

class StreamPart;

/// Neighbouring runs of `size` tokens; the last one may be shorter, and with a `part` those before its cuts.
/// Stream and part must outlive them.
class Chunks {
 public:
  Chunks(const Stream& stream, int64_t size, c10::Device device, const StreamPart* part = nullptr);

  int64_t size() const { return size_; }
  int64_t count() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t last() const { return count() - 1; }

  Rows rows(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    return stream_.rows(begins_[i], begins_[i + 1]);
  }

  at::Tensor tokens(const Rows& rows) const {
    return stream_.batch.tokens.narrow(0, rows.begin, rows.size());
  }

  /// The chunks that are run, in ascending order: all of them, but in a dry run one for all
  /// that are cut alike (as many rows, sequences beginning at the same offsets): the one with the longest
  /// prefix. The last chunk, which none looks at, stands for itself.
  const std::vector<int64_t>& to_run() const { return to_run_; }

  /// The same where chunks are alike only if `kind` of their rows is the same too.
  std::vector<int64_t> to_run_by(const std::function<std::vector<int64_t>(const Rows&)>& kind) const;

 private:
  const Stream& stream_;
  int64_t size_;
  c10::Device device_;
  const StreamPart* part_;
  std::vector<int64_t> begins_;  // of each chunk, and the end
  std::vector<int64_t> to_run_;
};

}  // namespace streambp
