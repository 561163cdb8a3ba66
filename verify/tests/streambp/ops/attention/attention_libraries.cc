#include "verify/tests/streambp/ops/attention/attention_libraries.h"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <torch/library.h>
#include <torch/version.h>

namespace streambp::libraries_on_host {
namespace {

std::atomic<int64_t> flash_forwards = 0, flash_backwards = 0, cudnn_forwards = 0, cudnn_backwards = 0;

/// A library would not notice.
void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error("attention on the host: " + what);
}

bool is_half(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

/// Kernels move 16 bytes at a time from wherever pointer and strides lead them; a dimension of one has no
/// stride that matters.
void expect_packs(const at::Tensor& x, const char* name) {
  const auto bytes = static_cast<int64_t>(x.element_size());
  expect(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0,
         fmt::format("{} begins within 16 bytes", name));
  for (int64_t i = 0; i + 1 < x.dim(); ++i)
    expect(x.size(i) == 1 || x.stride(i) * bytes % 16 == 0,
           fmt::format("{} of strides {} is no multiple of 16 bytes apart", name, x.strides()));
}

// --------------------------------------------------------------------------------------------- The formula

/// Rows of one sequence: queries [n, H, E], keys and values [m, K, E], in float64, and which keys each query
/// sees, [n, m].
struct Block {
  at::Tensor q, k, v, visible;
  double scale;

  Block(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, at::Tensor sees,
        double s)
      : q(queries.to(at::kDouble)),
        k(expanded(keys)),
        v(expanded(values)),
        visible(std::move(sees)),
        scale(s) {
    expect(visible.any(1).all().item<bool>(), "a query that sees no key");
  }

  /// [H, n, m]
  at::Tensor scores() const {
    return (at::matmul(q.transpose(0, 1), k.permute({1, 2, 0})) * scale)
        .masked_fill_(visible.logical_not(), -std::numeric_limits<double>::infinity());
  }

  /// Of each query head, [m, H, E].
  at::Tensor expanded(const at::Tensor& x) const {
    return x.to(at::kDouble).repeat_interleave(q.size(1) / x.size(1), 1);
  }

  void forward(at::Tensor output, at::Tensor log_sum_exp) const {
    const at::Tensor all = scores();
    output.copy_(at::matmul(all.softmax(-1), v.transpose(0, 1)).transpose(0, 1));
    log_sum_exp.copy_(at::logsumexp(all, -1));
  }

  /// With the output [n, H, E] and log-sum-exps [H, n] of the whole rows. The gradients of keys and values,
  /// each query head's in their dtype, are added up to those of a key head, as both libraries do it.
  void backward(const at::Tensor& d_output, const at::Tensor& output, const at::Tensor& log_sum_exp,
                at::Tensor dq, at::Tensor dk, at::Tensor dv) const {
    const at::Tensor dy = d_output.to(at::kDouble).transpose(0, 1),
                     y = output.to(at::kDouble).transpose(0, 1);
    const at::Tensor p = (scores() - log_sum_exp.to(at::kDouble).unsqueeze(-1)).exp();
    const at::Tensor d_scores =
        p * (at::matmul(dy, v.permute({1, 2, 0})) - (dy * y).sum(-1, /*keepdim=*/true)) * scale;
    dq.copy_(at::matmul(d_scores, k.transpose(0, 1)).transpose(0, 1));
    const auto add_up = [](at::Tensor& to, const at::Tensor& of_heads) {
      const at::Tensor rounded = of_heads.transpose(0, 1).to(to.scalar_type()).to(at::kDouble);
      const int64_t key_heads = to.size(1);
      to.copy_(rounded.reshape({to.size(0), key_heads, rounded.size(1) / key_heads, to.size(2)}).sum(2));
    };
    add_up(dk, at::matmul(d_scores.transpose(1, 2), q.transpose(0, 1)));
    add_up(dv, at::matmul(p.transpose(1, 2), dy));
  }
};

/// Key minus query of n queries and m keys, [n, m].
at::Tensor distances(int64_t n, int64_t m) {
  return at::arange(m).unsqueeze(0) - at::arange(n).unsqueeze(1);
}

// ---------------------------------------------------------------------------------------- FlashAttention 2

/// A call of it: dense, [1, n, H, E], or of several sequences one after another, [n, H, E].
struct Flash {
  const at::Tensor &q, &k, &v;
  std::vector<int64_t> query_ends, key_ends;  // of each sequence
  bool causal;
  int64_t left, right;
  double scale;

  /// Which keys queries see, the last one the last key: mask.h, lower right.
  at::Tensor visible(int64_t n, int64_t m) const {
    const at::Tensor distance = distances(n, m) - (m - n);
    at::Tensor sees = at::ones({n, m}, at::kBool);
    const bool has_left = left >= 0 && left < m;
    const int64_t most = causal && n > 1 ? 0 : right;  // a single query sees all keys, causal or not
    if (has_left) sees.logical_and_(distance >= -left);
    if (most >= 0 && most < m) sees.logical_and_(distance <= most);
    return sees;
  }

  template <typename Body>
  void for_each_sequence(Body body) const {
    int64_t query = 0, key = 0;
    for (size_t i = 0; i < query_ends.size(); ++i) {
      const int64_t n = query_ends[i] - query, m = key_ends[i] - key;
      const auto rows = [](const at::Tensor& x, int64_t begin, int64_t count) {
        return (x.dim() == 4 ? x.squeeze(0) : x).narrow(0, begin, count);
      };
      if (n > 0) {
        const Block block(rows(q, query, n), rows(k, key, m), rows(v, key, m), visible(n, m), scale);
        body(block, query, n, key, m, rows);
      }
      query += n;
      key += m;
    }
  }
};

std::vector<int64_t> sequence_ends(const at::Tensor& offsets, int64_t rows, int64_t longest) {
  TORCH_CHECK(offsets.scalar_type() == at::kInt, "cu_seqlens_q must have dtype int32");
  TORCH_CHECK(offsets.is_contiguous(), "cu_seqlens_q must be contiguous");
  expect(offsets.dim() == 1 && offsets.size(0) >= 2 && offsets.size(0) - 1 <= 65535,
         fmt::format("offsets of {} sequences", offsets.size(0) - 1));
  std::vector<int64_t> ends;
  int64_t before = 0, most = 0;
  expect(offsets[0].item<int64_t>() == 0, "offsets that don't begin with 0");
  for (int64_t i = 1; i < offsets.size(0); ++i) {
    ends.push_back(offsets[i].item<int64_t>());
    expect(ends.back() >= before, "offsets that go down");
    most = std::max(most, ends.back() - before);
    before = ends.back();
  }
  expect(before == rows, fmt::format("offsets up to {} of {} rows", before, rows));
  expect(longest == most, fmt::format("a longest sequence of {} that has {} rows", longest, most));
  return ends;
}

Flash flash_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& offsets_q,
                 const at::Tensor& offsets_k, int64_t max_q, int64_t max_k, bool causal, double scale,
                 std::optional<int64_t> left, std::optional<int64_t> right) {
  TORCH_CHECK(is_half(q), "FlashAttention only support fp16 and bf16 data type");
  const int64_t rows = q.dim() - 3, size = q.size(-1), heads = q.size(-2), key_heads = k.size(-2);
  for (const at::Tensor* one : {&q, &k, &v}) {
    TORCH_CHECK(one->scalar_type() == q.scalar_type(), "query and key must have the same dtype");
    TORCH_CHECK(one->stride(-1) == 1, "Input tensor must have contiguous last dimension");
    TORCH_CHECK(one->dim() == q.dim() && one->size(-1) == size, "a shape of the operands");
    expect_packs(*one, "an operand");
  }
  TORCH_CHECK(size % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!");
  TORCH_CHECK(size <= 256, "FlashAttention forward only supports head dimension at most 256");
  TORCH_CHECK(heads % key_heads == 0, "Number of heads in key/value must divide number of heads in query");
  TORCH_CHECK(k.sizes() == v.sizes(), "a shape of keys and values");
  TORCH_CHECK(offsets_q.defined() == offsets_k.defined(), "offsets of queries and of keys go together");
  Flash call{q, k, v, {q.size(rows)}, {k.size(rows)}, causal, left.value_or(-1), right.value_or(-1), scale};
  if (!offsets_q.defined()) {
    expect(q.dim() == 4 && q.size(0) == 1, "a batch of one");
    expect(max_q == q.size(1) && max_k == k.size(1), "lengths that are not the operands'");
    return call;
  }
  TORCH_CHECK(q.dim() == 3, "a shape of packed queries");
  // Its forward pass then puts the heads of a group where queries were, log-sum-exps included.
  expect(max_q > 1, "packed sequences of one query each");
  call.query_ends = sequence_ends(offsets_q, q.size(0), max_q);
  call.key_ends = sequence_ends(offsets_k, k.size(0), max_k);
  expect(call.query_ends.size() == call.key_ends.size(), "as many sequences of keys as of queries");
  return call;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& offsets_q,
    const std::optional<at::Tensor>& offsets_k, int64_t max_q, int64_t max_k, double dropout, bool causal,
    bool debug, std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const std::optional<at::Tensor>& used, const std::optional<at::Tensor>& slopes) {
  ++flash_forwards;
  expect(dropout == 0.0 && !debug && !used && !slopes && scale, "an argument that we never give");
  const Flash call = flash_call(q, k, v, offsets_q.value_or(at::Tensor()), offsets_k.value_or(at::Tensor()),
                                max_q, max_k, causal, *scale, left, right);
  const at::Tensor output = at::empty_like(q);
  const bool dense = q.dim() == 4;
  const at::Tensor sums = dense ? at::empty({1, q.size(2), q.size(1)}, q.options().dtype(at::kFloat))
                                : at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  call.for_each_sequence([&](const Block& block, int64_t query, int64_t n, int64_t, int64_t, auto rows) {
    block.forward(rows(output, query, n), (dense ? sums[0] : sums).narrow(1, query, n));
  });
  return {output, sums, at::empty({2}, at::kLong), at::empty({}, at::kLong), at::empty({0}, q.options())};
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
/// With a table of blocks of keys, and the number of parts that keys are taken in.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> later_flash_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& offsets_q,
    const std::optional<at::Tensor>& offsets_k, int64_t max_q, int64_t max_k, double dropout, bool causal,
    bool debug, std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const std::optional<at::Tensor>& used, const std::optional<at::Tensor>& slopes,
    const std::optional<at::Tensor>& table, std::optional<int64_t> splits) {
  expect(!table && !splits, "an argument that we never give");
  return flash_forward(q, k, v, offsets_q, offsets_k, max_q, max_k, dropout, causal, debug, scale, left,
                       right, used, slopes);
}
#else
constexpr auto* later_flash_forward = &flash_forward;
#endif

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& d_output, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& output, const at::Tensor& sums, const at::Tensor& offsets_q,
    const at::Tensor& offsets_k, int64_t max_q, int64_t max_k, double dropout, bool causal, const at::Tensor&,
    const at::Tensor&, std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right) {
  ++flash_backwards;
  expect(dropout == 0.0 && scale, "an argument that we never give");
  const Flash call = flash_call(q, k, v, offsets_q, offsets_k, max_q, max_k, causal, *scale, left, right);
  // torch makes these contiguous; the log-sum-exps are read by their pointer.
  for (const at::Tensor* one : {&output, &d_output}) {
    TORCH_CHECK(one->scalar_type() == q.scalar_type(), "query and out must have the same dtype");
    TORCH_CHECK(one->sizes() == q.sizes(), "a shape of the output");
  }
  const bool dense = q.dim() == 4;
  const std::vector<int64_t> wanted =
      dense ? std::vector<int64_t>{1, q.size(2), q.size(1)} : std::vector<int64_t>{q.size(1), q.size(0)};
  expect(sums.scalar_type() == at::kFloat && sums.is_contiguous() && sums.sizes() == at::IntArrayRef(wanted),
         fmt::format("log-sum-exps of {} and strides {}, not contiguous floats of {}", sums.sizes(),
                     sums.strides(), wanted));
  const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  call.for_each_sequence(
      [&](const Block& block, int64_t query, int64_t n, int64_t key, int64_t m, auto rows) {
        block.backward(rows(d_output, query, n), rows(output, query, n),
                       (dense ? sums[0] : sums).narrow(1, query, n), rows(dq, query, n), rows(dk, key, m),
                       rows(dv, key, m));
      });
  return {dq, dk, dv};
}

// --------------------------------------------------------------------------------------------------- cuDNN

/// What all calls have in common. Operands are [1, heads, rows, E].
void check_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // Whatever is not bfloat16 is read as float16.
  expect(is_half(q) && k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
         "operands of other dtypes than float16 and bfloat16");
  for (const at::Tensor* one : {&q, &k, &v}) {
    expect(one->dim() == 4 && one->size(0) == 1, "a batch of one, heads, rows, numbers");
    TORCH_CHECK(one->stride(3) == 1, "stride of the head's numbers is not 1");
    TORCH_CHECK(one->size(3) == q.size(3), "a size of the heads");
    expect_packs(*one, "an operand");
  }
  expect(k.sizes() == v.sizes(), "a shape of keys and values");
  TORCH_CHECK(q.size(3) % 8 == 0 && q.size(3) <= 128, "no engine for heads of ", q.size(3));
  TORCH_CHECK(q.size(1) % k.size(1) == 0, "query heads are no multiple of key heads");
}

