// A rank of one of torch's own process groups: messages over a c10d::Backend.
#pragma once

#include <chrono>
#include <cstdint>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "streambp/distributed/transport/communicator.h"

namespace streambp {

/// Exchanges messages over a backend for tensors on the CPU; those on a GPU go through the host, or over a
/// second backend of their own.
class BackendRank : public Communicator {
 public:
  /// `patience`: how long a message is waited for, or c10d's kNoTimeout: as long as the backend has it.
  /// Messages carry the tags from `first_tag` on, one for each collective.
  /// `of_device`: takes the messages of tensors on a GPU (NCCL, which knows no tags); null: there is none.
  BackendRank(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds patience, int first_tag,
              c10::intrusive_ptr<c10d::Backend> of_device = nullptr);

 protected:
  void exchange(Collective collective, const at::Tensor& sent, int64_t to, const at::Tensor& received,
                int64_t from) override;

  /// The rank that keeps this one waiting, where a message from or to `other` has failed.
  virtual int64_t culprit(int64_t other) { return other; }

 private:
  template <typename Body>
  void attempt(Collective collective, int64_t other, const Body& body);
  void exchange_on_device(Collective collective, const at::Tensor& sent, int64_t to,
                          const at::Tensor& received, int64_t from);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::chrono::milliseconds patience_;
  int first_tag_;
  c10::intrusive_ptr<c10d::Backend> of_device_;  // null: none
};

}  // namespace streambp
