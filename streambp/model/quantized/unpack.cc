#include "streambp/model/quantized/unpack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "streambp/model/files/tensor_file.h"
#include "streambp/model/quantized/quantized_codes.h"

namespace streambp {
namespace {

/// Values that are dequantised at a time.
constexpr int64_t kUnpackedAtOnce = int64_t{1} << 22;

/// Bytes [begin, begin + count) of what is stored.
at::Tensor read_bytes(const StoredTensor& stored, int64_t begin, int64_t count, c10::Device device) {
  const at::Tensor bytes = at::empty({count}, at::kByte);
  stored.read(static_cast<uint64_t>(begin),
              {static_cast<std::byte*>(bytes.mutable_data_ptr()), static_cast<size_t>(count)});
  return bytes.to(device);
}

/// By a byte, the power of two that it means as a scale: float32 [256].
at::Tensor powers_of_two(c10::Device device) {
  std::array<float, 256> powers{};
  for (int byte = 0; byte < 256; ++byte) powers[static_cast<size_t>(byte)] = std::ldexp(1.0F, byte - 127);
  return at::tensor(at::ArrayRef<float>(powers), at::kFloat).to(device);
}

/// By a byte, the two values of FP4 that it holds, each of a sign, two bits of exponent and one of fraction.
at::Tensor pairs_of_fp4(c10::Device device) {
  static constexpr QuantCodes kE2m1 = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                       -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  return pairs_of(kE2m1, /*high_first=*/false, device);
}

void mxfp4_into(const StoredTensor& blocks, const StoredTensor& scales, at::ScalarType dtype,
                const at::Tensor& into) {
  const c10::Device device = into.device();
  const at::Tensor pairs = pairs_of_fp4(device), powers = powers_of_two(device);
  const int64_t inputs = into.size(1), outputs = into.size(2), count = inputs / kMxfp4Block;
  const int64_t at_once = std::max<int64_t>(kUnpackedAtOnce / inputs, 1);
  for (int64_t expert = 0; expert < into.size(0); ++expert) {
    for (int64_t begin = 0; begin < outputs; begin += at_once) {
      const int64_t rows = std::min(at_once, outputs - begin), first = (expert * outputs + begin) * count;
      const auto read = [&](const StoredTensor& stored, int64_t each) {
        return read_bytes(stored, first * each, rows * count * each, device).to(at::kInt);
      };
      const at::Tensor values = pairs.index_select(0, read(blocks, kMxfp4Block / 2)).view(at::kFloat);
      multiply_blocks(values, powers.index_select(0, read(scales, 1)), kMxfp4Block);
      into.select(0, expert).narrow(1, begin, rows).copy_(values.to(dtype).view({rows, inputs}).t());
    }
  }
}

/// float32 [rows, columns of the grid].
at::Tensor read_scales(const StoredTensor& stored, c10::Device device) {
  const SafetensorsEntry& entry = stored.entry();
  const std::vector<int64_t> grid = entry.shape.size() == 2 ? entry.shape : std::vector<int64_t>{1, 1};
  const bool is_exponent = entry.dtype == "U8", is_power = entry.dtype == "F8_E8M0";
  if (is_exponent || is_power) {
    const at::Tensor bytes = read_bytes(stored, 0, grid[0] * grid[1], device);
    return (is_power ? bytes.view(at::kFloat8_e8m0fnu).to(at::kFloat)
                     : powers_of_two(device).index_select(0, bytes.to(at::kInt)))
        .view(grid);
  }
  const at::Tensor scales = at::empty(grid, at::TensorOptions().dtype(at::kFloat).device(device));
  read_into(stored, scales);
  return scales;
}

/// Multiplies values [rows, columns] by scales [rows, blocks], of blocks of `size` columns.
void multiply_columns(const at::Tensor& values, const at::Tensor& scales, int64_t size) {
  const int64_t rows = values.size(0), full = values.size(1) / size, whole = full * size;
  if (full > 0)
    values.narrow(1, 0, whole).view({rows, full, size}).mul_(scales.narrow(1, 0, full).unsqueeze(2));
  if (whole < values.size(1)) values.narrow(1, whole, values.size(1) - whole).mul_(scales.narrow(1, full, 1));
}

void fp8_into(const Packing& packing, const StoredTensor& weight, const StoredTensor& stored_scales,
              at::ScalarType dtype, const at::Tensor& into) {
  const int64_t columns = into.size(1);
  const bool of_pairs = weight.entry().dtype == kPairsDtype;
  std::array<int64_t, 2> block = packing.block.value_or(std::array{into.size(0), columns});
  if (of_pairs) block = {1, kMxfp4Block};
  const at::Tensor scales = read_scales(stored_scales, into.device());
  const at::Tensor pairs = of_pairs ? pairs_of_fp4(into.device()) : at::Tensor();
  const auto read = [&](int64_t begin, int64_t count) {
    if (!of_pairs)
      return read_bytes(weight, begin, count, into.device()).view(at::kFloat8_e4m3fn).to(at::kFloat);
    const at::Tensor bytes = read_bytes(weight, begin / 2, count / 2, into.device());
    return pairs.index_select(0, bytes.to(at::kInt)).view(at::kFloat);
  };
  const int64_t at_once = std::max<int64_t>(kUnpackedAtOnce / columns, 1);
  for (int64_t begin = 0; begin < into.size(0); begin += at_once) {
    const int64_t rows = std::min(at_once, into.size(0) - begin);
    const at::Tensor values = read(begin * columns, rows * columns).view({rows, columns});
    const at::Tensor of_rows =
        at::arange(begin, begin + rows, scales.options().dtype(at::kLong)).floor_divide_(block[0]);
    multiply_columns(values, scales.index_select(0, of_rows), block[1]);
    into.narrow(0, begin, rows).copy_(values.to(dtype));
  }
}

}  // namespace

void unpack_into(const Packing& packing, const FindStored& find, const std::string& name,
                 at::ScalarType dtype, const at::Tensor& into) {
  if (into.is_meta() || into.numel() == 0) return;
  const StoredTensor &packed = find(name), &scales = find(scales_name(packing, name));
  if (packing.format == PackedFormat::kMxfp4) return mxfp4_into(packed, scales, dtype, into);
  fp8_into(packing, packed, scales, dtype, into);
}

}  // namespace streambp
