// From numbers to bitsandbytes' formats, bit for bit as its version 0.50 does it on the CPU. See quantized.h.
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "streambp/model/quantized/quantized.h"
#include "streambp/model/quantized/quantized_codes.h"
#include "streambp/ops/dry_run.h"

namespace streambp {
namespace {

constexpr double kSmallestMaximum = 1e-38;  // bitsandbytes' guard against a division by 0

at::Tensor tensor_of(const std::vector<float>& values, c10::Device device) {
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).to(device);
}

/// Of values [count]: float32 [blocks].
at::Tensor block_maxima(const at::Tensor& values, int64_t size) {
  const int64_t full = values.numel() / size;
  std::vector<at::Tensor> maxima;
  if (full > 0) maxima.push_back(values.narrow(0, 0, full * size).view({full, size}).abs().amax(1));
  if (full * size < values.numel())
    maxima.push_back(values.narrow(0, full * size, values.numel() - full * size).abs().amax(0, true));
  return at::cat(maxima);
}

/// The codes in ascending order; of equal ones the lower first.
std::vector<int64_t> ascending(const QuantCodes& codes) {
  std::vector<int64_t> order(codes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return codes[static_cast<size_t>(a)] < codes[static_cast<size_t>(b)];
  });
  return order;
}

/// The 8-bit numbers of "8-bit Approximations for Parallelism in Deep Learning" (arXiv 1511.04561),
/// ascending: seven decades, each with twice as many as the one below, 0 and 1.
at::Tensor dynamic_map() {
  std::vector<at::Tensor> parts;
  for (int64_t decade = 0; decade < 7; ++decade) {
    const int64_t count = int64_t{1} << decade;
    const at::Tensor bounds = at::linspace(0.1, 1.0, count + 1, at::kFloat);
    const at::Tensor means = bounds.narrow(0, 0, count).add(bounds.narrow(0, 1, count)).div_(2.0);
    const double scale = std::pow(10.0, static_cast<double>(decade - 6));
    parts.insert(parts.end(), {means.mul(scale), means.mul(-scale)});
  }
  parts.push_back(tensor_of({0.0F, 1.0F}, at::kCPU));
  return std::get<0>(at::cat(parts).sort());
}

/// bitsandbytes looks codes up in a table of 65,536 steps between -1 and 1: which code each of them gets.
std::vector<uint8_t> codes_of_steps(const float* codes, int64_t steps) {
  std::vector<uint8_t> found(static_cast<size_t>(steps));
  size_t code = 0;
  for (int64_t i = 0; i < steps; ++i) {
    const float value = -1.0F + (2.0F * static_cast<float>(i)) / static_cast<float>(steps - 1);
    while (code < 255 && 0.5F * (codes[code] + codes[code + 1]) < value) ++code;
    found[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
  }
  return found;
}

/// Replaces the maxima of `quantized` by 8-bit codes of them.
void quantize_maxima(QuantizedTensor& quantized) {
  constexpr int64_t kSteps = 65536;
  const c10::Device device = quantized.absmax.device();
  const at::Tensor offset = quantized.absmax.mean();
  const at::Tensor values = quantized.absmax.sub(offset).cpu();
  const at::Tensor maxima = block_maxima(values, kNestedBlockSize), map = dynamic_map();
  const at::Tensor codes = at::empty(values.sizes(), at::kByte);
  const std::vector<uint8_t> found = codes_of_steps(map.const_data_ptr<float>(), kSteps);
  const float* const value = values.const_data_ptr<float>();
  const float* const maximum = maxima.const_data_ptr<float>();
  auto* const code = codes.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const float largest = maximum[i / kNestedBlockSize];
    if (largest == 0.0F) {
      code[i] = 0;
      continue;
    }
    const float scaled = std::clamp(value[i] * (1.0F / largest), -1.0F, 1.0F);
    // Its compiler fuses the last product and sum.
    const float step = std::fma((scaled + 1.0F) * 0.5F, static_cast<float>(kSteps - 1), 0.5F);
    code[i] = found[static_cast<size_t>(step)];
  }
  quantized.absmax = codes.to(device);
  quantized.nested_absmax = maxima.to(device);
  quantized.nested_code = map.to(device);
  quantized.nested_blocksize = kNestedBlockSize;
  quantized.nested_offset = offset.item<double>();
}

