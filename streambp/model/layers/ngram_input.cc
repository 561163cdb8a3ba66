#include "streambp/model/layers/ngram_input.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/low_rank_streams.h"
#include "streambp/ops/ngrams.h"

namespace streambp {

bool NgramInput::trainable() const {
  if (!is_there()) return false;
  for (const Parameter* parameter : {table, conv1d, norm_key.weight, norm_query.weight, norm_conv.weight}) {
    if (parameter->trainable()) return true;
  }
  return key_proj->trainable() || value_proj->trainable();
}

NgramOutput add_ngrams(const NgramInput& input, const at::Tensor& x, const at::Tensor& ngrams,
                       const std::vector<int64_t>& offsets, const TailBefore& before) {
  const MemoryScope scope("n-grams");
  at::Tensor opened;
  {
    const at::Tensor embedded = look_up(x, *input.table, ngram_rows(ngrams, input.multipliers, input.rows));
    const auto both = linear(embedded, {input.key_proj, input.value_proj});
    opened = opened_values(norm_streams(both[0], input.norm_key, input.streams),
                           norm_streams(x, input.norm_query, input.streams), both[1]);
  }
  ConvOutput conv =
      dilated_conv_silu(norm_streams(opened, input.norm_conv, input.streams), *input.conv1d, offsets, before,
                        /*dilation=*/static_cast<int64_t>(input.multipliers.size()));
  return {x + opened + conv.hidden, std::move(conv.tail)};
}

}  // namespace streambp
