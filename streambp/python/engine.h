// The engine as Python holds it: a model's shapes, to which each call lends the tensors of somebody's
// parameters and of their gradients. A class of TORCH_LIBRARY, without Python's ABI: torch calls its methods
// with the interpreter's lock released.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <torch/custom_class.h>

#include "streambp/backprop/method.h"
#include "streambp/distributed/transport/communicator.h"
#include "streambp/memory/fork_lock.h"
#include "streambp/model/model.h"
#include "streambp/python/pass_request.h"

namespace streambp::python {

using TensorDict = c10::Dict<std::string, at::Tensor>;
using TextDict = c10::Dict<std::string, std::string>;

/// The tokens of one forward pass as layers that run alone need them, until its backward pass is done.
class StreamHandle : public torch::CustomClassHolder {
 public:
  /// input_ids [B, T] with what pack() takes in addition, on the CPU.
  StreamHandle(const Model& model, at::Tensor input_ids, at::Tensor attention_mask, at::Tensor position_ids);

  int64_t size() const { return stream_.size(); }
  int64_t rows() const { return input_ids_.size(0); }
  int64_t columns() const { return input_ids_.size(1); }
  /// [N] int64 on the model's device: row * T + column of each token in the padded input.
  const at::Tensor& indices() const { return indices_; }

  const Stream& stream() const { return stream_; }
  /// The batch whose token at column t is scored on targets[t + 1] [B, T], unless that is -100.
  Batch scored_on(const at::Tensor& targets, int64_t vocab_size) const;

 private:
  at::Tensor input_ids_, attention_mask_, position_ids_;
  Stream stream_;
  at::Tensor indices_;
};

/// What a pass is asked for, read and checked.
struct PreparedPass {
  PassRequest request = {};
  Batch batch = {};
};

/// Every method throws std::runtime_error with "streambp: " before the message of an InputError. Tensors in
/// dictionaries `values` and `gradients` go by the names of parameters(), are of the engine's dtypes, of
/// their parameter's shape and contiguous; gradients are added to; what has none is frozen. Nothing is
/// copied, and nothing is kept when the call returns. Calls wait for one another.
class Engine : public torch::CustomClassHolder {
 public:
  /// `config_json`: a config.json's text, `source` its name in messages; `adapter_json`: an
  /// adapter_config.json's, or empty; `dtype`: float64, float32, bfloat16 or float16; `head_dtype`: of
  /// lm_head's parameters and its logits, `dtype` or wider; `device`: where tensors will be, cpu or cuda,
  /// with or without an index.
  Engine(const std::string& config_json, const std::string& source, const std::string& adapter_json,
         const std::string& dtype, const std::string& head_dtype, const std::string& device);

  c10::Dict<std::string, std::vector<int64_t>> parameters() const;
  std::vector<std::string> layer_parameters(int64_t layer) const;

  /// Model::give_rope, from now on; what is nothing is the config's. Frequencies [rotary_dim / 2] float64.
  void set_rope(const std::optional<at::Tensor>& frequencies, double attention_factor,
                const std::optional<at::Tensor>& local_frequencies, double local_attention_factor);

  std::vector<std::string> head_parameters() const;

  /// Loss and gradients of `objective`. `batch`: padded tensors under the names of
  /// streambp/data/objective_inputs.h; `options` of the objective; `settings` of streambp/backprop/settings.h
  /// by their names, and method, micro_batches, first_labels. `reference` [N]: what evaluate() of a reference
  /// gave. `process_group`: the name of torch.distributed's, whose ranks have a batch each: loss and
  /// gradients are those of all of them, and gradients must be zero before; empty: this process is alone.
  /// Returns the loss, "log_probabilities" and "values" [B, T] float64 where there are any (and the batch is
  /// not cut into micro-batches), and how it was run as a JSON object.
  std::tuple<double, TensorDict, std::string> backward(
      const TensorDict& values, const TensorDict& gradients, const TensorDict& batch,
      const std::string& objective, const TextDict& options, const TextDict& settings,
      const std::optional<at::Tensor>& reference, const std::optional<c10::intrusive_ptr<Engine>>& teacher,
      const TensorDict& teacher_values, const std::string& process_group);

