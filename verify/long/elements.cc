#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/runtime/torch_private.h"
#include "verify/long/case.h"
#include "verify/long/truth.h"

namespace streambp::verify {
namespace {

constexpr int64_t kMega = 1'000'000;
constexpr int64_t kPower31 = int64_t{1} << 31;
constexpr int64_t kPower32 = int64_t{1} << 32;

/// Rows of `size` elements before, at and after elements 2^31 and 2^32.
std::vector<int64_t> boundary_rows(int64_t n, int64_t size, int64_t more) {
  return sampled_indices(n, {kPower31 / size, kPower32 / size}, more);
}

/// Rows enough for more than `elements`.
int64_t rows_beyond(int64_t elements, int64_t size) {
  return elements / size + 7;
}

at::Tensor rounded(const at::Tensor& exact, at::ScalarType dtype) {
  return exact.to(dtype).to(at::kDouble);
}

at::Tensor as_tensor(const std::vector<double>& values, at::IntArrayRef shape) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).view(shape);
}

/// A matrix's row-major elements in double.
std::vector<double> all_elements(const at::Tensor& x) {
  std::vector<double> all(static_cast<size_t>(x.numel()));
  Elements(x).load(0, x.numel(), all.data());
  return all;
}

/// a [n, inner] times b [inner, columns] by plain loops.
at::Tensor product(const at::Tensor& a, const std::vector<double>& b, int64_t columns) {
  const int64_t inner = a.size(1);
  const std::vector<double> left = all_elements(a);
  std::vector<double> all;
  for (int64_t i = 0; i < a.size(0); ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0.0;
      for (int64_t t = 0; t < inner; ++t)
        sum += left[static_cast<size_t>(i * inner + t)] * b[static_cast<size_t>(t * columns + j)];
      all.push_back(sum);
    }
  }
  return as_tensor(all, {a.size(0), columns});
}

