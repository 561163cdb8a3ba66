#include "streambp/ops/attention/attention_chooser.h"

#include <bit>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/Event.h>

#include "streambp/error.h"

namespace streambp {
namespace {

/// A library that serves an unmeasured shape is measured when the shape comes for the second time.
constexpr int kOccurrences = 2;

/// Seconds of one call of `run`, after another one that prepares what calls of its kind need.
double seconds_of(c10::Device device, const std::function<void()>& run) {
  constexpr int kCalls = 3;
  run();
  if (!device.is_cuda()) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls;
  }
  const c10::Stream stream = torch_private::current_stream(device);
  c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  start.record(stream);
  for (int i = 0; i < kCalls; ++i) run();
  end.record(stream);
  end.synchronize();
  return 1e-3 * start.elapsedTime(end) / kCalls;
}

std::string described(const char* work, const AttentionOperands& operands, const std::string& shape) {
  return fmt::format("{} {}{}", work, operands.causal ? "causal " : "", shape);
}

/// The same for shapes whose queries lie between the same powers of two, and whose keys do: batches of ever
/// new lengths then share a measurement.
std::string key_of(const char* work, const AttentionOperands& operands) {
  const auto power_above = [](int64_t count) { return std::bit_ceil(static_cast<uint64_t>(count)); };
  const at::Tensor &q = operands.q, &k = operands.k;
  return described(work, operands,
                   fmt::format("{} x {}, {}/{} heads of {}", power_above(q.size(0)), power_above(k.size(0)),
                               q.size(1), k.size(1), q.size(2)));
}

}  // namespace

AttentionChooser::AttentionChooser(std::vector<DeviceAttention> kernels, int64_t least_pairs, Served served)
    : kernels_(std::move(kernels)), least_pairs_(least_pairs), served_(served) {
  const char* const wanted = std::getenv("STREAMBP_ATTENTION");
  if (wanted == nullptr || *wanted == '\0') return;
  for (const DeviceAttention& one : kernels_) {
    if (one.name == wanted) only_ = &one;
  }
  if (only_ == nullptr) throw InputError("STREAMBP_ATTENTION '{}': expected flash or cudnn", wanted);
}

const DeviceAttention& AttentionChooser::choose(const char* work, const AttentionOperands& operands,
                                                const std::function<void(const DeviceAttention&)>& run) {
  if (only_ != nullptr) return *only_;
  // Only FlashAttention has a deterministic backward pass.
  if (at::globalContext().deterministicAlgorithms()) return first();
  if (operands.q.size(0) * operands.k.size(0) < least_pairs_) return first();
  const std::lock_guard lock(mutex_);
  Choice& choice = choices_[key_of(work, operands)];
  if (++choice.seen == kOccurrences) {
    choice.measured_on = described(work, operands, operands.shape());
    measure(choice, operands.q.device(), run);
  }
  return choice.fastest == nullptr ? leading(operands) : *choice.fastest;
}

std::vector<std::string> AttentionChooser::report() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [key, choice] : choices_) {
    if (choice.fastest != nullptr)
      lines.push_back(
          fmt::format("{}: {}: {}", choice.measured_on, fmt::join(choice.times, ", "), choice.fastest->name));
  }
  return lines;
}

const DeviceAttention& AttentionChooser::leading(const AttentionOperands& operands) const {
  for (const DeviceAttention& one : kernels_) {
    if (one.leads_from > 0 && operands.q.size(0) >= one.leads_from) return one;
  }
  return first();
}

void AttentionChooser::measure(Choice& choice, c10::Device device,
                               const std::function<void(const DeviceAttention&)>& run) {
  double least = std::numeric_limits<double>::infinity();
  for (const DeviceAttention& one : kernels_) {
    try {
      const double seconds = seconds_of(device, [&] { run(one); });
      choice.times.push_back(fmt::format("{} {:.3g} ms", one.name, 1e3 * seconds));
      if (seconds >= least) continue;
      least = seconds;
      choice.fastest = &one;
    } catch (const c10::Error& error) {
      if (torch_private::is_device_lost(error)) throw;  // no other kernel would run either
      // Or a shape that the library has no kernel for.
      choice.times.push_back(
          one.name + (torch_private::is_out_of_device_memory(error) ? " out of memory" : " unsupported"));
    }
  }
}

void AttentionChooser::set_unsupported(const DeviceAttention& chosen, const char* work,
                                       const AttentionOperands& operands) {
  const std::lock_guard lock(mutex_);
  choices_[key_of(work, operands)] = {.seen = kOccurrences,
                                      .fastest = &first(),
                                      .measured_on = described(work, operands, operands.shape()),
                                      .times = {chosen.name + " unsupported"}};
}

}  // namespace streambp
