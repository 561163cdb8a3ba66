// Every CUDA kernel gives the same bits whatever the order of its blocks and of the threads between two
// barriers: its sums are taken in one order. With the thread sanitizer nothing of them may race.
// STREAMBP_ORDERS=N: so many shuffled orders instead of 3.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "verify/tests/streambp/ops/cuda/kernel_testing.h"

namespace streambp::cuda {
namespace {

using on_host::Turns;

template <typename T>
void append(std::string& bytes, const std::vector<T>& results) {
  bytes.append(reinterpret_cast<const char*>(results.data()), results.size() * sizeof(T));
}

/// What a kernel is to write: NaN until then, or in whole numbers -1.
template <typename T>
std::vector<T> unwritten(int64_t count) {
  std::vector<T> all(static_cast<size_t>(count));
  std::memset(all.data(), 0xff, all.size() * sizeof(T));
  return all;
}

/// Results of body(), as bytes, in one order after another.
void expect_one_result(const std::string& what, const std::function<std::string()>& body) {
  const RestoredGrid restored;
  take_races();
  const std::string first = body();
  EXPECT_EQ(take_races(), 0) << what << ": races";
  if (kWatchesRaces) return;  // they show in any order, and take their time
  const char* const wanted = std::getenv("STREAMBP_ORDERS");
  const uint64_t shuffles = wanted != nullptr ? std::stoull(wanted) : 3;
  on_host::set_order({Turns::kBackward});
  EXPECT_TRUE(body() == first) << what << ", backward";
  for (uint64_t seed = 0; seed < shuffles; ++seed) {
    on_host::set_order({Turns::kShuffled, seed});
    EXPECT_TRUE(body() == first) << what << ", shuffled by seed " << seed;
  }
}

template <typename S>
class KernelOrders : public testing::Test {
 protected:
  const KernelTableOf<S>& kernels = kernels_on_host().of<S>();
};

TYPED_TEST_SUITE(KernelOrders, Types);

struct HeadShape {
  int64_t tokens, heads, size, half;
};

TYPED_TEST(KernelOrders, NormAndRotation) {
  using S = TypeParam;
  using W = Wide<S>;
  // Teams of 8 threads, of 32 and of a block; more rows than teams; numbers one by one.
  for (const auto& [tokens, heads, size, half] :
       {HeadShape{70, 2, 64, 32}, {9, 2, 256, 0}, {11, 1, 4096, 0}, {13, 3, 33, 11}}) {
    const int64_t rows = tokens * heads, parts = 5;
    const auto x = numbers<S>(rows * size, 1), dy = numbers<S>(rows * size, 2), weight = numbers<S>(size, 3),
               residual = numbers<S>(rows * size, 4), cosine = numbers<S>(tokens * half, 5),
               sine = numbers<S>(tokens * half, 6);
    expect_one_result(
        "norm of " + std::to_string(size), [&, tokens = tokens, heads = heads, size = size, half = half] {
          auto rstd = unwritten<W>(rows), sums = unwritten<W>(parts * size);
          auto y = unwritten<S>(rows * size), dx = unwritten<S>(rows * size);
          const NormRope<S> op{.heads = heads,
                               .size = size,
                               .weight = weight.data(),
                               .eps = 1e-6,
                               .rstd = rstd.data(),
                               .cosine = half > 0 ? cosine.data() : nullptr,
                               .sine = half > 0 ? sine.data() : nullptr,
                               .half = half,
                               .table_stride = half};
          const auto heads_of = [&](const std::vector<S>& all) {
            return Heads<const S>{all.data(), heads * size, size};
          };
          this->kernels.norm_rope.forward(kQueue, op, heads_of(x), residual.data(), y.data(), tokens);
          this->kernels.norm_rope.backward(kQueue, op, heads_of(x), heads_of(dy), dx.data(), sums.data(),
                                           parts, tokens);
          std::string bytes;
          append(bytes, y);
          append(bytes, dx);
          append(bytes, rstd);
          append(bytes, sums);
          return bytes;
        });
  }
}

TYPED_TEST(KernelOrders, Gate) {
  using S = TypeParam;
  for (const auto& [rows, size] : {std::pair<int64_t, int64_t>{7, 1040}, {9, 301}}) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const auto gate = numbers<S>(rows * size, 1), up = numbers<S>(rows * size, 2),
                 d = numbers<S>(rows * size, 3), weights = numbers<S>(rows, 4);
      for (const bool weighted : {false, true}) {
        expect_one_result("gate of " + std::to_string(size), [&, rows = rows, size = size] {
          auto product = unwritten<S>(rows * size), d_weights = unwritten<S>(rows);
          this->kernels.gate.product(kQueue, activation, gate.data(), up.data(), product.data(), rows * size);
          auto d_gate = gate, d_up = up, d_product = d;
          this->kernels.gate.backward(kQueue,
                                      {.activation = activation,
                                       .size = size,
                                       .gate = d_gate.data(),
                                       .up = d_up.data(),
                                       .d_product = d_product.data(),
                                       .wants_product = true,
                                       .row_weights = weighted ? weights.data() : nullptr,
                                       .d_row_weights = d_weights.data()},
                                      rows);
          std::string bytes;
          for (const auto* results : {&product, &d_gate, &d_up, &d_product, &d_weights})
            append(bytes, *results);
          return bytes;
        });
      }
    }
  }
}

