// Indices of the CUDA kernels beyond 2^31 and 2^32 numbers: the last rows of tensors that are mapped and,
// apart from these, never in memory. They equal the rows of a small call on the same numbers. An index that
// is computed in 32 bits ends up elsewhere within the mapping.
#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>

#include "verify/tests/streambp/ops/cuda/kernel_testing.h"

namespace streambp::cuda {
namespace {

/// Numbers that are zero, and in memory only where they are touched. As many lie before the first as a
/// negative index reaches.
template <typename S>
class Sparse {
 public:
  explicit Sparse(int64_t count) : count_(count) {
    bytes_ = static_cast<size_t>(count + kBefore) * sizeof(S);
    map_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map_ == MAP_FAILED) throw std::runtime_error("no room for " + std::to_string(bytes_) + " bytes");
    madvise(map_, bytes_, MADV_NOHUGEPAGE);
  }
  ~Sparse() { munmap(map_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;

  S* data() const { return static_cast<S*>(map_) + kBefore; }

  /// The last numbers, to be written and read.
  void set_last(const std::vector<S>& numbers) const {
    std::copy(numbers.begin(), numbers.end(), data() + count_ - static_cast<int64_t>(numbers.size()));
  }
  std::vector<S> last(int64_t count) const { return {data() + count_ - count, data() + count_}; }

 private:
  static constexpr int64_t kBefore = int64_t{1} << 31;

  int64_t count_;
  size_t bytes_;
  void* map_;
};

template <typename S>
bool same(const std::vector<S>& a, const std::vector<S>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(S)) == 0;
}

/// Tensors of so many numbers: the last ones lie beyond 2^31, and beyond 2^32. Multiples of what a grid of
/// the most blocks takes in a round, so that the last block has the last row.
constexpr std::array<int64_t, 2> kCounts = {int64_t{1} << 32, int64_t{3} << 31};

template <typename S>
class LongIndex : public testing::Test {
 protected:
  /// Runs body() on the last block of each grid alone.
  template <typename Body>
  void on_last_block(Body body) const {
    const RestoredGrid restored;
    on_host::set_blocks({-1});
    body();
  }
  const KernelTableOf<S>& kernels = kernels_on_host().of<S>();
};

TYPED_TEST_SUITE(LongIndex, Types);

TYPED_TEST(LongIndex, NormAndRotation) {
  using S = TypeParam;
  using W = Wide<S>;
  constexpr int64_t kHeads = 2;
  // Heads of one number: as many rows as numbers.
  for (const int64_t size : {64, 1}) {
    const int64_t token = kHeads * size, half = size / 2;
    const auto x = numbers<S>(token, 1), dy = numbers<S>(token, 2), weight = numbers<S>(size, 3),
               residual = numbers<S>(token, 4), cosine = numbers<S>(token, 5), sine = numbers<S>(token, 6);
    const auto run = [&, size = size](int64_t tokens, const S* all_x, const S* all_dy, const S* added,
                                      const S* cosines, const S* sines, W* rstd, S* y, S* dx, W* sums,
                                      int64_t parts) {
      const NormRope<S> op{.heads = kHeads,
                           .size = size,
                           .weight = weight.data(),
                           .eps = 1e-6,
                           .rstd = rstd,
                           .cosine = half > 0 ? cosines : nullptr,
                           .sine = half > 0 ? sines : nullptr,
                           .half = half,
                           .table_stride = token};
      this->kernels.norm_rope.forward(kQueue, op, {all_x, token, size}, added, y, tokens);
      this->kernels.norm_rope.backward(kQueue, op, {all_x, token, size}, {all_dy, token, size}, dx, sums,
                                       parts, tokens);
    };
    std::vector<W> rstd(kHeads), sums(static_cast<size_t>(size));
    std::vector<S> y(x.size()), dx(x.size());
    run(1, x.data(), dy.data(), residual.data(), cosine.data(), sine.data(), rstd.data(), y.data(), dx.data(),
        sums.data(), 1);
    for (const int64_t count : kCounts) {
      const int64_t tokens = count / token, parts = int64_t{1} << 20;
      const Sparse<S> all_x(count), all_dy(count), added(count), all_y(count), all_dx(count), cosines(count),
          sines(count);
      const Sparse<W> all_rstd(tokens * kHeads), all_sums(parts * size);
      all_x.set_last(x);
      all_dy.set_last(dy);
      added.set_last(residual);
      cosines.set_last(cosine);
      sines.set_last(sine);
      this->on_last_block([&] {
        run(tokens, all_x.data(), all_dy.data(), added.data(), cosines.data(), sines.data(), all_rstd.data(),
            all_y.data(), all_dx.data(), all_sums.data(), parts);
      });
      EXPECT_TRUE(same(all_y.last(token), y)) << "values, " << count << " numbers in heads of " << size;
      EXPECT_TRUE(same(all_rstd.last(kHeads), rstd)) << "rstd, " << count << " in heads of " << size;
      EXPECT_TRUE(same(all_dx.last(token), dx)) << "gradients, " << count << " in heads of " << size;
      EXPECT_TRUE(same(all_sums.last(size), sums)) << "sums, " << count << " in heads of " << size;
    }
  }
}

TYPED_TEST(LongIndex, Gate) {
  using S = TypeParam;
  constexpr int64_t kSize = 2048;
  const auto gate = numbers<S>(kSize, 1), up = numbers<S>(kSize, 2), d = numbers<S>(kSize, 3),
             weight = numbers<S>(1, 4);
  for (const bool weighted : {false, true}) {
    const auto run = [&](int64_t rows, S* gates, S* ups, S* ds, S* product, const S* weights, S* d_weights) {
      this->kernels.gate.product(kQueue, Activation::kSilu, gates, ups, product, rows * kSize);
      this->kernels.gate.backward(kQueue,
                                  {.activation = Activation::kSilu,
                                   .size = kSize,
                                   .gate = gates,
                                   .up = ups,
                                   .d_product = ds,
                                   .wants_product = true,
                                   .row_weights = weighted ? weights : nullptr,
                                   .d_row_weights = d_weights},
                                  rows);
    };
    auto d_gate = gate, d_up = up, d_product = d;
    std::vector<S> product(kSize), d_weight(1);
    run(1, d_gate.data(), d_up.data(), d_product.data(), product.data(), weight.data(), d_weight.data());
    for (const int64_t count : kCounts) {
      const int64_t rows = count / kSize;
      const Sparse<S> gates(count), ups(count), ds(count), products(count), weights(rows), d_weights(rows);
      gates.set_last(gate);
      ups.set_last(up);
      ds.set_last(d);
      weights.set_last(weight);
      // A block takes as many numbers as its threads move at once: the last row is that of the last two
      // blocks.
      const RestoredGrid restored;
      on_host::set_blocks({-1, -2, -3, -4, -5, -6, -7, -8});
      run(rows, gates.data(), ups.data(), ds.data(), products.data(), weights.data(), d_weights.data());
      EXPECT_TRUE(same(products.last(kSize), product)) << "product, " << count;
      EXPECT_TRUE(same(gates.last(kSize), d_gate)) << "gate's gradient, " << count;
      EXPECT_TRUE(same(ups.last(kSize), d_up)) << "up's gradient, " << count;
      EXPECT_TRUE(same(ds.last(kSize), d_product)) << "product again, " << count;
      EXPECT_TRUE(same(d_weights.last(1), d_weight)) << "row weights, " << count;
    }
  }
}

TYPED_TEST(LongIndex, TargetSoftmax) {
  using S = TypeParam;
  constexpr int64_t kSize = int64_t{1} << 15;
  const auto logits = numbers<S>(kSize, 1);
  const std::vector<double> d{0.7};
  const std::vector<int64_t> target{kSize - 3};
  const auto run = [&](int64_t rows, S* all, const int64_t* targets, double* sums, double* log_probabilities,
                       const double* ds) {
    const TargetSoftmax<S> op{.logits = all, .size = kSize, .scale = 1.5, .targets = targets, .sums = sums};
    this->kernels.softmax.forward(kQueue, op, log_probabilities, rows);
    this->kernels.softmax.backward(kQueue, op, ds, rows);
  };
  auto gradient = logits;
  std::vector<double> sums(2), log_probability(1);
  run(1, gradient.data(), target.data(), sums.data(), log_probability.data(), d.data());
  for (const int64_t count : kCounts) {
    const int64_t rows = count / kSize;
    const Sparse<S> all(count);
    const Sparse<int64_t> targets(rows);
    const Sparse<double> all_sums(2 * rows), log_probabilities(rows), ds(rows);
    all.set_last(logits);
    targets.set_last(target);
    ds.set_last(d);
    this->on_last_block(
        [&] { run(rows, all.data(), targets.data(), all_sums.data(), log_probabilities.data(), ds.data()); });
    EXPECT_TRUE(same(all.last(kSize), gradient)) << count;
    EXPECT_TRUE(same(all_sums.last(2), sums)) << count;
    EXPECT_TRUE(same(log_probabilities.last(1), log_probability)) << count;
  }
}

TYPED_TEST(LongIndex, MergeOfAttention) {
  using S = TypeParam;
  using W = Wide<S>;
  constexpr int64_t kHeads = 4;
  // Heads of one number: as many log-sum-exps as numbers.
  for (const int64_t size : {64, 1}) {
    const auto a = numbers<S>(size, 1), b = numbers<S>(size, 2);
    const auto log_a = numbers<W>(1, 3), log_b = numbers<W>(1, 4);
    auto output = a;
    auto log_sum = log_a;
    this->kernels.attention.merge(kQueue, {{output.data(), size, size}, log_sum.data(), 1, 1},
                                  {{b.data(), size, size}, log_b.data(), 1, 1}, 1, 1, size);
    for (const int64_t count : kCounts) {
      const int64_t tokens = count / (kHeads * size);
      const Sparse<S> all(count), others(count);
      const Sparse<W> sums(tokens * kHeads), other_sums(tokens * kHeads);
      all.set_last(a);
      others.set_last(b);
      sums.set_last(log_a);
      other_sums.set_last(log_b);
      // The one by tokens, the other by heads.
      this->on_last_block([&, size = size] {
        this->kernels.attention.merge(kQueue, {{all.data(), kHeads * size, size}, sums.data(), kHeads, 1},
                                      {{others.data(), size, tokens * size}, other_sums.data(), 1, tokens},
                                      tokens, kHeads, size);
      });
      EXPECT_TRUE(same(all.last(size), output)) << count << " in heads of " << size;
      EXPECT_TRUE(same(sums.last(1), log_sum)) << "log-sum-exps, " << count << " in heads of " << size;
    }
  }
}

TYPED_TEST(LongIndex, SumsOfRows) {
  using S = TypeParam;
  constexpr int64_t kSize = 1024;
  const auto rows = numbers<S>(2 * kSize, 1), before = numbers<S>(kSize, 2);
  const std::vector<int64_t> indices{0, 0}, order{1, 0};
  auto table = before;
  this->kernels.rows.add(kQueue, {.indices = indices.data(),
                                  .order = order.data(),
                                  .count = 2,
                                  .from = rows.data(),
                                  .from_stride = kSize,
                                  .to = table.data(),
                                  .to_stride = kSize,
                                  .size = kSize});
  for (const int64_t count : kCounts) {
    const int64_t last = count / kSize - 1;
    const std::vector<int64_t> far_indices{3, last, last}, far_order{0, last, last - 1};
    const Sparse<S> from(count), to(count);
    from.set_last(rows);
    to.set_last(before);
    this->kernels.rows.add(kQueue, {.indices = far_indices.data(),
                                    .order = far_order.data(),
                                    .count = 3,
                                    .from = from.data(),
                                    .from_stride = kSize,
                                    .to = to.data(),
                                    .to_stride = kSize,
                                    .size = kSize});
    EXPECT_TRUE(same(to.last(kSize), table)) << count;
  }
}

TYPED_TEST(LongIndex, DequantisedNumbers) {
  using S = TypeParam;
  constexpr int64_t kSize = 512;  // a block of numbers, that the threads of a block take at once
  const auto table = numbers<float>(16, 1), maximum = numbers<float>(1, 2);
  const std::vector<uint8_t> bytes(kSize, 0x3c), code{1};
  for (const int bits : {4, 8}) {
    const auto run = [&](int64_t count, const uint8_t* packed, const float* maxima, const uint8_t* codes,
                         S* to) {
      PackedNumbers from{
          .bits = bits, .bytes = packed, .maxima = maxima, .block_size = kSize, .count = count};
      std::copy(table.begin(), table.end(), from.codes);
      // Nested maxima have a block each.
      this->kernels.dequantize.numbers(kQueue, from, {codes, table.data(), maxima, 1, 0.25F}, to);
    };
    std::vector<S> expected(kSize);
    run(kSize, bytes.data(), maximum.data(), code.data(), expected.data());
    for (const int64_t count : kCounts) {
      const Sparse<uint8_t> packed(count * bits / 8), codes(count / kSize);
      const Sparse<float> maxima(count / kSize);
      const Sparse<S> to(count);
      packed.set_last(bytes);
      codes.set_last(code);
      maxima.set_last(maximum);
      this->on_last_block([&] { run(count, packed.data(), maxima.data(), codes.data(), to.data()); });
      EXPECT_TRUE(same(to.last(kSize), expected)) << count << " of " << bits << " bits";
    }
  }
}

}  // namespace
}  // namespace streambp::cuda
