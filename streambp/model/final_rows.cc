#include "streambp/model/final_rows.h"

#include <torch/csrc/autograd/autograd.h>

namespace streambp {
namespace {

/// [n, D] of streams [n, S D].
at::Tensor mean_of_streams(const Model& model, const at::Tensor& hidden) {
  return hidden.view({hidden.size(0), model.config().hyper.streams, -1}).mean(1);
}

}  // namespace

at::Tensor final_rows_forward(const Model& model, const at::Tensor& hidden, FinalRowsSaved& saved) {
  const Config& config = model.config();
  if (config.has_low_rank_streams()) {
    const at::NoGradGuard no_grad;
    saved.streams = hidden;
    return read_streams(model.head_mixer(), hidden);
  }
  if (config.hyper.head_reads_mean)
    return rms_norm_forward(mean_of_streams(model, hidden), model.norm(), saved.norm);
  if (!config.has_streams()) return rms_norm_forward(hidden, model.norm(), saved.norm);
  saved.streams = hidden;
  return rms_norm_forward(sum_streams_forward(hidden, model.head_gates()), model.norm(), saved.norm);
}

at::Tensor final_rows_forward(const Model& model, const at::Tensor& hidden) {
  FinalRowsSaved unused;
  return final_rows_forward(model, hidden, unused);
}

at::Tensor final_rows_backward(const Model& model, const at::Tensor& dy, const FinalRowsSaved& saved) {
  if (model.config().has_low_rank_streams()) {
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = saved.streams.detach().requires_grad_();
    return torch::autograd::grad({read_streams(model.head_mixer(), leaf)}, {leaf}, {dy}).front();
  }
  at::Tensor d = rms_norm_backward(dy, saved.norm, model.norm());
  const HyperSettings& hyper = model.config().hyper;
  if (hyper.head_reads_mean) return d.div_(static_cast<double>(hyper.streams)).repeat({1, hyper.streams});
  return saved.streams.defined() ? sum_streams_backward(d, saved.streams, model.head_gates()) : d;
}

at::Tensor final_rows(const Model& model, const at::Tensor& hidden, const ModelOps& ops) {
  if (model.config().has_low_rank_streams()) return read_streams(model.head_mixer(), hidden);
  if (model.config().hyper.head_reads_mean) return ops.rms_norm(mean_of_streams(model, hidden), model.norm());
  return ops.rms_norm(model.config().has_streams() ? sum_streams(hidden, model.head_gates()) : hidden,
                      model.norm());
}

}  // namespace streambp
