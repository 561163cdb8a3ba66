#include "verify/long/truth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include <ATen/Parallel.h>

namespace streambp::verify {
namespace {

constexpr int64_t kPeriod = 1'000'003;

/// Calls body with a pointer to the elements' own type.
template <typename Body>
auto with_type(const void* data, at::ScalarType dtype, Body body) {
  switch (dtype) {
    case at::kDouble:
      return body(static_cast<const double*>(data));
    case at::kFloat:
      return body(static_cast<const float*>(data));
    default:
      return body(static_cast<const at::BFloat16*>(data));
  }
}

/// A tensor that repeats `block` from its first element on.
at::Tensor repeated(at::IntArrayRef shape, const at::Tensor& block) {
  at::Tensor all = at::empty(shape, block.options());
  const auto size = static_cast<int64_t>(block.element_size());
  auto* const to = static_cast<char*>(all.data_ptr());
  const auto* const from = static_cast<const char*>(block.const_data_ptr());
  const int64_t elements = all.numel();
  at::parallel_for(0, (elements + kPeriod - 1) / kPeriod, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t count = std::min(kPeriod, elements - i * kPeriod);
      std::memcpy(to + i * kPeriod * size, from, static_cast<size_t>(count * size));
    }
  });
  return all;
}

double dot(const double* a, const double* b, int64_t size) {
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

void add_multiple(double* to, const double* x, double factor, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] += factor * x[i];
}

}  // namespace

Elements::Elements(const at::Tensor& x) : data_(x.const_data_ptr()), dtype_(x.scalar_type()) {
  TORCH_CHECK(dtype_ == at::kDouble || dtype_ == at::kFloat || dtype_ == at::kBFloat16);
}

double Elements::operator[](int64_t index) const {
  return with_type(data_, dtype_, [&](const auto* data) { return static_cast<double>(data[index]); });
}

void Elements::load(int64_t index, int64_t count, double* to) const {
  with_type(data_, dtype_, [&](const auto* data) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(data[index + i]);
  });
}

std::vector<int64_t> sampled_indices(int64_t size, const std::vector<int64_t>& near, int64_t more) {
  std::set<int64_t> indices;
  const auto add = [&](int64_t around) {
    for (int64_t index = around - 2; index <= around + 2; ++index) {
      if (index >= 0 && index < size) indices.insert(index);
    }
  };
  add(0);
  add(size - 1);
  for (const int64_t around : near) add(around);
  std::mt19937_64 generator(static_cast<uint64_t>(size));
  std::uniform_int_distribution<int64_t> any(0, size - 1);
  for (int64_t i = 0; i < more; ++i) indices.insert(any(generator));
  return {indices.begin(), indices.end()};
}

at::Tensor rows_at(const at::Tensor& x, const std::vector<int64_t>& indices) {
  int64_t size = 1;
  for (int64_t d = x.dim() - 1; d > 0; --d) {
    TORCH_CHECK(x.stride(d) == size || x.size(d) == 1, "the elements of a row are not neighbours");
    size *= x.size(d);
  }
  const Elements elements(x);
  at::Tensor rows = at::empty({static_cast<int64_t>(indices.size()), size}, at::kDouble);
  double* to = rows.mutable_data_ptr<double>();
  for (const int64_t index : indices) {
    elements.load(index * x.stride(0), size, to);
    to += size;
  }
  return rows;
}

at::Tensor patterned_normal(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  return repeated(shape, at::randn({kPeriod}, at::detail::createCPUGenerator(seed), at::kDouble).to(dtype));
}

at::Tensor patterned_integers(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  return repeated(shape,
                  at::randint(-1, 2, {kPeriod}, at::detail::createCPUGenerator(seed), at::kDouble).to(dtype));
}

at::Tensor overlapping_rows(int64_t n, int64_t size, uint64_t seed) {
  return patterned_normal({n + size - 1}, at::kFloat, seed).as_strided({n, size}, {1, 1});
}

AttentionRow attention_row(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t query,
                           int64_t first, int64_t end, const Scoring& scoring, const std::vector<double>& dy,
                           std::vector<double>& d_keys, std::vector<double>& d_values) {
  const int64_t heads = q.size(1), key_heads = k.size(1), size = q.size(2), stride = key_heads * size;
  const Elements queries(q), keys(k), values(v);
  const auto [scale, cap] = scoring;
  AttentionRow row{std::vector<double>(static_cast<size_t>(heads * size)),
                   std::vector<double>(static_cast<size_t>(heads * size))};
  std::vector<double> one(static_cast<size_t>(size)), other(static_cast<size_t>(size));
  const auto n = static_cast<size_t>(end - first);
  std::vector<double> weights(n), slopes(n), along(n);  // exp(s), ds / d(q . k), dy . v
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t key_head = head / (heads / key_heads);
    const auto offset = [&](int64_t key) { return key * stride + key_head * size; };
    double* const output = row.output.data() + head * size;
    const double* const d_output = dy.data() + head * size;
    queries.load((query * heads + head) * size, size, one.data());
    double sum = 0.0;
    for (int64_t key = first; key < end; ++key) {
      const auto i = static_cast<size_t>(key - first);
      keys.load(offset(key), size, other.data());
      double score = scale * dot(one.data(), other.data(), size);
      slopes[i] = scale;
      if (cap > 0.0) {
        const double bounded = std::tanh(score / cap);
        score = cap * bounded;
        slopes[i] *= 1.0 - bounded * bounded;
      }
      weights[i] = std::exp(score);
      sum += weights[i];
      values.load(offset(key), size, other.data());
      add_multiple(output, other.data(), weights[i], size);
      along[i] = dot(d_output, other.data(), size);
    }
    for (int64_t e = 0; e < size; ++e) output[e] /= sum;
    const double mean = dot(d_output, output, size);
    double* const d_query = row.d_query.data() + head * size;
    for (int64_t key = first; key < end; ++key) {
      const auto i = static_cast<size_t>(key - first);
      const double weight = weights[i] / sum;
      const double d_product = weight * (along[i] - mean) * slopes[i];
      keys.load(offset(key), size, other.data());
      add_multiple(d_query, other.data(), d_product, size);
      if (d_keys.empty()) continue;
      add_multiple(d_keys.data() + offset(key), one.data(), d_product, size);
      add_multiple(d_values.data() + offset(key), d_output, weight, size);
    }
  }
  return row;
}

}  // namespace streambp::verify
