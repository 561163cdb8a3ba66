// How hypotheses.cc and its neighbours collect hypotheses: what they ask of a subject, and where they put
// what they find.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "streambp/model/config/parameter_shapes.h"
#include "verify/diagnose/trials/hypotheses.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"

namespace streambp::verify {

/// Collects the hypotheses of a subject.
class HypothesisTable {
 public:
  /// `subject` must outlive it.
  HypothesisTable(const WrongSubject& subject, const std::vector<int64_t>& chunks);

  std::vector<Hypothesis> all();

 private:
  void add(std::string name, std::string about, std::string sentence,
           std::function<void(WrongSettings&)> make);

  // hypotheses.cc: of targets, padding, and an objective's inputs
  void labels();
  void inputs();
  void shifted_inputs();
  void documents();
  void other_options();
  void advantages();
  bool is_new_advantage(const at::Tensor& changed);

  // hypotheses_model.cc: of the model
  void attention();
  void leaks();
  void scales();
  void single_layers();
  void rotary();
  void rope_lengths();
  void weights();
  void narrow_parameters();
  void norms();
  void gradients();

  // hypotheses_weights.cc: of kinds of weights
  void backward_rules();
  void lost_paths();
  void quantised();
  void recurrences();
  void capacities();
  void experts();
  void kinds_of_weights();
  void biases(const std::map<std::string, ParameterShape>& kinds);
  void exchanges();
  void turned_round(const std::string& kind, const std::string& name, const std::vector<int64_t>& shape);
  void gates();
  void heads_entries(bool normed);

  // hypotheses_slopes.cc: of backward passes that are another op's
  void slopes();
  void slopes_of_attention();
  void slopes_of_groups();
  void slopes_of_parts();
  void slopes_of_inputs();
  void slopes_of_residuals();

  // hypotheses_chunks.cc: of what works by chunks
  void chunked_labels();
  void normalisers();
  void chunked();
  void merged_blocks();
  void turned_heads();
  void layer_orders();

  bool is_recurrent() const;
  bool has_padding() const { return batch_.size() < batch_.padded_rows * batch_.padded_columns; }
  bool has_left_padding() const { return padding_.numel() > 0 && padding_.max().item<int64_t>() > 0; }
  bool has_right_padding() const;
  bool knows_padding() const;
  bool has_documents() const;
  bool is_contiguous() const;
  /// Whether a loss balances the experts.
  bool is_balanced() const { return router_loss(kind_, options_).of(config_.mixture) != 0.0; }
  int64_t sequences() const { return static_cast<int64_t>(batch_.offsets.size()) - 1; }
  int64_t longest() const {
    return indices_.in_sequence.numel() == 0 ? 0 : indices_.in_sequence.max().item<int64_t>() + 1;
  }
  at::Tensor live_tokens() const;

  const WrongSubject& subject_;
  const Config& config_;
  const Batch& batch_;
  const ObjectiveKind& kind_;
  Options options_;
  TokenIndices indices_;
  at::Tensor padding_;  // on the left of each token's row
  at::Tensor live_;     // [N] int64: 1 where a loss hears of a token
  std::vector<int64_t> given_chunks_;
  std::vector<at::Tensor> advantages_;  // those that there is a hypothesis of
  std::vector<Hypothesis> table_;
};

}  // namespace streambp::verify
