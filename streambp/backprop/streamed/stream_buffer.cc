#include "streambp/backprop/streamed/stream_buffer.h"

#include <algorithm>
#include <utility>

#include "streambp/memory/meter.h"

namespace streambp {

StreamBuffer::StreamBuffer(const std::vector<int64_t>& shape, const at::TensorOptions& options,
                           std::shared_ptr<HostCopies> copies, int64_t piece_bytes)
    : piece_rows_(std::max<int64_t>(1, shape.front())), copies_(std::move(copies)) {
  if (copies_ == nullptr) {
    pieces_.push_back(at::empty(shape, options));
    return;
  }
  std::vector<int64_t> piece = shape;
  auto row_bytes = static_cast<int64_t>(options.dtype().itemsize());
  for (size_t i = 1; i < shape.size(); ++i) row_bytes *= shape[i];
  piece_rows_ = std::clamp<int64_t>(piece_bytes / std::max<int64_t>(1, row_bytes), 1, piece_rows_);
  const HostMemoryScope host;
  for (int64_t begin = 0; begin < shape.front(); begin += piece_rows_) {
    piece.front() = std::min(piece_rows_, shape.front() - begin);
    pieces_.push_back(at::empty(
        piece, options.device().is_cuda() ? options.device(at::kCPU).pinned_memory(true) : options));
  }
}

StreamBuffer& StreamBuffer::operator=(StreamBuffer&& other) noexcept {
  forget_expected();
  pieces_ = std::exchange(other.pieces_, {});
  piece_rows_ = other.piece_rows_;
  copies_ = std::move(other.copies_);
  expected_ = std::exchange(other.expected_, {});
  return *this;
}

std::vector<at::Tensor> StreamBuffer::pieces(int64_t begin, int64_t end) const {
  std::vector<at::Tensor> parts;
  while (begin < end) {
    const int64_t in_piece = begin % piece_rows_;
    const at::Tensor& piece = pieces_[static_cast<size_t>(begin / piece_rows_)];
    const int64_t count = std::min(end - begin, piece.size(0) - in_piece);
    parts.push_back(piece.narrow(0, in_piece, count));
    begin += count;
  }
  return parts;
}

void StreamBuffer::expect(int64_t begin, int64_t end) const {
  if (copies_ == nullptr || find_expected(begin, end) != expected_.end()) return;
  expected_.push_back({begin, end, copies_->fetch(pieces(begin, end))});
}

at::Tensor StreamBuffer::rows(int64_t begin, int64_t end) const {
  if (copies_ == nullptr) return pieces_.front().narrow(0, begin, end - begin);
  expect(begin, end);
  const auto found = find_expected(begin, end);
  const at::Tensor rows = copies_->arrive(std::move(found->arriving));
  expected_.erase(found);
  return rows;
}

std::vector<StreamBuffer::Expected>::iterator StreamBuffer::find_expected(int64_t begin, int64_t end) const {
  return std::find_if(expected_.begin(), expected_.end(),
                      [&](const Expected& rows) { return rows.begin == begin && rows.end == end; });
}

void StreamBuffer::store(int64_t begin, const at::Tensor& rows) const {
  if (copies_ == nullptr) {
    pieces_.front().narrow(0, begin, rows.size(0)).copy_(rows);
  } else {
    copies_->leave(rows, pieces(begin, begin + rows.size(0)));
  }
}

at::Tensor StreamBuffer::take() {
  at::Tensor all = std::move(pieces_.front());
  pieces_.clear();
  return all;
}

void StreamBuffer::reset() {
  forget_expected();
  pieces_.clear();
}

void StreamBuffer::forget_expected() const {
  for (Expected& rows : expected_) copies_->arrive(std::move(rows.arriving));
  expected_.clear();
}

}  // namespace streambp