std::vector<double> transposed(const std::vector<double>& x, int64_t rows) {
  const auto columns = static_cast<int64_t>(x.size()) / rows;
  std::vector<double> result(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      result[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
  }
  return result;
}

/// Integers: whatever the order, sums are exact, and the results are the exact ones rounded once.
void check_linear(at::ScalarType dtype, int64_t elements, LongCheck& check) {
  constexpr int64_t kIn = 64, kOut = 8;
  const int64_t n = rows_beyond(elements, kIn);
  Parameter weight{"weight", patterned_integers({kOut, kIn}, dtype, 2), {}};
  weight.gradient = at::zeros_like(weight.value);
  const Linear map{"map", &weight};
  const std::vector<double> w = all_elements(weight.value);
  const std::vector<int64_t> indices = boundary_rows(n, kIn, 200);
  const at::Tensor dy = patterned_integers({n, kOut}, dtype, 3);
  {
    const at::Tensor x = patterned_integers({n, kIn}, dtype, 1);
    const at::Tensor y = linear_forward(map, x);
    check.rows("output", rows_at(y, indices),
               rounded(product(rows_at(x, indices), transposed(w, kOut), kOut), dtype), 0.0);
    linear_accumulate(map, x, dy);
    const Elements inputs(x), rows(dy);
    constexpr std::pair<int64_t, int64_t> kSampled[] = {{0, 0}, {3, 17}, {7, 63}};
    std::array<double, std::size(kSampled)> sums{};
    for (int64_t i = 0; i < n; ++i) {
      for (size_t s = 0; s < sums.size(); ++s)
        sums[s] += rows[i * kOut + kSampled[s].first] * inputs[i * kIn + kSampled[s].second];
    }
    for (size_t s = 0; s < sums.size(); ++s) {
      const auto [out, in] = kSampled[s];
      check.whole(fmt::format("weight's gradient [{}, {}]", out, in),
                  rows_at(weight.gradient, {out}).flatten().narrow(0, in, 1),
                  rounded(as_tensor({sums[s]}, {1}), dtype), 0.0);
    }
  }
  at::Tensor dx;
  linear_backward_input(map, dy, dx);
  check.rows("input's gradient", rows_at(dx, indices), rounded(product(rows_at(dy, indices), w, kIn), dtype),
             0.0);
}

void check_rms_norm(int64_t elements, bool backward, LongCheck& check) {
  constexpr int64_t kSize = 64;
  const int64_t n = rows_beyond(elements, kSize);
  Parameter weight{"norm", patterned_normal({kSize}, at::kFloat, 2), {}};
  const RmsNorm norm{&weight, 1e-6};
  const std::vector<double> w = all_elements(weight.value);
  const at::Tensor x = overlapping_rows(n, kSize, 1), dy = overlapping_rows(n, kSize, 3);
  const std::vector<int64_t> indices = boundary_rows(n, kSize, 200);
  RmsNormSaved saved;
  at::Tensor got = rms_norm_forward(x, norm, saved);
  if (backward) {
    got.reset();
    got = rms_norm_backward(dy, saved, norm);
  }
  std::vector<double> truth;
  const Elements inputs(x), gradients(dy);
  for (const int64_t index : indices) {
    double squares = 0.0, along = 0.0;
    for (int64_t j = 0; j < kSize; ++j) {
      squares += inputs[index + j] * inputs[index + j];
      along += gradients[index + j] * w[static_cast<size_t>(j)] * inputs[index + j];
    }
    const double rstd = 1.0 / std::sqrt(squares / kSize + norm.eps);
    for (int64_t j = 0; j < kSize; ++j) {
      const double x_j = inputs[index + j], w_j = w[static_cast<size_t>(j)];
      truth.push_back(backward ? rstd * (gradients[index + j] * w_j - x_j * rstd * rstd * along / kSize)
                               : w_j * x_j * rstd);
    }
  }
  check.rows(backward ? "input's gradient" : "output", rows_at(got, indices),
             as_tensor(truth, {static_cast<int64_t>(indices.size()), kSize}), 1e-5);
}

void check_rope(int64_t elements, LongCheck& check) {
  constexpr int64_t kHeads = 16, kSize = 32, kHalf = kSize / 2, kRow = kHeads * kSize;
  const int64_t n = rows_beyond(elements, kRow);
  const at::Tensor x = patterned_normal({n, kHeads, kSize}, at::kBFloat16, 1);
  const RopeTable table{patterned_normal({n, kHalf}, at::kBFloat16, 2),
                        patterned_normal({n, kHalf}, at::kBFloat16, 3)};
  const std::vector<int64_t> indices = boundary_rows(n, kRow, 200);
  const at::Tensor cosines = rows_at(table.cosine, indices), sines = rows_at(table.sine, indices),
                   inputs = rows_at(x, indices);
  const auto rotated = [&](double sign) {
    std::vector<double> truth;
    for (int64_t i = 0; i < inputs.size(0); ++i) {
      const double* const row = inputs.const_data_ptr<double>() + i * kRow;
      for (int64_t j = 0; j < kRow; ++j) {
        const int64_t e = j % kSize, pair = e % kHalf;
        const double c = cosines.const_data_ptr<double>()[i * kHalf + pair],
                     s = sign * sines.const_data_ptr<double>()[i * kHalf + pair];
        truth.push_back(e < kHalf ? row[j] * c - row[j + kHalf] * s : row[j] * c + row[j - kHalf] * s);
      }
    }
    return as_tensor(truth, {inputs.size(0), kRow});
  };
  constexpr double kLimit = 1e-2;  // two roundings to bfloat16
  const at::Tensor leaf = x.detach().requires_grad_();
  at::Tensor y = rope(leaf, table);
  check.rows("output", rows_at(y.detach(), indices), rotated(1.0), kLimit);
  // The output's storage goes before the gradient's comes.
  const auto backward = torch_private::backward_of(y);
  y.reset();
  check.rows("input's gradient", rows_at(backward(x), indices), rotated(-1.0), kLimit);
}

struct SiluRow {
  double value, slope;
};

SiluRow silu(double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  return {x * s, s * (1.0 + x * (1.0 - s))};
}

/// A gated MLP in double, element by element.
struct GatedMlpTruth {
  int64_t size = 0, width = 0;
  std::vector<double> gate, up, down;  // weights
  std::vector<double> inputs, d_outputs;

  /// Row i through column f: gate and up projections before the activation, and the gradient of their
  /// product.
  struct Unit {
    double gate = 0.0, up = 0.0, d_product = 0.0;
  };

  Unit unit(int64_t i, int64_t f) const {
    Unit at;
    for (int64_t j = 0; j < size; ++j) {
      const auto row = static_cast<size_t>(i * size + j), column = static_cast<size_t>(f * size + j);
      at.gate += inputs[row] * gate[column];
      at.up += inputs[row] * up[column];
      at.d_product += d_outputs[row] * down[static_cast<size_t>(j * width + f)];
    }
    return at;
  }

  /// Output and input gradient of some rows, each [rows, size].
  std::pair<at::Tensor, at::Tensor> rows(const std::vector<int64_t>& indices) const {
    std::vector<double> y, dx;
    for (const int64_t i : indices) {
      std::vector<double> output(static_cast<size_t>(size), 0.0), d_input(static_cast<size_t>(size), 0.0);
      for (int64_t f = 0; f < width; ++f) {
        const Unit at = unit(i, f);
        const SiluRow activation = silu(at.gate);
        for (int64_t j = 0; j < size; ++j) {
          const auto of = static_cast<size_t>(j), column = static_cast<size_t>(f * size + j);
          output[of] += down[static_cast<size_t>(j * width + f)] * activation.value * at.up;
          d_input[of] +=
              at.d_product * (at.up * activation.slope * gate[column] + activation.value * up[column]);
        }
      }
      y.insert(y.end(), output.begin(), output.end());
      dx.insert(dx.end(), d_input.begin(), d_input.end());
    }
    const std::vector<int64_t> shape{static_cast<int64_t>(indices.size()), size};
    return {as_tensor(y, shape), as_tensor(dx, shape)};
  }

  /// Weight gradients of some columns, each [columns, size].
  struct WeightGradients {
    at::Tensor gate, up, down;
  };

  WeightGradients weight_gradients(const std::vector<int64_t>& columns, int64_t row_count) const {
    std::vector<double> all_gate, all_up, all_down;
    for (const int64_t f : columns) {
      const auto zeros = std::vector<double>(static_cast<size_t>(size), 0.0);
      std::vector<double> d_gate = zeros, d_up = zeros, d_down = zeros;
      for (int64_t i = 0; i < row_count; ++i) {
        const Unit at = unit(i, f);
        const SiluRow activation = silu(at.gate);
        for (int64_t j = 0; j < size; ++j) {
          const auto of = static_cast<size_t>(j), row = static_cast<size_t>(i * size + j);
          d_gate[of] += at.d_product * at.up * activation.slope * inputs[row];
          d_up[of] += at.d_product * activation.value * inputs[row];
          d_down[of] += d_outputs[row] * activation.value * at.up;
        }
      }
      all_gate.insert(all_gate.end(), d_gate.begin(), d_gate.end());
      all_up.insert(all_up.end(), d_up.begin(), d_up.end());
      all_down.insert(all_down.end(), d_down.begin(), d_down.end());
    }
    const std::vector<int64_t> shape{static_cast<int64_t>(columns.size()), size};
    return {as_tensor(all_gate, shape), as_tensor(all_up, shape), as_tensor(all_down, shape)};
  }
};

void check_gated_mlp(int64_t elements, LongCheck& check) {
  constexpr int64_t kSize = 8, kWide = int64_t{1} << 15;
  const int64_t n = rows_beyond(elements, kWide);
  const auto parameter = [](at::IntArrayRef shape, uint64_t seed) {
    at::Tensor value = patterned_normal(shape, at::kBFloat16, seed).mul_(0.25);
    return Parameter{"weight", value, at::zeros_like(value)};
  };
  Parameter gate = parameter({kWide, kSize}, 1), up = parameter({kWide, kSize}, 2),
            down = parameter({kSize, kWide}, 3);
  const Linear gate_map{"gate", &gate}, up_map{"up", &up}, down_map{"down", &down};
  const GatedMlp mlp{&gate_map, &up_map, &down_map};
  const at::Tensor x = patterned_normal({n, kSize}, at::kBFloat16, 4),
                   dy = patterned_normal({n, kSize}, at::kBFloat16, 5);
  const GatedMlpTruth truth{.size = kSize,
                            .width = kWide,
                            .gate = all_elements(gate.value),
                            .up = all_elements(up.value),
                            .down = all_elements(down.value),
                            .inputs = all_elements(x),
                            .d_outputs = all_elements(dy)};
  at::Tensor y, dx;
  {
    GatedMlpSaved saved;
    y = linear_forward(down_map, gated_product(mlp, x, saved));
    dx = gated_mlp_backward(mlp, std::move(saved), dy);
  }
  constexpr double kLimit = 5e-2;  // of intermediates rounded to bfloat16
  const std::vector<int64_t> rows = boundary_rows(n, kWide, 60);
  const auto [y_truth, dx_truth] = truth.rows(rows);
  check.rows("output", rows_at(y, rows), y_truth, kLimit);
  check.rows("input's gradient", rows_at(dx, rows), dx_truth, kLimit);
  const std::vector<int64_t> columns = sampled_indices(kWide, {}, 4);
  const GatedMlpTruth::WeightGradients weights = truth.weight_gradients(columns, n);
  check.rows("gate's gradient", rows_at(gate.gradient, columns), weights.gate, kLimit);
  check.rows("up's gradient", rows_at(up.gradient, columns), weights.up, kLimit);
  check.rows("down's gradient", rows_at(down.gradient.t().contiguous(), columns), weights.down, kLimit);
}

/// How many elements are not 0. Their bytes are compared, eight at a time.
int64_t count_nonzero_words(const at::Tensor& x) {
  const auto* const words = static_cast<const uint64_t*>(x.const_data_ptr());
  const auto count = static_cast<int64_t>(x.nbytes()) / 8;
  return at::parallel_reduce(
      0, count, int64_t{1} << 20, int64_t{0},
      [&](int64_t begin, int64_t end, int64_t sum) {
        return sum + (end - begin) - std::count(words + begin, words + end, uint64_t{0});
      },
      std::plus<int64_t>());
}

/// An embedding of 2^32 elements and its gradient, in turn.
void check_rows(LongCheck& check) {
  constexpr int64_t kSize = 256;
  const int64_t n = rows_beyond(kPower32, kSize);
  Parameter table{"embedding", {}, patterned_normal({n, kSize}, at::kBFloat16, 1)};
  std::vector<int64_t> indices = boundary_rows(n, kSize, 300);
  const at::Tensor index = at::tensor(at::ArrayRef<int64_t>(indices), at::kLong);
  check.rows("rows", gather_rows(table.gradient, index), rows_at(table.gradient, indices), 0.0);
  table.gradient.zero_();
  // Ones and twos, so that no sum is 0.
  const at::Tensor dx = patterned_integers({index.size(0), kSize}, at::kBFloat16, 2).square_().add_(1.0);
  accumulate_rows(table, index, dx);
  accumulate_rows(table, index.flip({0}), dx.flip({0}));
  check.rows("gradient", rows_at(table.gradient, indices), dx.to(at::kDouble) * 2.0, 0.0);
  const int64_t others = count_nonzero_words(table.gradient) - index.size(0) * kSize / 4;
  check.error("gradient elsewhere", static_cast<double>(others), 0.0);
}

}  // namespace