QuantizedTensor quantize_8bit(const at::Tensor& value) {
  const at::Tensor half = value.to(at::kHalf);
  const at::Tensor maxima = half.abs().amax(1).to(at::kFloat);
  const at::Tensor factors = maxima.reciprocal().mul_(127.0);
  // A row of zeros has no factor.
  const at::Tensor rounded = half.to(at::kFloat).mul_(factors.unsqueeze(1)).round_().nan_to_num_(0.0);
  QuantizedTensor quantized;
  quantized.type = QuantType::kInt8;
  quantized.shape = value.sizes().vec();
  quantized.packed = rounded.to(at::kChar);
  quantized.absmax = maxima;
  return quantized;
}

/// What has to be multiplied, and divided in a block that is not full, as bitsandbytes does it; and clamped.
void scale_down(const at::Tensor& values, at::Tensor& maxima) {
  const int64_t full = values.numel() / kQuantBlockSize, whole = full * kQuantBlockSize;
  const at::Tensor guarded = maxima.clamp_min(kSmallestMaximum);
  if (full > 0)
    multiply_blocks(values.narrow(0, 0, whole), guarded.narrow(0, 0, full).reciprocal(), kQuantBlockSize);
  if (whole < values.numel()) {
    const at::Tensor last = guarded.narrow(0, full, 1);
    maxima.narrow(0, full, 1).copy_(last);
    values.narrow(0, whole, values.numel() - whole).div_(last);
  }
  values.clamp_(-1.0, 1.0);
}

QuantizedTensor quantize_4bit(const at::Tensor& value, const Quantization& quantization) {
  QuantizedTensor quantized;
  quantized.type = quantization.type;
  quantized.shape = value.sizes().vec();
  quantized.dtype = value.scalar_type();
  quantized.blocksize = kQuantBlockSize;
  const QuantCodes& codes = codes_of(quantization.type);
  const std::vector<int64_t> order = ascending(codes);
  std::vector<float> bounds;  // halfway between neighbours
  for (size_t i = 0; i + 1 < order.size(); ++i)
    bounds.push_back((codes[static_cast<size_t>(order[i])] + codes[static_cast<size_t>(order[i + 1])]) /
                     2.0F);
  at::Tensor scaled = value.reshape({-1}).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  quantized.absmax = block_maxima(scaled, kQuantBlockSize);
  scale_down(scaled, quantized.absmax);
  if (scaled.numel() % 2 != 0) scaled = at::constant_pad_nd(scaled, {0, 1});
  const at::Tensor ranks = at::bucketize(scaled, tensor_of(bounds, value.device()), /*out_int32=*/true);
  const at::Tensor nibbles =
      at::tensor(order, at::kLong).to(value.device(), at::kByte).index_select(0, ranks).view({-1, 2});
  quantized.packed = nibbles.select(1, 0).mul(16).add_(nibbles.select(1, 1));
  if (quantization.double_quant) quantize_maxima(quantized);
  return quantized;
}

/// Shapes and dtypes of what quantize() gives.
QuantizedTensor quantized_shapes(const at::Tensor& value, const Quantization& quantization) {
  const auto floats = value.options().dtype(at::kFloat), bytes = value.options().dtype(at::kByte);
  QuantizedTensor shapes;
  shapes.type = quantization.type;
  shapes.shape = value.sizes().vec();
  if (quantization.type == QuantType::kInt8) {
    shapes.packed = at::empty(shapes.shape, value.options().dtype(at::kChar));
    shapes.absmax = at::empty({value.size(0)}, floats);
    return shapes;
  }
  const int64_t blocks = blocks_of(value.numel(), kQuantBlockSize);
  shapes.dtype = value.scalar_type();
  shapes.blocksize = kQuantBlockSize;
  shapes.packed = at::empty({blocks_of(value.numel(), 2)}, bytes);
  shapes.absmax = at::empty({blocks}, quantization.double_quant ? bytes : floats);
  if (!quantization.double_quant) return shapes;
  shapes.nested_blocksize = kNestedBlockSize;
  shapes.nested_absmax = at::empty({blocks_of(blocks, kNestedBlockSize)}, floats);
  shapes.nested_code = at::empty({256}, floats);
  return shapes;
}

}  // namespace

QuantizedTensor quantize(const at::Tensor& value, const Quantization& quantization) {
  const at::Tensor narrow = value.scalar_type() == at::kDouble ? value.to(at::kFloat) : value;
  if (!has_values(narrow)) return quantized_shapes(narrow, quantization);
  return quantization.type == QuantType::kInt8 ? quantize_8bit(narrow) : quantize_4bit(narrow, quantization);
}

}  // namespace streambp
