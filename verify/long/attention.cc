#include "streambp/ops/attention/attention.h"

#include <algorithm>
#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "verify/long/case.h"
#include "verify/long/truth.h"

namespace streambp::verify {
namespace {

constexpr int64_t kGiga = 1'000'000'000;

struct Shape {
  at::ScalarType dtype = at::kDouble;
  int64_t prefix = 0;
  int64_t rows = 0;
  int64_t heads = 1;
  int64_t size = 8;
  int64_t window = 0;
  double softcap = 0.0;
  bool key_gradients = true;  // false: nobody wants those of the prefix
  int64_t sampled = 200;

  int64_t keys() const { return prefix + rows; }
};

/// Errors of rows of attention, over sums of up to 2^17 terms (2^25 in bfloat16, where a term is what is
/// rounded).
double limit_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-11 : dtype == at::kFloat ? 1e-4 : 5e-2;
}

at::Tensor as_rows(const std::vector<double>& values, int64_t rows) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).view({rows, -1});
}

/// Only sampled queries send a gradient back: every key's gradient is then a sum over those queries alone,
/// and all of them can be checked, as can that the other queries' are 0.
void check_attention(const Shape& shape, LongCheck& check) {
  const int64_t heads = shape.heads, size = shape.size;
  const AttentionSettings settings{{1.0 / std::sqrt(static_cast<double>(size)), shape.softcap}, shape.window};
  const at::Tensor q = patterned_normal({shape.rows, heads, size}, shape.dtype, 1);
  const at::Tensor k = patterned_normal({shape.keys(), 1, size}, shape.dtype, 2);
  const at::Tensor v = patterned_normal({shape.keys(), 1, size}, shape.dtype, 3);
  std::vector<int64_t> near;
  for (const int64_t index : {16384, 32768, 46340, 65535, 131071}) near.push_back(index - shape.prefix);
  const std::vector<int64_t> indices = sampled_indices(shape.rows, near, shape.sampled);

  at::Tensor dy = at::zeros_like(q);
  for (const int64_t index : indices) dy[index].copy_(q[(index * 7 + 3) % shape.rows]);
  Prefix prefix{k.narrow(0, 0, shape.prefix), v.narrow(0, 0, shape.prefix), {}, {}};
  if (shape.key_gradients) {
    const auto sums = q.options().dtype(shape.dtype == at::kDouble ? at::kDouble : at::kFloat);
    prefix.key_gradients = at::zeros({shape.prefix, 1, size}, sums);
    prefix.value_gradients = at::zeros_like(prefix.key_gradients);
  }
  const auto leaf = [&](const at::Tensor& x) { return x.detach().requires_grad_(); };
  const at::Tensor own_q = leaf(q), own_k = leaf(k.narrow(0, shape.prefix, shape.rows)),
                   own_v = leaf(v.narrow(0, shape.prefix, shape.rows));
  AttentionBlock none;
  const at::Tensor y = attention(own_q, own_k, own_v, {0, shape.rows}, prefix, settings, none);
  const auto got = torch::autograd::grad({y}, {own_q, own_k, own_v}, {dy});

  std::vector<double> output, d_queries, d_keys, d_values;
  if (shape.key_gradients) {
    d_keys.assign(static_cast<size_t>(shape.keys() * size), 0.0);
    d_values = d_keys;
  }
  const at::Tensor dy_rows = rows_at(dy, indices);
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t last = shape.prefix + indices[i];
    const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, last - shape.window + 1);
    const double* const d_output = dy_rows.const_data_ptr<double>() + static_cast<int64_t>(i) * heads * size;
    const AttentionRow row = attention_row(q, k, v, indices[i], first, last + 1, settings.scoring,
                                           {d_output, d_output + heads * size}, d_keys, d_values);
    output.insert(output.end(), row.output.begin(), row.output.end());
    d_queries.insert(d_queries.end(), row.d_query.begin(), row.d_query.end());
  }
  const double limit = limit_of(shape.dtype);
  const auto m = static_cast<int64_t>(indices.size());
  const at::Tensor y_rows = y.detach().contiguous(), dq = got[0].contiguous();
  check.rows("output", rows_at(y_rows, indices), as_rows(output, m), limit);
  check.rows_of_one_scale("queries' gradients", rows_at(dq, indices), as_rows(d_queries, m), limit);
  int64_t others = dq.flatten(1).ne(0).any(1).sum().item<int64_t>();
  for (const int64_t index : indices) others -= dq[index].ne(0).any().item<bool>() ? 1 : 0;
  check.error("rows with a gradient that nothing sent", static_cast<double>(others), 0.0);
  if (!shape.key_gradients) return;
  const auto all = [&](const at::Tensor& earlier, const at::Tensor& own) {
    return at::cat({earlier.to(at::kDouble), own.to(at::kDouble)});
  };
  check.rows_of_one_scale("keys' gradients", all(prefix.key_gradients, got[1]), as_rows(d_keys, shape.keys()),
                          limit);
  check.rows_of_one_scale("values' gradients", all(prefix.value_gradients, got[2]),
                          as_rows(d_values, shape.keys()), limit);
}