std::vector<LongCase> long_element_cases() {
  const auto linear_case = [](const char* name, const char* crosses, at::ScalarType dtype, int64_t elements,
                              int64_t bytes) {
    return LongCase{name, crosses, bytes, false,
                    [=](LongCheck& check) { check_linear(dtype, elements, check); }};
  };
  return {
      linear_case("linear-2p31-float32", "inputs of 2^31 + 448 elements", at::kFloat, kPower31,
                  12'000 * kMega),
      linear_case("linear-2p32-bfloat16", "inputs of 2^32 + 448 elements", at::kBFloat16, kPower32,
                  12'000 * kMega),
      {"rms-norm-2p31-float32", "2^31 + 448 elements", 9'500 * kMega, false,
       [](LongCheck& check) { check_rms_norm(kPower31, false, check); }},
      {"rms-norm-2p32-float32", "2^32 + 448 elements", 18'500 * kMega, false,
       [](LongCheck& check) { check_rms_norm(kPower32, false, check); }},
      {"rms-norm-backward-2p31-float32", "2^31 + 448 elements", 27'000 * kMega, false,
       [](LongCheck& check) { check_rms_norm(kPower31, true, check); }},
      {"rope-2p31-bfloat16", "2^31 + 3,584 elements", 9'500 * kMega, false,
       [](LongCheck& check) { check_rope(kPower31, check); }},
      {"rope-2p32-bfloat16", "2^32 + 3,584 elements", 18'500 * kMega, false,
       [](LongCheck& check) { check_rope(kPower32, check); }},
      {"gated-mlp-2p31-bfloat16", "a product of 2^31 + 229,376 elements", 18'000 * kMega, false,
       [](LongCheck& check) { check_gated_mlp(kPower31, check); }},
      {"rows-2p32-bfloat16", "an embedding of 2^32 + 1,792 elements", 9'000 * kMega, false, check_rows},
  };
}

}  // namespace streambp::verify
