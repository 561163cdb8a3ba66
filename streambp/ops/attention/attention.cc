#include "streambp/ops/attention/attention.h"

#include <algorithm>

#include "streambp/ops/attention/attention_blocks.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/attention/attention_earlier.h"
#include "streambp/ops/attention/attention_fused.h"
#include "streambp/ops/attention/attention_sinks.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// The most sequences that one call of a GPU's kernels takes: the y dimension of a grid has 65,535 blocks.
constexpr size_t kMostPacked = 32768;

/// One sequence's part of a run: views of the run's tensors.
struct Sequence {
  at::Tensor q, k, v;
  const Prefix& prefix;
  const AttentionSettings& settings;
  /// Of several sequences in one call, which have no prefix: where they begin, and the end. Else empty.
  std::vector<int64_t> packed = {};

  FusedAttention fused() const { return {q, k, v, prefix, settings}; }

  bool is_prefix(const ScoreBlock& block) const { return block.key < 0; }

  /// Rows of the block's keys in a tensor of the sequence, or of its prefix.
  at::Tensor keys_of(const ScoreBlock& block, const at::Tensor& own, const at::Tensor& earlier) const {
    return is_prefix(block) ? earlier.narrow(0, prefix.size() + block.key, block.keys)
                            : own.narrow(0, block.key, block.keys);
  }

  std::vector<ScoreBlock> blocks() const { return score_blocks(q.size(0), prefix.size(), settings.window); }

  /// Whether all of a window's band, or of several sequences, is one call of the GPU's kernels.
  bool is_one_call() const {
    return !packed.empty() || (settings.window > 0 && has_device_attention(q, settings.scoring));
  }

  /// The operands of that call: the prefix's keys before the rows' own.
  AttentionOperands banded() const {
    const auto joined = [&](const at::Tensor& earlier, const at::Tensor& own) {
      return prefix.size() > 0 ? at::cat({earlier, own}) : own;
    };
    return {.q = q,
            .k = joined(prefix.keys, k),
            .v = joined(prefix.values, v),
            .causal = true,
            .window = settings.window,
            .scale = settings.scoring.scale,
            .offsets = packed};
  }

  /// Its backward pass; what reaches the prefix is the prefix's.
  AttentionBlockGradients backward_of_band(const at::Tensor& dy, const AttentionBlock& saved) const {
    AttentionBlockGradients all = device_attend_backward(banded(), dy, saved);
    if (prefix.size() == 0) return all;
    const auto hand_out = [&](at::Tensor& gradient, const at::Tensor& sum) {
      if (sum.defined()) at::Tensor(sum).add_(gradient.narrow(0, 0, prefix.size()));
      gradient = gradient.narrow(0, prefix.size(), q.size(0));
    };
    hand_out(all.d_keys, prefix.key_gradients);
    hand_out(all.d_values, prefix.value_gradients);
    return all;
  }

  /// The same for a backward pass: rectangles on the prefix are cut.
  std::vector<ScoreBlock> backward_blocks() const {
    std::vector<ScoreBlock> all;
    for (const ScoreBlock& block : blocks()) {
      const auto cut = is_prefix(block) ? in_key_tiles(block, q, settings.scoring) : std::vector{block};
      all.insert(all.end(), cut.begin(), cut.end());
    }
    return all;
  }

  AttentionBlock forward() const {
    if (is_one_call()) return device_attend(banded());
    AttentionBlock all;
    for (const ScoreBlock& block : blocks()) {
      const AttentionBlock part =
          attend(q.narrow(0, block.query, block.queries), keys_of(block, k, prefix.keys),
                 keys_of(block, v, prefix.values), block.visible, settings.scoring);
      if (block.visible == Visible::kCausal && block.queries == q.size(0)) {
        all = part;
        continue;
      }
      if (!all.output.defined()) {
        all = {at::empty(q.sizes(), part.output.options()),
               at::empty({q.size(0), q.size(1)}, part.log_sum_exp.options())};
      }
      AttentionBlock rows{all.output.narrow(0, block.query, block.queries),
                          all.log_sum_exp.narrow(0, block.query, block.queries)};
      if (block.visible == Visible::kCausal) {  // the first that these queries see
        rows.output.copy_(part.output);
        rows.log_sum_exp.copy_(part.log_sum_exp);
      } else {
        merge(rows, part);
      }
    }
    round_output(all, q.scalar_type(), reads_remainder(q, settings.scoring));
    return all;
  }