/// The first query sees the first key alone: top left.
Block cudnn_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale) {
  const auto rows = [](const at::Tensor& x) { return x.squeeze(0).transpose(0, 1); };
  const int64_t n = q.size(2), m = k.size(2);
  return {rows(q), rows(k), rows(v), causal ? distances(n, m) <= 0 : at::ones({n, m}, at::kBool), scale};
}

/// The strides that lead anywhere.
std::vector<int64_t> strides_of(const at::Tensor& x) {
  std::vector<int64_t> strides;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) > 1) strides.push_back(x.stride(i));
  }
  return strides;
}

/// Plans are remembered by shapes and strides of queries, keys and values: what else a call's operands look
/// like must not change with them.
void expect_of_plan(bool is_backward, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    bool causal, const std::vector<at::Tensor>& others) {
  static std::mutex mutex;
  static std::map<std::string, std::string> plans;
  std::string key = fmt::format("{} {} {}", is_backward, causal, c10::toString(q.scalar_type())), rest;
  for (const at::Tensor* one : {&q, &k, &v}) key += fmt::format(" {} {}", one->sizes(), one->strides());
  for (const at::Tensor& one : others) rest += fmt::format(" {} {}", one.sizes(), strides_of(one));
  const std::lock_guard lock(mutex);
  const auto [plan, is_new] = plans.try_emplace(key, rest);
  expect(is_new || plan->second == rest, fmt::format("a plan made for{} meets{}", plan->second, rest));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor,
           at::Tensor>
cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const std::optional<at::Tensor>& bias, bool wants_sums, double dropout, bool causal, bool debug,
              std::optional<double> scale) {
  ++cudnn_forwards;
  expect(!bias && wants_sums && dropout == 0.0 && !debug && scale, "an argument that we never give");
  check_cudnn(q, k, v);
  const at::Tensor output = at::empty_like(q),
                   sums = at::empty({1, q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat));
  expect_of_plan(/*is_backward=*/false, q, k, v, causal, {output, sums});
  cudnn_block(q, k, v, causal, *scale)
      .forward(output.squeeze(0).transpose(0, 1), sums.squeeze(-1).squeeze(0));
  const at::Tensor none;
  return {output, sums, none, none, q.size(2), k.size(2), at::empty({}, at::kLong), at::empty({}, at::kLong),
          none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& d_output, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& output, const at::Tensor& sums, const at::Tensor& seed, const at::Tensor& offset,
    const at::Tensor& bias, const at::Tensor& offsets_q, const at::Tensor& offsets_k, int64_t max_q,
    int64_t max_k, double dropout, bool causal, std::optional<double> scale) {
  ++cudnn_backwards;
  expect(!bias.defined() && !offsets_q.defined() && !offsets_k.defined() && dropout == 0.0 && scale,
         "an argument that we never give");
  expect(seed.defined() && offset.defined(), "seed and offset, though nobody looks at them");
  expect(max_q == q.size(2) && max_k == k.size(2), "lengths that are not the operands'");
  check_cudnn(q, k, v);
  for (const at::Tensor* one : {&output, &d_output}) {
    expect(one->sizes() == q.sizes() && one->scalar_type() == q.scalar_type() && one->stride(3) == 1,
           "an output or its gradient of another shape or dtype");
    expect_packs(*one, "the output or its gradient");
  }
  expect(sums.scalar_type() == at::kFloat && sums.is_contiguous() &&
             sums.sizes() == at::IntArrayRef({1, q.size(1), q.size(2), 1}),
         fmt::format("log-sum-exps of {} and strides {}", sums.sizes(), sums.strides()));
  expect_of_plan(/*is_backward=*/true, q, k, v, causal, {output, d_output, sums});
  const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  const auto rows = [](const at::Tensor& x) { return x.squeeze(0).transpose(0, 1); };
  cudnn_block(q, k, v, causal, *scale)
      .backward(rows(d_output), rows(output), sums.squeeze(-1).squeeze(0), rows(dq), rows(dk), rows(dv));
  return {dq, dk, dv};
}

}  // namespace

Calls calls() {
  return {flash_forwards, flash_backwards, cudnn_forwards, cudnn_backwards};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", later_flash_forward);
  library.impl("_flash_attention_backward", &flash_backward);
  library.impl("_scaled_dot_product_cudnn_attention", &cudnn_forward);
  library.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace streambp::libraries_on_host
