#include "streambp/python/attention.h"

#include <algorithm>
#include <limits>

#include "streambp/error.h"
#include "streambp/ops/attention/attention.h"
#include "streambp/ops/attention/attention_earlier.h"
#include "streambp/ops/attention/attention_sinks.h"
#include "streambp/ops/sum_dtype.h"
#include "streambp/python/guest.h"

namespace streambp::python {
namespace {

/// Neighbouring rows of one batch row's chunk, and the keys that they see; all of them count from the batch
/// row's first token.
struct Part {
  int64_t row, begin, end, key, key_end;
  std::vector<int64_t>
      offsets;  // of causal sequences, the first of which begins at `key`; empty: all rows see all keys

  int64_t rows() const { return end - begin; }
  bool is_causal() const { return !offsets.empty(); }
};

/// A batch's queries, keys and values as the engine has them, one row of the batch at a time.
class Chunk {
 public:
  Chunk(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& spans,
        int64_t window, double scale, double softcap, const std::optional<at::Tensor>& sinks)
      : q_(q), k_(k), v_(v), settings_{{scale, softcap}, window} {
    check(spans);
    if (q.is_cuda()) join_device(q.device().str());
    if (sinks.has_value()) {
      if (sinks->dim() != 1 || sinks->size(0) != q.size(1))
        throw InputError("sinks have {} numbers, expected one for each of {} heads", sinks->numel(),
                         q.size(1));
      sinks_.value = *sinks;
      settings_.sinks = &sinks_;
    }
    begin_ = k.size(2) - q.size(2);
    read(spans);
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  const std::vector<Part>& parts() const { return parts_; }
  const AttentionSettings& settings() const { return settings_; }
  int64_t begin() const { return begin_; }
  Parameter& sinks() { return sinks_; }

  /// Whether one part has all rows of the batch, so that its results are the batch's.
  bool is_one_part() const {
    return q_.size(0) == 1 && parts_.size() == 1 && parts_[0].is_causal() && parts_[0].rows() == q_.size(2);
  }

  /// The result of rows that see nothing.
  AttentionBlock nothing_seen() const {
    return {at::zeros({q_.size(0), q_.size(2), q_.size(1), q_.size(3)}, q_.options()),
            at::full({q_.size(0), q_.size(2), q_.size(1)}, -std::numeric_limits<double>::infinity(),
                     q_.options().dtype(sum_dtype(q_)))};
  }

  void check_rooms(const at::Tensor& d_output, const AttentionBlock& all, const at::Tensor& key_gradients,
                   const at::Tensor& value_gradients) const {
    const std::vector<int64_t> output{q_.size(0), q_.size(2), q_.size(1), q_.size(3)};
    const std::vector<int64_t> earlier{k_.size(0), k_.size(1), begin_, k_.size(3)};
    if (d_output.sizes() != output || all.output.sizes() != output ||
        all.log_sum_exp.sizes() != at::IntArrayRef(output).slice(0, 3))
      throw InputError("attention_backward: the gradient of the output is {}, expected {} like the output",
                       fmt::join(d_output.sizes(), " x "), fmt::join(output, " x "));
    for (const at::Tensor& room : {key_gradients, value_gradients}) {
      if (room.sizes() != earlier || room.scalar_type() != sum_dtype(q_) || room.device() != q_.device() ||
          (begin_ > 0 && !has_near_heads(room.select(0, 0).transpose(0, 1))))
        throw InputError(
            "attention_backward: rooms for the gradients of earlier keys are {}, expected {} of {}, a "
            "row's heads next to each other",
            fmt::join(room.sizes(), " x "), fmt::join(earlier, " x "), c10::toString(sum_dtype(q_)));
    }
  }

  /// The part's queries [n, H, E].
  at::Tensor queries(const Part& part) const {
    return q_.select(0, part.row).transpose(0, 1).narrow(0, part.begin - begin_, part.rows());
  }
  /// Rows of keys or values, [n, K, E], a row's heads next to each other.
  at::Tensor keys(const at::Tensor& x, const Part& part, int64_t begin, int64_t end) const {
    const at::Tensor rows = x.select(0, part.row).transpose(0, 1).narrow(0, begin, end - begin);
    return has_near_heads(rows) ? rows : rows.contiguous();
  }
  at::Tensor own_keys(const Part& part) const { return keys(k_, part, part.begin, part.end); }
  at::Tensor own_values(const Part& part) const { return keys(v_, part, part.begin, part.end); }

  /// Keys [begin, end), and the rooms of their gradients where `gradients` are given: [B, K, ...] each, which
  /// begin at row `first`.
  Prefix prefix(const Part& part, int64_t begin, int64_t end, const at::Tensor& key_gradients = {},
                const at::Tensor& value_gradients = {}, int64_t first = 0) const {
    if (begin >= end) return {};
    Prefix prefix{keys(k_, part, begin, end), keys(v_, part, begin, end), {}, {}};
    if (key_gradients.defined()) {
      prefix.key_gradients = rows_of(key_gradients, part, begin - first, end - begin);
      prefix.value_gradients = rows_of(value_gradients, part, begin - first, end - begin);
    }
    return prefix;
  }

  static at::Tensor rows_of(const at::Tensor& x, const Part& part, int64_t begin, int64_t count) {
    return x.select(0, part.row).transpose(0, 1).narrow(0, begin, count);
  }
  static bool has_near_heads(const at::Tensor& rows) {
    return rows.stride(2) == 1 && (rows.stride(1) == rows.size(2) || rows.size(1) == 1);
  }

 private:
  void check(const at::Tensor& spans) const {
    const auto is_like = [&](const at::Tensor& x) {
      return x.dim() == 4 && x.scalar_type() == q_.scalar_type() && x.device() == q_.device() &&
             x.size(0) == q_.size(0) && x.size(3) == q_.size(3);
    };
    if (!is_like(q_) || !is_like(k_) || !is_like(v_) || k_.sizes() != v_.sizes() || q_.numel() == 0 ||
        k_.numel() == 0 || k_.size(2) < q_.size(2) || q_.size(1) % k_.size(1) != 0)
      throw InputError(
          "attention: queries {}, keys {}, values {}: expected [B, H, C, E] and twice [B, K, N, E] of one "
          "dtype and device, with N >= C >= 1 and H a multiple of K",
          fmt::join(q_.sizes(), " x "), fmt::join(k_.sizes(), " x "), fmt::join(v_.sizes(), " x "));
    if (!spans.device().is_cpu() || spans.scalar_type() != at::kLong || spans.dim() != 2 ||
        spans.size(1) != 5)
      throw InputError("attention: spans are {}, expected int64 [S, 5] on the CPU",
                       fmt::join(spans.sizes(), " x "));
  }

  /// The parts of the chunk's rows; causal spans that touch are one.
  void read(const at::Tensor& all_spans) {
    const at::Tensor spans = all_spans.contiguous();
    const int64_t* line = spans.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < spans.size(0); ++i, line += 5) {
      const int64_t row = line[0], first = line[1], last = line[2], key = line[3], key_end = line[4];
      const bool is_causal = key == first && key_end == last;
      if (row < 0 || row >= q_.size(0) || first < 0 || last < first || key < 0 || key_end < key ||
          (!is_causal && key_end > first))
        throw InputError(
            "attention: span {}: rows {} to {} of row {} see keys {} to {}, expected their own or earlier "
            "ones",
            i, first, last, row, key, key_end);
      const int64_t begin = std::max(first, begin_), end = std::min(last, k_.size(2));
      if (begin >= end || key == key_end) continue;
      if (!parts_.empty() &&
          (parts_.back().row > row || (parts_.back().row == row && parts_.back().end > begin)))
        throw InputError("attention: span {} begins before the one before it ends", i);
      if (is_causal && !parts_.empty() && parts_.back().is_causal() && parts_.back().row == row &&
          parts_.back().end == begin) {
        parts_.back().end = end;
        parts_.back().offsets.push_back(end - parts_.back().begin);
      } else if (is_causal) {
        const int64_t seen = settings_.window > 0 ? begin - settings_.window + 1 : 0;
        parts_.push_back({row, begin, end, std::max(key, seen), begin, {0, end - begin}});
      } else {
        parts_.push_back({row, begin, end, key, key_end, {}});
      }
    }
  }