  /// The prefix's share goes to the prefix's own buffers.
  AttentionBlockGradients backward(const at::Tensor& dy, const AttentionBlock& saved) const {
    if (is_one_call()) return backward_of_band(dy, saved);
    AttentionBlockGradients all;
    // A query's gradient has as many terms as its prefix has tiles: they are summed as wide as log-sum-exps
    // are, and rounded once.
    const at::ScalarType wide = saved.log_sum_exp.scalar_type();
    const at::Tensor output = saved.remainder.defined() ? wide_output(saved) : saved.output;
    for (const ScoreBlock& block : backward_blocks()) {
      const auto queries_of = [&](const at::Tensor& x) { return x.narrow(0, block.query, block.queries); };
      const AttentionBlockGradients part = attend_backward(
          queries_of(dy), queries_of(q), keys_of(block, k, prefix.keys), keys_of(block, v, prefix.values),
          queries_of(output), queries_of(saved.log_sum_exp), block.visible, settings.scoring);
      if (block.visible == Visible::kCausal && block.queries == q.size(0)) {
        all = part;
        continue;
      }
      if (!all.d_queries.defined()) all = {zeros(q), zeros(k), zeros(v)};
      if (all.d_queries.scalar_type() != wide) all.d_queries = all.d_queries.to(wide);
      queries_of(all.d_queries).add_(part.d_queries);
      if (is_prefix(block) && !prefix.key_gradients.defined()) continue;
      keys_of(block, all.d_keys, prefix.key_gradients).add_(part.d_keys);
      keys_of(block, all.d_values, prefix.value_gradients).add_(part.d_values);
    }
    all.d_queries = all.d_queries.to(q.scalar_type());
    return all;
  }

 private:
  static at::Tensor zeros(const at::Tensor& like) {
    return at::zeros_like(like, at::MemoryFormat::Contiguous);
  }
};

/// A run of several sequences, or one.
struct Run {
  at::Tensor q, k, v;
  std::vector<int64_t> offsets;
  Prefix prefix;
  AttentionSettings settings;

  /// Calls body(begin, rows, sequence) for each sequence that has rows; on a GPU, those that have no prefix
  /// are one.
  template <typename Body>
  void for_each_sequence(Body body) const {
    static const Prefix kNone;
    for (size_t i = 0; i + 1 < offsets.size();) {
      const int64_t begin = offsets[i];
      const bool is_first = i == 0;
      std::vector<int64_t> packed = packed_from(i);
      i = packed.empty() ? i + 1 : i + packed.size() - 1;
      const int64_t rows = offsets[i] - begin;
      if (rows == 0) continue;
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
      body(begin, rows,
           Sequence{part(q), part(k), part(v), is_first ? prefix : kNone, settings, std::move(packed)});
    }
  }

  /// One sequence, or one call for all, is the common case and needs no copy.
  bool is_one_part() const { return offsets.size() == 2 || packed_from(0).size() == offsets.size(); }

 private:
  /// Where the sequences from `first` on begin, counted from the first, if one call of the GPU's kernels
  /// takes them; else empty.
  std::vector<int64_t> packed_from(size_t first) const {
    const size_t count = std::min(offsets.size() - 1 - first, kMostPacked);
    if (count < 2 || (first == 0 && prefix.size() > 0) || !has_device_attention(q, settings.scoring))
      return {};
    std::vector<int64_t> packed(count + 1);
    bool has_pairs = false;  // FlashAttention has a path of its own, by other layouts, for single queries
    for (size_t i = 0; i <= count; ++i) {
      packed[i] = offsets[first + i] - offsets[first];
      has_pairs = has_pairs || (i > 0 && packed[i] - packed[i - 1] > 1);
    }
    return has_pairs ? packed : std::vector<int64_t>();
  }
};