TYPED_TEST(KernelOrders, TargetSoftmax) {
  using S = TypeParam;
  for (const int64_t size : {515, 4096}) {
    const int64_t rows = 5;
    const auto logits = numbers<S>(rows * size, 1);
    const auto d = numbers<double>(rows, 2);
    const std::vector<int64_t> targets{0, 1, size / 2, size - 2, size - 1};
    expect_one_result("softmax of " + std::to_string(size), [&] {
      auto gradient = logits;
      auto sums = unwritten<double>(2 * rows), log_probabilities = unwritten<double>(rows);
      const TargetSoftmax<S> op{.logits = gradient.data(),
                                .size = size,
                                .scale = 1.25,
                                .targets = targets.data(),
                                .sums = sums.data()};
      this->kernels.softmax.forward(kQueue, op, log_probabilities.data(), rows);
      this->kernels.softmax.backward(kQueue, op, d.data(), rows);
      std::string bytes;
      append(bytes, gradient);
      append(bytes, sums);
      append(bytes, log_probabilities);
      return bytes;
    });
  }
}

TYPED_TEST(KernelOrders, MergeOfAttention) {
  using S = TypeParam;
  using W = Wide<S>;
  const int64_t tokens = 37, heads = 3;
  for (const int64_t size : {64, 17}) {
    const int64_t rows = tokens * heads;
    const auto a = numbers<S>(rows * size, 1), b = numbers<S>(rows * size, 2);
    const auto wide_a = numbers<W>(rows * size, 1), wide_b = numbers<W>(rows * size, 2),
               log_a = numbers<W>(rows, 3), log_b = numbers<W>(rows, 4);
    expect_one_result("merge of " + std::to_string(size), [&] {
      std::string bytes;
      const auto merge = [&](auto kernel, auto output, const auto& other) {
        auto log_sum = log_a;
        kernel(kQueue, {{output.data(), heads * size, size}, log_sum.data(), heads, 1},
               {{other.data(), heads * size, size}, log_b.data(), heads, 1}, tokens, heads, size);
        append(bytes, output);
        append(bytes, log_sum);
      };
      merge(this->kernels.attention.merge, a, b);
      merge(this->kernels.attention.merge_into_wide, wide_a, b);
      merge(this->kernels.attention.merge_wide, a, wide_b);
      return bytes;
    });
  }
}

TYPED_TEST(KernelOrders, SumsOfRows) {
  using S = TypeParam;
  using W = Wide<S>;
  const std::vector<int64_t> indices{0, 0, 0, 2, 3, 3, 3, 3, 9}, order{8, 1, 5, 0, 7, 2, 3, 6, 4};
  const auto count = static_cast<int64_t>(indices.size());
  for (const int64_t size : {33, 1040}) {
    const auto rows = numbers<S>(count * size, 1), narrow = numbers<S>(10 * size, 2);
    const auto wide = numbers<W>(10 * size, 2);
    for (const bool sorted : {false, true}) {
      expect_one_result("rows of " + std::to_string(size), [&] {
        std::string bytes;
        const auto add = [&](auto kernel, auto table) {
          kernel(kQueue, {.indices = indices.data(),
                          .order = sorted ? nullptr : order.data(),
                          .count = count,
                          .from = rows.data(),
                          .from_stride = size,
                          .to = table.data(),
                          .to_stride = size,
                          .size = size});
          append(bytes, table);
        };
        add(this->kernels.rows.add, narrow);
        add(this->kernels.rows.add_to_wide, wide);
        return bytes;
      });
    }
  }
}

TYPED_TEST(KernelOrders, DequantisedNumbers) {
  using S = TypeParam;
  // More than a block's; the last block of numbers is short, and of an odd number.
  constexpr int64_t kCount = 9001, kBlock = 64, kBlocks = kCount / kBlock + 1;
  std::vector<uint8_t> bytes(kCount), codes(kBlocks);
  for (int64_t i = 0; i < kCount; ++i) bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 37);
  for (int64_t i = 0; i < kBlocks; ++i) codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 53);
  const auto maxima = numbers<float>(kBlocks, 1), code = numbers<float>(256, 2),
             table = numbers<float>(16, 3);
  const NestedMaxima nested{codes.data(), code.data(), maxima.data(), 32, 0.5F};
  for (const int bits : {4, 8}) {
    PackedNumbers from{.bits = bits,
                       .bytes = bytes.data(),
                       .maxima = maxima.data(),
                       .block_size = kBlock,
                       .count = kCount,
                       .rounding = Rounding::kHalf};
    std::copy(table.begin(), table.end(), from.codes);
    expect_one_result("numbers of " + std::to_string(bits) + " bits", [&] {
      std::string results;
      for (const NestedMaxima& of : {NestedMaxima{}, nested}) {
        auto into = unwritten<S>(kCount);
        this->kernels.dequantize.numbers(kQueue, from, of, into.data());
        append(results, into);
      }
      return results;
    });
  }
}

}  // namespace
}  // namespace streambp::cuda
