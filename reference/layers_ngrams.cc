// Qwen4-Exp's streams and embeddings of n-grams; see layers.h.
#include <cmath>
#include <cstddef>
#include <limits>

#include "reference/column_groups.h"
#include "reference/layers.h"
#include "reference/ngram_table.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// The square root of numbers [n, 1] with their signs; of those nearer to 0 than 1e-6 that of 1e-6, without a
/// gradient, and of 0 itself 0.
Var signed_root(const Var& x) {
  std::vector<Number> signs;
  for (Index i = 0; i < x.rows(); ++i) {
    const Number value = real_part(x.value()(i, 0));
    signs.push_back(value > 0.0 ? Number{1} : value < 0.0 ? Number{-1} : Number{0});
  }
  const Var size = clip(scale_rows(x, signs), Number{1e-6}, std::numeric_limits<double>::infinity());
  return scale_rows(exp(scale(log(size), Number{0.5})), signs);
}

/// The weights of a convolution whose taps are `apart` rows apart, as those of one over all rows between.
Var with_gaps(const Var& weight, int apart) {
  const auto taps = static_cast<int>(weight.cols());
  const Var rows = transpose(weight);
  const Var and_nothing = transpose(concat_rows({rows, scale(gather_rows(rows, {0}), 0.0)}));
  std::vector<int> columns;
  for (int j = 0; j < taps; ++j) {
    if (j > 0) columns.insert(columns.end(), static_cast<std::size_t>(apart - 1), taps);
    columns.push_back(j);
  }
  return gather_columns(and_nothing, columns);
}

}  // namespace

Var Layers::normed_streams(const std::string& module, const Var& x) const {
  const Var& weight = parameter(module + ".weight");
  const Index size = config_.hidden_size;
  std::vector<Var> streams;
  for (Index s = 0; s < config_.hyper.streams; ++s)
    streams.push_back(rms_norm(slice_columns(x, s * size, size),
                               offset(slice_columns(weight, s * size, size), 1.0), config_.rms_norm_eps));
  return join_groups(streams, 1);
}

Var Layers::low_rank_read(const std::string& names, const Var& x) const {
  const Number share = Number{1} / Number{1.0 * config_.hyper.streams};
  const Var normed = normed_streams(names + "hc_norm", x);
  const Var low = silu(scale(project(names + "input_mix_weight_down", false, normed), share));
  return mean_of_streams(mul(sigmoid(project(names + "input_mix_weight_up", false, low)), normed));
}

Var Layers::low_rank_given(const std::string& names, const Var& x, const Var& y) const {
  const Number share = Number{1} / Number{1.0 * config_.hyper.streams};
  const Var given = project(names + "block_inject_weight", false, normed_streams(names + "hc_norm", x));
  const Var weights = scale(sigmoid(scale(given, share)), 2.0);
  const Index size = config_.hidden_size;
  std::vector<Var> streams;
  for (Index s = 0; s < config_.hyper.streams; ++s)
    streams.push_back(add(slice_columns(x, s * size, size), scale_rows(y, slice_columns(weights, s, 1))));
  return join_groups(streams, 1);
}

Var Layers::of_ngrams(const std::string& names, int layer, const Var& x,
                      const std::vector<int>& tokens) const {
  const NgramSettings& settings = config_.ngrams;
  const NgramTable table =
      ngram_table(settings, settings.modules[static_cast<std::size_t>(layer)], config_.vocab_size);
  const Var& rows = parameter(names + "ple_embedding.ngram_embedding.weight");
  std::vector<Var> of_heads;
  for (int head = 0; head < static_cast<int>(table.heads.size()); ++head)
    of_heads.push_back(gather_rows(rows, ngram_rows(settings, table, head, tokens)));
  const Var embedded = join_groups(of_heads, 1);

  const Var keys = normed_streams(names + "norm_key", project(names + "key_proj", false, embedded));
  const Var queries = normed_streams(names + "norm_query", x);
  const Var value = project(names + "value_proj", false, embedded);
  const Index size = config_.hidden_size;
  std::vector<Var> gated;
  for (Index s = 0; s < config_.hyper.streams; ++s) {
    const Var product = mul(slice_columns(keys, s * size, size), slice_columns(queries, s * size, size));
    const Var gate = scale(row_sum(product), 1.0 / std::sqrt(static_cast<Number>(size)));
    gated.push_back(scale_rows(value, sigmoid(signed_root(gate))));
  }
  const Var all = join_groups(gated, 1);
  const Var taps = with_gaps(parameter(names + "conv1d.weight"), settings.size);
  return add(all, silu(causal_convolution(normed_streams(names + "norm_conv", all), taps)));
}

}  // namespace streambp::STREAMBP_REFERENCE