  /// Whether `objective` asks for a reference's log-probabilities that `batch` lacks.
  bool needs_reference(const std::string& objective, const TextDict& options, const TensorDict& batch,
                       const std::string& first_labels) const;

  /// Of a batch: its rows, tokens of the longest, tokens of all, and rows of one sample (0: not the same of
  /// all samples).
  std::tuple<int64_t, int64_t, int64_t, int64_t> sizes(const TensorDict& batch, const std::string& objective,
                                                       const std::string& first_labels) const;

  /// The log-probabilities [N] float64 of the batch's targets, at the objective's temperature; with
  /// `adapters` false those of the base.
  at::Tensor evaluate(const TensorDict& values, const TensorDict& batch, const std::string& objective,
                      const TextDict& options, const std::string& first_labels, bool adapters);

  c10::intrusive_ptr<StreamHandle> stream(const at::Tensor& input_ids,
                                          const std::optional<at::Tensor>& attention_mask,
                                          const std::optional<at::Tensor>& position_ids);

  /// One layer alone: streambp/backprop/pieces.h. x, dy, and what is returned: [N, D]. With `routes` also
  /// the router's logits [N, X], else [0]; `d_router_logits`: their gradient. `keep`: activations, as the
  /// setting of that name says; what is kept is returned, nothing for "none", and handed to layer_backward.
  std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>> layer_forward(
      const c10::intrusive_ptr<StreamHandle>& stream, int64_t layer, const at::Tensor& x,
      const TensorDict& values, int64_t chunk, bool routes, const std::string& keep);
  at::Tensor layer_backward(const c10::intrusive_ptr<StreamHandle>& stream, int64_t layer,
                            const at::Tensor& x, const at::Tensor& dy, const TensorDict& values,
                            const TensorDict& gradients, int64_t chunk,
                            const std::optional<at::Tensor>& d_router_logits,
                            const std::vector<at::Tensor>& kept);

  /// Final norm, head and loss of the last layer's output `hidden` [N, D]. Returns the loss and, with
  /// `goes_back`, the gradient of hidden.
  std::tuple<double, at::Tensor> head_loss(const c10::intrusive_ptr<StreamHandle>& stream,
                                           const at::Tensor& hidden, const TensorDict& batch,
                                           const std::string& objective, const TextDict& options,
                                           const TensorDict& values, const TensorDict& gradients,
                                           int64_t head_chunk, bool goes_back);

  /// The same up to log-probabilities [B, T] float64: at column t that of targets[t + 1], 0 where that is
  /// -100; and from their gradient [B, T] to that of hidden.
  at::Tensor head_log_probabilities(const c10::intrusive_ptr<StreamHandle>& stream, const at::Tensor& hidden,
                                    const at::Tensor& targets, double temperature, const TensorDict& values,
                                    int64_t head_chunk);
  at::Tensor head_log_probabilities_backward(const c10::intrusive_ptr<StreamHandle>& stream,
                                             const at::Tensor& hidden, const at::Tensor& targets,
                                             double temperature, const at::Tensor& gradient,
                                             const TensorDict& values, const TensorDict& gradients,
                                             int64_t head_chunk);

 private:
  Batch read(const TensorDict& batch, const std::string& objective, const std::string& first_labels) const;
  PreparedPass prepare(const TensorDict& batch, const std::string& objective, const TextDict& settings,
                       const std::optional<at::Tensor>& reference) const;
  /// The pass, or one for each micro-batch.
  Outcome run_in_parts(const PreparedPass& pass, const std::string& objective, const TextDict& options,
                       Model* teacher);
  /// The same for this rank's batch, with the normalisers of all.
  Outcome run_on_ranks(Communicator& communicator, PreparedPass& pass, const std::string& objective,
                       const TextDict& options, Model* teacher);

  mutable ForkLock mutex_{ForkLock::Kind::kLong};
  Model model_;
};

/// What objectives and settings there are, as JSON.
std::string objectives_json();
std::string settings_json();

}  // namespace streambp::python