AttentionBlock forward(const Run& run) {
  const at::NoGradGuard no_grad;
  AttentionBlock all;
  if (has_fused_attention(run.q, run.settings.scoring)) {
    all = {at::empty_like(run.q, at::MemoryFormat::Contiguous),
           at::empty({run.q.size(0), run.q.size(1)}, run.q.options().dtype(sum_dtype(run.q)))};
    if (reads_remainder(run.q, run.settings.scoring)) all.remainder = at::empty_like(all.output);
    run.for_each_sequence([&](int64_t begin, int64_t rows, const Sequence& sequence) {
      sequence.fused().forward(all.rows(begin, rows));
    });
    return all;
  }
  run.for_each_sequence([&](int64_t begin, int64_t rows, const Sequence& sequence) {
    AttentionBlock block = sequence.forward();
    if (run.is_one_part()) {
      all = std::move(block);
      return;
    }
    if (!all.output.defined()) {
      all = {at::empty_like(run.q, at::MemoryFormat::Contiguous),
             at::empty({run.q.size(0), run.q.size(1)}, block.log_sum_exp.options())};
      if (block.remainder.defined()) all.remainder = at::empty_like(all.output);
    }
    AttentionBlock part = all.rows(begin, rows);
    part.output.copy_(block.output);
    part.log_sum_exp.copy_(block.log_sum_exp);
    if (block.remainder.defined()) part.remainder.copy_(block.remainder);
  });
  return all;
}

AttentionBlockGradients backward(const Run& run, const at::Tensor& dy, const AttentionBlock& saved) {
  AttentionBlockGradients all;
  if (has_fused_attention(run.q, run.settings.scoring)) {
    const auto zeros = [&] { return at::zeros(run.k.sizes(), run.k.options().dtype(sum_dtype(run.k))); };
    all = {at::empty_like(run.q, at::MemoryFormat::Contiguous), zeros(), zeros()};
    run.for_each_sequence([&](int64_t begin, int64_t rows, const Sequence& sequence) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
      sequence.fused().backward(part(dy), saved.rows(begin, rows),
                                {part(all.d_queries), part(all.d_keys), part(all.d_values)});
    });
    all.d_keys = all.d_keys.to(run.k.scalar_type());
    all.d_values = all.d_values.to(run.v.scalar_type());
    return all;
  }
  if (!run.is_one_part()) all = {at::empty_like(run.q), at::empty_like(run.k), at::empty_like(run.v)};
  run.for_each_sequence([&](int64_t begin, int64_t rows, const Sequence& sequence) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    AttentionBlockGradients block = sequence.backward(part(dy), saved.rows(begin, rows));
    if (run.is_one_part()) {
      all = std::move(block);
      return;
    }
    part(all.d_queries).copy_(block.d_queries);
    part(all.d_keys).copy_(block.d_keys);
    part(all.d_values).copy_(block.d_values);
  });
  return all;
}

}  // namespace

AttentionBlock attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const std::vector<int64_t>& offsets, const Prefix& prefix,
                                 const AttentionSettings& settings) {
  return forward({q.detach(), k.detach(), v.detach(), offsets, prefix, settings});
}

AttentionBlockGradients attention_backward(const at::Tensor& dy, const AttentionBlock& saved,
                                           const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const std::vector<int64_t>& offsets, const Prefix& prefix,
                                           const AttentionSettings& settings) {
  return backward({q, k, v, offsets, prefix, settings}, dy, saved);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<int64_t>& offsets, const Prefix& prefix,
                     const AttentionSettings& settings, AttentionBlock& known) {
  const Run run{q.detach(), k.detach(), v.detach(), offsets, prefix, settings};
  if (!known.output.defined()) {
    known = forward(run);
    if (settings.sinks != nullptr) add_sinks(known, settings.sinks->value);
  }
  return differentiable(
      {q, k, v}, known.output, "attention", [run, saved = known](std::vector<at::Tensor>&& dy) {
        if (run.settings.sinks != nullptr) accumulate_sinks(*run.settings.sinks, dy[0], saved);
        const AttentionBlockGradients gradients = backward(run, dy[0], saved);
        return std::vector<at::Tensor>{gradients.d_queries, gradients.d_keys, gradients.d_values};
      });
}

}  // namespace streambp