  const at::Tensor &q_, &k_, &v_;
  AttentionSettings settings_;
  Parameter sinks_{"sinks", {}, {}};
  int64_t begin_ = 0;
  std::vector<Part> parts_;
};

/// A part's rows of what the chunk has for each token, [B, C, ...].
at::Tensor rows_of_part(const at::Tensor& x, const Part& part, int64_t begin) {
  return x.defined() ? x.select(0, part.row).narrow(0, part.begin - begin, part.rows()) : x;
}

AttentionBlock rows_of_part(const AttentionBlock& all, const Part& part, int64_t begin) {
  return {rows_of_part(all.output, part, begin), rows_of_part(all.log_sum_exp, part, begin),
          rows_of_part(all.remainder, part, begin)};
}

AttentionBlock attend_part(const Chunk& chunk, const Part& part) {
  const at::Tensor q = chunk.queries(part);
  AttentionBlock block;
  if (part.is_causal()) {
    block = attention_forward(q, chunk.own_keys(part), chunk.own_values(part), part.offsets,
                              chunk.prefix(part, part.key, part.begin), chunk.settings());
  } else {
    const auto wide = q.options().dtype(sum_dtype(q));
    block = {at::zeros(q.sizes(), wide),
             at::full({q.size(0), q.size(1)}, -std::numeric_limits<double>::infinity(), wide)};
    attend_earlier(block, q, {chunk.prefix(part, part.key, part.key_end), part.key - part.begin},
                   chunk.settings());
    round_output(block, q.scalar_type(), reads_remainder(q, chunk.settings().scoring));
  }
  if (chunk.settings().sinks != nullptr) add_sinks(block, chunk.settings().sinks->value);
  return block;
}

}  // namespace

std::vector<at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& spans, int64_t window, double scale, double softcap,
                                  const std::optional<at::Tensor>& sinks) {
  return answered([&] {
    const GuestScope guest;
    const Chunk chunk(q, k, v, spans, window, scale, softcap, sinks);
    AttentionBlock all;
    for (const Part& part : chunk.parts()) {
      const AttentionBlock block = attend_part(chunk, part);
      if (chunk.is_one_part()) {
        const auto whole = [](const at::Tensor& x) { return x.defined() ? x.contiguous().unsqueeze(0) : x; };
        all = {whole(block.output), whole(block.log_sum_exp), whole(block.remainder)};
        continue;
      }
      if (!all.output.defined()) {
        all = chunk.nothing_seen();
        if (block.remainder.defined()) all.remainder = at::zeros_like(all.output);
      }
      const AttentionBlock rows = rows_of_part(all, part, chunk.begin());
      rows.output.copy_(block.output);
      rows.log_sum_exp.copy_(block.log_sum_exp);
      if (block.remainder.defined()) rows.remainder.copy_(block.remainder);
    }
    if (!all.output.defined()) all = chunk.nothing_seen();
    if (!all.remainder.defined()) all.remainder = at::empty({0}, q.options());
    return std::vector{all.output, all.log_sum_exp, all.remainder};
  });
}

