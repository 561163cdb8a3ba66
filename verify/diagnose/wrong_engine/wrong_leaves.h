// The parameters of a model as leaves of autograd, in float64, and the gradients that reach them, summed as a
// wrong engine sums them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/model.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"
#include "verify/error_measure.h"

namespace streambp::verify {

class WrongLeaves {
 public:
  /// `model` must outlive it.
  WrongLeaves(const Model& model, const WrongSettings& settings);

  /// A parameter, or rows [first_row, first_row + its own rows) of the one it is a part of, or its expert's
  /// of a tensor of all experts. As the head's where `as_head`: a tied embedding's two uses are leaves of
  /// their own.
  at::Tensor matrix(const Parameter& parameter, int64_t first_row = 0, bool as_head = false);

  /// A bias, or the weight of a norm, as it is applied to x [..., size]: [size], or [..., size] where its
  /// gradient is summed token by token. Of a tensor of all experts its expert's.
  at::Tensor vector(const Parameter& parameter, const at::Tensor& x);

  /// Sends `cotangents` back from `outputs` to the parameters used since the last call, and returns the
  /// gradient of `input` (undefined where it needs none, or nothing reaches it).
  at::Tensor backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& cotangents,
                      const at::Tensor& input);

  /// Forgets the uses since the last call.
  void forget() { used_.clear(); }

  /// Adds d [n, D] to the embedding's rows `tokens` [n].
  void add_embedding(const at::Tensor& tokens, const at::Tensor& d);

  /// Ends a row of the padded input: what has come since the last call is added to the sums.
  void end_row();

  /// The gradients of all trainable parameters, under the model's names, float64.
  Tensors gradients() const;

 private:
  struct Use {
    std::string name;
    at::Tensor leaf;
    bool by_token;  // a leaf for each token
  };

  at::Tensor leaf_of(const std::string& name, const std::string& of);
  void add(const std::string& name, const at::Tensor& gradient);

  const Model& model_;
  WrongSettings settings_;
  std::map<std::string, at::Tensor> leaves_;
  std::vector<Use> used_;
  Tensors sums_;    // of whole rows
  Tensors row_;     // since the last end_row()
  Tensors narrow_;  // sums in bfloat16, token by token
};

}  // namespace streambp::verify
