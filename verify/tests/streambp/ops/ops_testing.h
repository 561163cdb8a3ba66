// What the tests of single ops share: an op against the same formula in plain ATen under autograd, in
// float64.
#pragma once

#include <functional>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "streambp/error.h"
#include "streambp/ops/parameter.h"

namespace streambp {

inline constexpr double kOpLimit = 1e-13;

inline at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kDouble));
}

/// Integers from -3 to 3: every product and sum of a test's size is exact, in any order.
inline at::Tensor integers(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  return at::randint(-3, 4, shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(dtype));
}

inline Parameter parameter(at::Tensor value, bool trainable = true) {
  return {"parameter", value, trainable ? at::zeros_like(value) : at::Tensor()};
}

inline double relative_distance(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

inline void expect_near(const at::Tensor& got, const at::Tensor& expected, const char* what,
                        double limit = kOpLimit) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double error = relative_distance(got, expected);
  EXPECT_TRUE(error <= limit) << what << ": relative error " << error << ", limit " << limit;
}

/// Where sequences begin in the rows [begin, begin + rows) of a stream with `offsets`, and whether the first
/// one has a state from before: it continues there, or the stream does.
inline std::pair<std::vector<int64_t>, bool> offsets_of_run(const std::vector<int64_t>& offsets,
                                                            int64_t begin, int64_t rows) {
  std::pair<std::vector<int64_t>, bool> run{{0}, begin == 0};
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    if (offsets[s] < begin && begin < offsets[s + 1]) run.second = true;
    if (offsets[s + 1] > begin && offsets[s + 1] < begin + rows) run.first.push_back(offsets[s + 1] - begin);
  }
  run.first.push_back(rows);
  return run;
}

/// Runs `op` and `plain` on the same inputs, sends the same random cotangent back, and compares values and
/// all gradients. The plain version receives the parameters as leaves.
inline void expect_same(
    const std::vector<at::Tensor>& inputs, std::vector<Parameter*> parameters,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& op,
    const std::function<at::Tensor(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&)>& plain) {
  const auto leaves = [](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone().requires_grad_());
    return copies;
  };
  std::vector<at::Tensor> values;
  for (const Parameter* p : parameters) {
    values.push_back(p->value);
    if (p->gradient.defined()) p->gradient.zero_();  // of an earlier call
  }
  const std::vector<at::Tensor> op_inputs = leaves(inputs), plain_inputs = leaves(inputs),
                                plain_values = leaves(values);
  const at::Tensor y = op(op_inputs);
  const at::Tensor expected = plain(plain_inputs, plain_values);
  expect_near(y.detach(), expected.detach(), "value");
  const at::Tensor cotangent = random(y.sizes(), 99);
  const auto got = torch::autograd::grad({y}, op_inputs, {cotangent});
  std::vector<at::Tensor> all = plain_inputs;
  all.insert(all.end(), plain_values.begin(), plain_values.end());
  const auto truth = torch::autograd::grad({expected}, all, {cotangent});
  for (size_t i = 0; i < inputs.size(); ++i)
    expect_near(got[i], truth[i], fmt::format("input {}", i).c_str());
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_near(parameters[i]->gradient, truth[inputs.size() + i], fmt::format("parameter {}", i).c_str());
  }
}

}  // namespace streambp