std::vector<at::Tensor> attention_backward(const at::Tensor& d_output, const std::vector<at::Tensor>& saved,
                                           const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const at::Tensor& spans, int64_t window, double scale,
                                           double softcap, const std::optional<at::Tensor>& sinks,
                                           const at::Tensor& key_gradients,
                                           const at::Tensor& value_gradients) {
  return answered([&] {
    const GuestScope guest;
    Chunk chunk(q, k, v, spans, window, scale, softcap, sinks);
    const int64_t begin = chunk.begin();
    if (saved.size() != 3)
      throw InputError("attention_backward: expected the three tensors that attention() returns");
    const AttentionBlock all{saved[0], saved[1], saved[2].numel() > 0 ? saved[2] : at::Tensor()};
    const auto wide = q.options().dtype(sum_dtype(q));
    chunk.check_rooms(d_output, all, key_gradients, value_gradients);
    if (sinks.has_value()) chunk.sinks().gradient = at::zeros({q.size(1)}, wide);
    const auto zeros = [&](const at::Tensor& like, int64_t rows, const at::TensorOptions& options) {
      return at::zeros({like.size(0), rows, like.size(1), like.size(3)}, options).transpose(1, 2);
    };
    AttentionBlockGradients sums;
    if (!chunk.is_one_part())
      sums = {zeros(q, q.size(2), q.options()), zeros(k, q.size(2), wide), zeros(v, q.size(2), wide)};
    for (const Part& part : chunk.parts()) {
      const at::Tensor dy = rows_of_part(d_output, part, begin), queries = chunk.queries(part);
      const AttentionBlock block = rows_of_part(all, part, begin);
      if (sinks.has_value()) accumulate_sinks(chunk.sinks(), dy, block);
      const auto rows_of_sum = [&](const at::Tensor& sum, int64_t first, int64_t rows) {
        return Chunk::rows_of(sum, part, first - begin, rows);
      };
      if (part.is_causal()) {
        const AttentionBlockGradients found = attention_backward(
            dy, block, queries, chunk.own_keys(part), chunk.own_values(part), part.offsets,
            chunk.prefix(part, part.key, part.begin, key_gradients, value_gradients), chunk.settings());
        if (chunk.is_one_part()) {
          const auto as_given = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
          sums = {as_given(found.d_queries), as_given(found.d_keys), as_given(found.d_values)};
          continue;
        }
        rows_of_sum(sums.d_queries, part.begin, part.rows()).copy_(found.d_queries);
        rows_of_sum(sums.d_keys, part.begin, part.rows()).add_(found.d_keys);
        rows_of_sum(sums.d_values, part.begin, part.rows()).add_(found.d_values);
        continue;
      }
      const at::Tensor d_queries = at::zeros(queries.sizes(), wide);
      const int64_t middle = std::clamp(begin, part.key, part.key_end);
      attend_earlier_backward(
          d_queries, dy, block, queries,
          {chunk.prefix(part, part.key, middle, key_gradients, value_gradients), part.key - part.begin},
          chunk.settings());
      attend_earlier_backward(
          d_queries, dy, block, queries,
          {chunk.prefix(part, middle, part.key_end, sums.d_keys, sums.d_values, begin), middle - part.begin},
          chunk.settings());
      rows_of_sum(sums.d_queries, part.begin, part.rows()).copy_(d_queries);
    }
    std::vector<at::Tensor> gradients{sums.d_queries, sums.d_keys.to(k.scalar_type()),
                                      sums.d_values.to(v.scalar_type())};
    if (sinks.has_value()) gradients.push_back(chunk.sinks().gradient.to(sinks->scalar_type()));
    return gradients;
  });
}

}  // namespace streambp::python
