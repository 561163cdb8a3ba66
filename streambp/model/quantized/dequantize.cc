// From bitsandbytes' formats to numbers, by our kernels or op by op in ATen. See quantized.h.
#include <algorithm>
#include <array>

#include "streambp/model/quantized/quantized.h"
#include "streambp/model/quantized/quantized_codes.h"
#include "streambp/ops/fused.h"

namespace streambp {
namespace {

/// Values that ops of ATen dequantise at a time; a multiple of every block size.
constexpr int64_t kDequantizedAtOnce = int64_t{1} << 22;

/// float32 [blocks].
at::Tensor maxima_of(const QuantizedTensor& quantized) {
  if (!quantized.nested()) return quantized.absmax;
  const at::Tensor maxima = quantized.nested_code.index_select(0, quantized.absmax.to(at::kInt));
  multiply_blocks(maxima, quantized.nested_absmax, quantized.nested_blocksize);
  return maxima.add_(quantized.nested_offset);
}

cpu::PackedNumbers packed_numbers(const QuantizedTensor& quantized, at::ScalarType into) {
  cpu::PackedNumbers from{.bits = quantized.type == QuantType::kInt8 ? 8 : 4,
                          .bytes = kernel_data<const uint8_t>(quantized.packed),
                          .block_size = quantized.blocksize,
                          .count = c10::multiply_integers(quantized.shape)};
  if (from.bits == 8) {
    from.block_size = quantized.shape[1];
  } else {
    std::copy_n(codes_of(quantized.type).begin(), codes_of(quantized.type).size(), from.codes);
  }
  if (!quantized.nested()) from.maxima = kernel_data<const float>(quantized.absmax);
  if (quantized.dtype != into && quantized.dtype != at::kFloat)
    from.rounding = quantized.dtype == at::kHalf ? cpu::Rounding::kHalf : cpu::Rounding::kBfloat16;
  return from;
}

cuda::NestedMaxima nested_maxima(const QuantizedTensor& quantized) {
  if (!quantized.nested()) return {};
  return {.codes = kernel_data<const uint8_t>(quantized.absmax),
          .code = kernel_data<const float>(quantized.nested_code),
          .maxima = kernel_data<const float>(quantized.nested_absmax),
          .block_size = quantized.nested_blocksize,
          .offset = static_cast<float>(quantized.nested_offset)};
}

/// Maxima [begin, begin + count). Not among the kernels of the CPU, whose compilers may make one of a product
/// and a sum.
void decode_maxima(const cuda::NestedMaxima& nested, int64_t begin, int64_t count, float* maxima) {
  for (int64_t i = begin; i < begin + count;) {
    const int64_t block = i / nested.block_size;
    const int64_t end = std::min((block + 1) * nested.block_size, begin + count);
    for (; i < end; ++i)
      maxima[i - begin] = nested.code[nested.codes[i]] * nested.maxima[block] + nested.offset;
  }
}

/// Blocks [begin, end) of all those of `from`.
template <typename S>
void dequantize_blocks(const cpu::PackedNumbers& from, const cuda::NestedMaxima& nested, int64_t begin,
                       int64_t end, S* to) {
  constexpr int64_t kAtOnce = 256;
  std::array<float, kAtOnce> decoded;
  const int64_t at_once = nested.codes != nullptr ? kAtOnce : end - begin;
  for (; begin < end; begin += at_once) {
    const int64_t blocks = std::min(at_once, end - begin), first = begin * from.block_size;
    cpu::PackedNumbers part = from;
    part.bytes += first * from.bits / 8;
    part.count = std::min(blocks * from.block_size, from.count - first);
    if (nested.codes != nullptr) {
      decode_maxima(nested, begin, blocks, decoded.data());
      part.maxima = decoded.data();
    } else {
      part.maxima += begin;
    }
    cpu::kernels().of<S>().elementwise.dequantize.numbers(part, to + first);
  }
}

}  // namespace

void dequantize_plain(const QuantizedTensor& quantized, const at::Tensor& into) {
  const bool by_rows = quantized.type == QuantType::kInt8;
  const int64_t width = by_rows ? into.size(1) : 1;
  const int64_t at_once = std::max<int64_t>(kDequantizedAtOnce / width, 1) * width;
  const at::Tensor flat = into.view({-1}), packed = quantized.packed.view({-1});
  const at::Tensor maxima = maxima_of(quantized);
  const at::Tensor pairs =
      by_rows ? at::Tensor() : pairs_of(codes_of(quantized.type), /*high_first=*/true, into.device());
  const int64_t blocksize = by_rows ? width : quantized.blocksize;
  const int64_t parts = blocks_of(flat.numel(), at_once);
  for (int64_t part = 0; part < parts; part += steps_in_one(into.device(), parts)) {
    const int64_t begin = part * at_once, count = std::min(at_once, flat.numel() - begin);
    at::Tensor values;
    if (by_rows) {
      values = packed.narrow(0, begin, count).to(at::kFloat);
    } else {
      const at::Tensor bytes = packed.narrow(0, begin / 2, blocks_of(count, 2)).to(at::kInt);
      values = pairs.index_select(0, bytes).view(at::kFloat).narrow(0, 0, count);
    }
    multiply_blocks(values, maxima.narrow(0, begin / blocksize, blocks_of(count, blocksize)), blocksize);
    if (by_rows) values.mul_(cpu::kPer127);
    const bool same = into.scalar_type() == quantized.dtype;
    flat.narrow(0, begin, count).copy_(same ? values : values.to(quantized.dtype));
  }
}

void dequantize_into(const QuantizedTensor& quantized, const at::Tensor& into) {
  TORCH_CHECK(into.sizes() == at::IntArrayRef(quantized.shape), "dequantize_into: another shape");
  if (into.numel() == 0) return;
  if (!has_fused_kernels({into})) return dequantize_plain(quantized, into);
  launch_for(into, [&](auto number) {
    using S = decltype(number);
    const cpu::PackedNumbers from = packed_numbers(quantized, into.scalar_type());
    const cuda::NestedMaxima nested = nested_maxima(quantized);
    S* const to = kernel_data<S>(into);
    if (is_for_cuda(into)) {
      const auto launch = cuda::kernels()->of<S>().dequantize.numbers;
      return expect_launched(launch(cuda_queue(into), from, nested, to), "dequantize");
    }
    at::parallel_for(0, blocks_of(from.count, from.block_size), rows_per_thread(from.block_size),
                     [&](int64_t begin, int64_t end) { dequantize_blocks(from, nested, begin, end, to); });
  });
}

}  // namespace streambp
