#include "verify/diagnose/wrong_engine/attention_parts.h"

#include <limits>

#include "streambp/error.h"

namespace streambp::verify {

bool changes_attention(const WrongSettings& s) {
  return s.own_chunk_only.size > 0 || s.top_left.size > 0 || s.sees_whole_chunk.size > 0 ||
         s.detached.size > 0 || s.looks_ahead != 0 || s.score_factor != 1.0 || s.ignores_windows ||
         s.window_offset != 0 || s.no_attention_softcap || s.no_sinks || s.key_value_heads_in_turn ||
         s.slope_alone != SlopeAlone::kNone || s.sinks_share_constant || s.key_sum != GroupSum::kAll ||
         s.value_sum != GroupSum::kAll || s.block_merge != BlockMerge::kRight || s.heads_not_transposed ||
         s.zero_sink || s.first_unseen || s.window_everywhere > 0 || s.prompt_sees_itself ||
         s.softmax_without_sum || s.attention_softcap_straight || s.narrow == NarrowValues::kAttention;
}

at::Tensor repeated_for_queries(const at::Tensor& by_head, int64_t group, GroupSum sum) {
  const at::Tensor right = by_head.repeat_interleave(group, 0);
  if (sum == GroupSum::kAll || group == 1) return right;
  at::Tensor sent;  // whose gradient it has
  if (sum == GroupSum::kInTurn) {
    sent = by_head.repeat({group, 1, 1});
  } else if (sum == GroupSum::kMean) {
    sent = right / static_cast<double>(group);
  } else {
    const int64_t alone = sum == GroupSum::kFirst ? 0 : group - 1;
    const at::Tensor others = at::arange(by_head.size(0) * group, at::kLong).remainder(group).ne(alone);
    sent = right.masked_fill(others.view({-1, 1, 1}), 0.0);
  }
  return sent + (right - sent).detach();
}

at::Tensor with_constant_share(const at::Tensor& scores) {
  const int64_t keys = scores.size(-1) - 1;
  const at::Tensor of_keys = scores.narrow(-1, 0, keys);
  const at::Tensor among_keys = at::softmax(of_keys, -1);
  const at::Tensor share = at::sigmoid(of_keys.detach().logsumexp(-1, true) - scores.narrow(-1, keys, 1));
  return among_keys * share;
}

at::Tensor merged_blocks(const at::Tensor& scores, const at::Tensor& seen, const at::Tensor& column,
                         const WrongSettings& settings) {
  if (scores.size(-1) != seen.size(1)) throw InputError("--diagnose: sinks among blocks of keys");
  const at::Tensor number = column.div(settings.key_block, "floor");
  const int64_t blocks = number.max().item<int64_t>() + 1;
  const at::Tensor block = number.unsqueeze(1).eq(at::arange(blocks, at::kLong)).to(scores.scalar_type());
  const at::Tensor e = (scores - scores.detach().amax(-1, true)).exp();
  const at::Tensor of_own_block = at::matmul(at::matmul(e, block), block.t());
  const at::Tensor weights = e / of_own_block.masked_fill(seen.logical_not(), 1.0);
  if (settings.block_merge == BlockMerge::kSum) return weights;
  if (settings.block_merge == BlockMerge::kMeanOfAll) return weights / static_cast<double>(blocks);
  return weights / at::matmul(seen.to(block.scalar_type()), block).gt(0.0).sum(-1, true);
}

at::Tensor heads_not_transposed(const at::Tensor& output, const std::vector<int64_t>& rows) {
  std::vector<at::Tensor> turned;
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    const at::Tensor row = output.slice(0, rows[i], rows[i + 1]);
    turned.push_back(row.transpose(0, 1).reshape(row.sizes()));
  }
  return at::cat(turned);
}

at::Tensor keys_seen(const WrongSettings& settings, const TokenIndices& indices, const Batch& batch,
                     int64_t window) {
  const auto starts = [&](const Cut& cut) { return chunk_starts(indices, cut); };
  const auto of_query = [](const at::Tensor& x) { return x.unsqueeze(1); };
  const auto of_key = [](const at::Tensor& x) { return x.unsqueeze(0); };
  at::Tensor at_query = indices.in_sequence;
  if (settings.top_left.size > 0) at_query = at_query - starts(settings.top_left);
  const at::Tensor query = of_query(at_query), key = of_key(indices.in_sequence);
  at::Tensor seen = key <= query + settings.looks_ahead;
  if (settings.sees_whole_chunk.size > 0) {
    const at::Tensor chunk = starts(settings.sees_whole_chunk);
    seen = seen | (of_query(chunk) == of_key(chunk));
  }
  if (settings.prompt_sees_itself) {
    const at::Tensor prompt = prompt_tokens(batch);
    seen = seen | (of_query(prompt) & of_key(prompt));
  }
  if (settings.own_chunk_only.size > 0) seen = seen & (key >= of_query(starts(settings.own_chunk_only)));
  if (settings.first_unseen) seen = seen & (key.gt(0) | query.eq(0));
  const int64_t width = settings.ignores_windows ? 0
                        : window == 0            ? settings.window_everywhere
                                                 : window + settings.window_offset;
  if (width > 0) seen = seen & (query - key < width);
  return seen & (of_query(indices.sequence) == of_key(indices.sequence));
}

at::Tensor of_blind_queries(BlindQueries blind, const at::Tensor& row, const at::Tensor& q,
                            const at::Tensor& k, double scale) {
  const at::Tensor even = row.to(at::kDouble);
  if (blind == BlindQueries::kNothing) return even * 0.0;
  if (blind == BlindQueries::kRow) return even / even.sum(1, true);
  const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * scale;
  return at::softmax((scores - scores.detach()).masked_fill(~row, -std::numeric_limits<double>::infinity()),
                     -1);
}

}  // namespace streambp::verify
