// The sequences of a run of the packed stream whose first rows continue earlier ones, by the numbers that
// rows have in their own sequences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// Rows `own` [n, ...] in sequences that `offsets` (0 first, n last) cut, the first of them behind `prefix`
/// [P,
/// ...], which may be undefined.
class SequenceRows {
 public:
  SequenceRows(at::Tensor own, at::Tensor prefix, std::vector<int64_t> offsets)
      : own_(std::move(own)), prefix_(std::move(prefix)), offsets_(std::move(offsets)) {}

  size_t count() const { return offsets_.size() - 1; }
  /// The rows of sequence s before its first one in `own`.
  int64_t earlier(size_t s) const { return s == 0 && prefix_.defined() ? prefix_.size(0) : 0; }
  /// The rows of sequence s so far.
  int64_t length(size_t s) const { return earlier(s) + offsets_[s + 1] - offsets_[s]; }

  /// Rows [begin, end) of sequence s.
  at::Tensor of(size_t s, int64_t begin, int64_t end) const {
    std::vector<at::Tensor> parts;
    for_each_part(s, begin, end, [&](bool in_prefix, int64_t first, int64_t, int64_t rows) {
      parts.push_back((in_prefix ? prefix_ : own_).narrow(0, first, rows));
    });
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  }

  /// Calls visit(whether it is of the prefix, its first row there, its first row of [begin, end), rows) for
  /// the one or two parts of rows [begin, end) of sequence s, which are not empty.
  template <typename Visit>
  void for_each_part(size_t s, int64_t begin, int64_t end, Visit visit) const {
    const int64_t of_prefix = std::clamp<int64_t>(earlier(s) - begin, 0, end - begin);
    if (of_prefix > 0) visit(true, begin, int64_t{0}, of_prefix);
    const int64_t rest = end - begin - of_prefix;
    if (rest > 0) visit(false, offsets_[s] + begin + of_prefix - earlier(s), of_prefix, rest);
  }

  const at::Tensor& own() const { return own_; }

 private:
  at::Tensor own_, prefix_;
  std::vector<int64_t> offsets_;
};

/// Sums of gradients of such rows: of the own, and where somebody wants them the prefix's, in its buffer.
class SequenceGradients {
 public:
  SequenceGradients(const SequenceRows& rows, at::Tensor of_prefix, at::ScalarType wide)
      : rows_(rows),
        own_(at::zeros(rows.own().sizes(), rows.own().options().dtype(wide))),
        prefix_(std::move(of_prefix)) {}

  /// Adds d to rows [begin, end) of sequence s.
  void add(size_t s, int64_t begin, int64_t end, const at::Tensor& d) const {
    rows_.for_each_part(s, begin, end, [&](bool in_prefix, int64_t first, int64_t from, int64_t rows) {
      const at::Tensor& sum = in_prefix ? prefix_ : own_;
      if (sum.defined()) sum.narrow(0, first, rows).add_(d.narrow(0, from, rows));
    });
  }

  at::Tensor of_own() const { return own_.to(rows_.own().scalar_type()); }

 private:
  const SequenceRows& rows_;
  at::Tensor own_, prefix_;
};

}  // namespace streambp