LongCase attention_case(const std::string& name, const std::string& crosses, const Shape& shape,
                        int64_t bytes, bool quick = false) {
  return {"attention-" + name, crosses, bytes, quick,
          [shape](LongCheck& check) { check_attention(shape, check); }};
}

}  // namespace

std::vector<LongCase> long_attention_cases() {
  std::vector<LongCase> cases;
  const auto squared = [](int64_t tokens) {
    return tokens < 46341    ? "below 2^31"
           : tokens < 65536  ? "above 2^31"
           : tokens == 65536 ? "2^32"
                             : "above 2^32";
  };
  for (const int64_t tokens : {46340, 46341, 65535, 65536, 65537}) {
    const std::string crosses = fmt::format("{} tokens, squared {}", tokens, squared(tokens));
    cases.push_back(attention_case(fmt::format("{}-float64", tokens), crosses, {.rows = tokens}, kGiga / 5));
  }
  cases.push_back(attention_case("65537-float32", "65,537 tokens, squared above 2^32",
                                 {.dtype = at::kFloat, .rows = 65537, .heads = 2}, kGiga / 5));
  cases.push_back(attention_case("65537-bfloat16", "65,537 tokens, squared above 2^32",
                                 {.dtype = at::kBFloat16, .rows = 65537, .size = 16}, kGiga / 5));
  cases.push_back(attention_case("chunk-float64", "rows 46,341 after a prefix of 65,537",
                                 {.prefix = 65537, .rows = 46341}, kGiga / 4));
  cases.push_back(attention_case("prefix-float64", "257 rows after a prefix of 65,537",
                                 {.prefix = 65537, .rows = 257, .heads = 3}, kGiga / 10, /*quick=*/true));
  cases.push_back(attention_case(
      "prefix-bfloat16", "1,001 rows after a prefix of 65,537",
      {.dtype = at::kBFloat16, .prefix = 65537, .rows = 1001, .heads = 2, .size = 16}, kGiga / 10));
  cases.push_back(attention_case("window-float64", "131,073 tokens within a window of 513",
                                 {.rows = 131073, .window = 513}, kGiga / 5, /*quick=*/true));
  cases.push_back(attention_case("long-window-float64", "131,073 tokens within a window of 46,341",
                                 {.rows = 131073, .window = 46341}, kGiga / 4));
  cases.push_back(attention_case("softcap-float64", "1,001 capped rows after a prefix of 65,537",
                                 {.prefix = 65537, .rows = 1001, .heads = 2, .softcap = 5.0}, kGiga / 10));
  cases.push_back(attention_case("keys-2p31-bfloat16", "keys of 2^31 + 512 elements",
                                 {.dtype = at::kBFloat16,
                                  .prefix = int64_t{1} << 23,
                                  .rows = 2,
                                  .size = 256,
                                  .key_gradients = false,
                                  .sampled = 0},
                                 9 * kGiga));
  return cases;
}

}  // namespace streambp::verify
