// The parts of layer.cc of gates and of experts between two maps, and of what a layer reads of a token's
// residual streams, or of its only one, and gives to them.
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/layer.h"
#include "streambp/ops/mlp/gated_output.h"

namespace streambp {

at::Tensor DecoderLayer::mixer_input(const at::Tensor& x, const ModelOps& ops) const {
  if (weights_.attention_streams.is_there()) return read_streams(weights_.attention_streams, x);
  const StreamGates& gates = weights_.into_attention;
  return normed(gates.are_there() ? sum_streams(x, gates) : x, weights_.before_attention, ops);
}

at::Tensor DecoderLayer::with_ngrams(const at::Tensor& x, const Rows& rows, const Before& before,
                                     at::Tensor& tail) const {
  if (!weights_.ngrams.is_there()) return x;
  NgramOutput output = add_ngrams(weights_.ngrams, x, rows.ngrams, rows.offsets, before.recurrent.ngram_tail);
  tail = std::move(output.tail);
  return std::move(output.streams);
}

at::Tensor DecoderLayer::add_attention(const at::Tensor& x, const at::Tensor& attended,
                                       at::Tensor& half) const {
  const MemoryScope scope("attention");
  if (attended.defined()) {
    half = config_.reads_outputs() ? linear(attended, {weights_.o_proj}, {half}).front()
                                   : linear_add(x, attended, *weights_.o_proj, half);
  }
  if (weights_.attention_streams.is_there()) return give_to_streams(weights_.attention_streams, x, half);
  if (config_.has_streams()) return add_to_streams(x, half, weights_.out_of_attention);
  if (weights_.attention_residual.is_there())
    return gated_sum(x, rms_norm(half, weights_.after_attention), weights_.attention_residual);
  return config_.norms_outputs() ? rms_norm_add(x, half, weights_.after_attention) : half;
}

at::Tensor DecoderLayer::gated(const at::Tensor& attended, const at::Tensor& gates) const {
  const RmsNorm& norm = weights_.attended_norm;
  const at::Tensor heads = norm.weight == nullptr ? attended : rms_norm(attended, norm);
  return gates.defined() ? gated_output(heads, gates) : heads;
}

at::Tensor DecoderLayer::latent_experts(const at::Tensor& residual, const at::Tensor& x, const Rows& rows,
                                        const LayerRun& run) const {
  MixtureRun of_routed = mixture_run(rows, run, /*graph_only=*/false);
  of_routed.routed_alone = true;
  const at::Tensor read = linear(x, {weights_.into_experts}).front();
  const at::Tensor given = mixture({}, read, weights_.mixture, of_routed, /*of_router=*/x);
  const at::Tensor shared = gated_mlp(residual, x, weights_.mixture.shared_expert);
  return linear_add(shared, given, *weights_.out_of_experts);
}

at::Tensor DecoderLayer::narrow_experts(const at::Tensor& x, const Rows& rows, const LayerRun& run) const {
  const at::Tensor read =
      run.ops.rms_norm(linear(x, {weights_.into_experts}).front(), weights_.before_experts);
  const at::Tensor given =
      mixture({}, read, weights_.mixture, mixture_run(rows, run, /*graph_only=*/false), /*of_router=*/x);
  return linear(given, {weights_.out_of_experts}).front();
}

}  // namespace streambp
