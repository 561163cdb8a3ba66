// Which library's attention kernels serve a shape: by measurement, or without one where that is known.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "streambp/ops/attention/attention_device.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {

/// Times the libraries on the shapes that come again, and remembers which was fastest.
class AttentionChooser {
 public:
  /// Pairs of a query and a key below which a choice is not worth its measurement: cuDNN takes longer to plan
  /// a shape than passes over many such blocks take.
  static constexpr int64_t kPairsToChoose = int64_t{1} << 20;

  /// Throws InputError where the variable STREAMBP_ATTENTION names none of `kernels`.
  AttentionChooser(std::vector<DeviceAttention> kernels, int64_t least_pairs, Served served);

  Served served() const { return served_; }

  /// The kernels that take every shape.
  const DeviceAttention& first() const { return kernels_.front(); }

  /// Of those that take squares and rectangles, the fastest for `work` ("forward", "backward") on operands of
  /// about this shape, by one measurement for all of them. A shape that occurs for the first time may be the
  /// only one of its kind: what leads without a measurement serves it.
  const DeviceAttention& choose(const char* work, const AttentionOperands& operands,
                                const std::function<void(const DeviceAttention&)>& run);

  /// What run(chosen) gives; what run(first()) gives where the chosen library has no kernel for these very
  /// operands, which is remembered for all of about their shape.
  template <typename Run>
  auto run_chosen(const DeviceAttention& chosen, const char* work, const AttentionOperands& operands,
                  const Run& run) {
    if (&chosen == &first() || &chosen == only_) return run(chosen);
    try {
      return run(chosen);
    } catch (const c10::Error& error) {
      if (torch_private::is_device_lost(error) || torch_private::is_out_of_device_memory(error)) throw;
      set_unsupported(chosen, work, operands);
    }
    return run(first());
  }

  /// What the chosen library's run(library) gives.
  template <typename Run>
  auto run(const char* work, const AttentionOperands& operands, const Run& run) {
    return run_chosen(choose(work, operands, [&](const DeviceAttention& one) { run(one); }), work, operands,
                      run);
  }

  /// As attention_choices().
  std::vector<std::string> report() const;

 private:
  struct Choice {
    int seen = 0;
    const DeviceAttention* fastest = nullptr;
    std::string measured_on;
    std::vector<std::string> times;
  };

  /// What serves operands of which nothing is measured yet.
  const DeviceAttention& leading(const AttentionOperands& operands) const;

  void measure(Choice& choice, c10::Device device, const std::function<void(const DeviceAttention&)>& run);
  void set_unsupported(const DeviceAttention& chosen, const char* work, const AttentionOperands& operands);

  std::vector<DeviceAttention> kernels_;
  int64_t least_pairs_;
  Served served_;
  const DeviceAttention* only_ = nullptr;
  mutable std::mutex mutex_;
  std::map<std::string, Choice> choices_;
};

}  // namespace streambp
