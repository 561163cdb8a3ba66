#include "streambp/distributed/transport/concatenation.h"

#include <algorithm>

#include "streambp/error.h"

namespace streambp {

Concatenation::Concatenation(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) throw InputError("a concatenation of no tensors, expected at least one");
  options_ = tensors.front().options();
  starts_.push_back(0);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous())
      throw InputError("a tensor of shape [{}] is not contiguous, expected one that ranks can exchange",
                       fmt::join(tensor.sizes(), ", "));
    if (tensor.scalar_type() != dtype() || tensor.device() != options_.device())
      throw InputError("tensors in {} on {} and in {} on {}, expected one dtype and one device",
                       c10::toString(dtype()), options_.device().str(), c10::toString(tensor.scalar_type()),
                       tensor.device().str());
    flat_.push_back(tensor.view({-1}));
    starts_.push_back(starts_.back() + tensor.numel());
  }
}

std::vector<at::Tensor> Concatenation::parts(int64_t begin, int64_t end) const {
  std::vector<at::Tensor> found;
  auto i = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin()) - 1;
  for (; i < flat_.size() && starts_[i] < end; ++i) {
    const int64_t first = std::max(begin, starts_[i]), last = std::min(end, starts_[i + 1]);
    if (first < last) found.push_back(flat_[i].narrow(0, first - starts_[i], last - first));
  }
  return found;
}

at::Tensor Concatenation::view(int64_t begin, int64_t end) const {
  if (begin == end) return flat_.front().narrow(0, 0, 0);
  const std::vector<at::Tensor> found = parts(begin, end);
  return found.size() == 1 ? found.front() : at::Tensor();
}

at::Tensor Concatenation::read(int64_t begin, int64_t end) const {
  const at::Tensor one = view(begin, end);
  return one.defined() ? one : at::cat(parts(begin, end));
}

void Concatenation::write(int64_t begin, const at::Tensor& values) const {
  int64_t next = 0;
  for (const at::Tensor& part : parts(begin, begin + values.numel())) {
    part.copy_(values.narrow(0, next, part.numel()));
    next += part.numel();
  }
}

std::pair<int64_t, int64_t> shard_of(int64_t n, int64_t rank, int64_t ranks) {
  const int64_t share = (n + ranks - 1) / ranks;
  return {std::min(rank * share, n), std::min((rank + 1) * share, n)};
}

}  // namespace streambp
