#include "streambp/model/final_rows.h"

namespace streambp {

at::Tensor final_rows_forward(const Model& model, const at::Tensor& hidden, FinalRowsSaved& saved) {
  if (!model.config().has_streams()) return rms_norm_forward(hidden, model.norm(), saved.norm);
  saved.streams = hidden;
  return rms_norm_forward(sum_streams_forward(hidden, model.head_gates()), model.norm(), saved.norm);
}

at::Tensor final_rows_forward(const Model& model, const at::Tensor& hidden) {
  FinalRowsSaved unused;
  return final_rows_forward(model, hidden, unused);
}

at::Tensor final_rows_backward(const Model& model, const at::Tensor& dy, const FinalRowsSaved& saved) {
  at::Tensor d = rms_norm_backward(dy, saved.norm, model.norm());
  return saved.streams.defined() ? sum_streams_backward(d, saved.streams, model.head_gates()) : d;
}

at::Tensor final_rows(const Model& model, const at::Tensor& hidden, const ModelOps& ops) {
  return ops.rms_norm(model.config().has_streams() ? sum_streams(hidden, model.head_gates()) : hidden,
                      model.norm());
}

}  // namespace streambp
