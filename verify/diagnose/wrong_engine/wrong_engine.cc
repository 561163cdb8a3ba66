#include "verify/diagnose/wrong_engine/wrong_engine.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/head/head.h"
#include "streambp/error.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/wrong_engine/wrong_decoder.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// Of the scores of one layer, and of the logits of one piece of the head: what a graph holds of them.
constexpr double kMemory = 4.0 * (int64_t{1} << 30);
constexpr double kBytesOfScore = 8.0 * 6;
constexpr double kBytesOfLogit = 8.0 * 5;

double row_bytes(const Config& config, int64_t columns) {
  const auto heads = static_cast<double>(config.num_attention_heads);
  const auto length = static_cast<double>(columns);
  const auto width = static_cast<double>(config.intermediate_size + config.hidden_size);
  return length * (length * heads + width) * kBytesOfScore;
}

/// One run of the engine.
class Run {
 public:
  Run(const WrongSubject& subject, const WrongSettings& settings)
      : subject_(subject),
        settings_(settings),
        wrong_(wrong_batch(subject.batch, subject.input_ids, subject.labels, settings)),
        decoder_(subject.model, settings, rope_length(wrong_.batch)),
        scored_(head_targets(wrong_.batch, at::kCPU)) {
    for (const auto& [name, value] : settings.options) options_[name] = value;
    for (const auto& [name, value] : subject.options) options_.try_emplace(name, value);
    const auto objective = make_objective(subject.objective, before_the_forward_pass(), options_);
    request_ = objective->request();
    if (scored_.size() > 0) balance_coefficient_ = objective->router_loss.of(subject.model.config().mixture);
    counted_ = objective->router_loss.counted;
    if (request_.divergence != Divergence::kNone || request_.pooling != Pooling::kNone) {
      throw InputError(
          "--diagnose: {} looks at a teacher or at embeddings, expected an objective of "
          "log-probabilities, entropies and values",
          subject.objective);
    }
    if (objective->targets().defined())
      throw InputError("--diagnose: {} scores tokens of its own choice, expected those of the batch",
                       subject.objective);
    for (const auto& parameter : subject.model.parameters()) {
      const std::string& name = parameter->name;
      for (const char* part :
           {".lora_embedding_", ".token_adapter.", ".experts.lora_", ".experts.base_layer."}) {
        if (name.find(part) == std::string::npos) continue;
        throw InputError(
            "--diagnose: '{}' adapts an embedding, tokens or all experts at once, expected adapters of "
            "linear "
            "maps and saved modules",
            name);
      }
    }
    make_groups();
  }

  WrongOutcome run() {
    for (Group& group : groups_) forward(group);
    const TokenValues values = head_values();
    const TokenValues gradients = objective_gradients(values);
    for (Group& group : groups_) backward(group, gradients);
    return {loss_, decoder_.leaves().gradients()};
  }

 private:
  /// Rows that run at a time.
  struct Group {
    WrongRows rows;
    std::vector<at::Tensor> inputs;  // of each layer, [b, T, D]
    at::Tensor scored;               // [m] int64: which of the scored tokens are among these rows
    at::Tensor scored_grid;          // [m] int64: their indices in [b T]
    at::Tensor hidden;               // [m, D]: the last layer's output there
  };

  void make_groups() {
    const Batch& batch = wrong_.batch;
    const double bytes = row_bytes(subject_.model.config(), batch.padded_columns);
    int64_t rows = std::max<int64_t>(static_cast<int64_t>(kMemory / bytes), 1);
    if (settings_.sums == NarrowSums::kRows) rows = 1;
    for (int64_t first = 0; first < batch.padded_rows; first += rows) {
      Group group;
      group.rows = wrong_rows(wrong_, settings_, first, std::min(first + rows, batch.padded_rows));
      if (group.rows.stream.numel() == 0) continue;
      if (counted_.defined())
        group.rows.counted = counted_.index_select(0, group.rows.stream).to(at::kDouble);
      at::Tensor index = at::full({batch.size()}, -1, at::kLong);  // of a token of the stream, in [b T]
      index.index_copy_(0, group.rows.stream, group.rows.grid);
      index = index.index_select(0, scored_.indices);
      group.scored = index.ge(0).nonzero().squeeze(1);
      group.scored_grid = index.index_select(0, group.scored);
      groups_.push_back(std::move(group));
    }
  }

  /// The batch with zeros for what is known after the forward pass only.
  Batch before_the_forward_pass() const {
    Batch batch = wrong_.batch;
    if (settings_.reference_is_policy)
      put_policy(batch, at::zeros({batch.size()}, at::kDouble), inputs::kReferenceLogProbabilities);
    if (settings_.old_is_policy)
      put_policy(batch, at::zeros({batch.size()}, at::kDouble), inputs::kOldLogProbabilities);
    return batch;
  }

  static void put_policy(Batch& batch, const at::Tensor& log_probabilities, const char* name) {
    batch.token_inputs[name] = log_probabilities;
    if (name == std::string(inputs::kReferenceLogProbabilities))
      batch.sequence_inputs.erase(inputs::kReferenceSums);
  }

  void forward(Group& group) {
    const at::NoGradGuard no_grad;
    at::Tensor x = decoder_.embed(group.rows.tokens);
    for (int64_t i = 0; i < layers(); ++i) {
      group.inputs.push_back(x);
      const WrongDecoder::LayerOutput output = decoder_.layer(i, x, group.rows);
      x = output.hidden;
      if (!output.choices.defined()) continue;
      choices_ = choices_.defined() ? choices_ + output.choices : output.choices;
      probabilities_ =
          probabilities_.defined() ? probabilities_ + output.probabilities : output.probabilities;
      routed_ += output.routed;
    }
    group.hidden = x.reshape({-1, x.size(-1)}).index_select(0, group.scored_grid);
  }

  /// Runs body(begin, end) for pieces of a group's scored tokens.
  template <typename Body>
  void for_each_piece(const Group& group, Body body) const {
    const double bytes = kBytesOfLogit * static_cast<double>(subject_.model.config().vocab_size);
    const int64_t rows = std::max<int64_t>(static_cast<int64_t>(kMemory / 4 / bytes), 1);
    const int64_t size = group.scored.size(0);
    for (int64_t begin = 0; begin < size; begin += rows) body(begin, std::min(begin + rows, size));
  }

  /// The values of scored tokens with hidden states [m, D], differentiable.
  TokenValues values_of(const at::Tensor& hidden, const at::Tensor& scored) {
    const at::Tensor normed = decoder_.final_norm(hidden);
    TokenValues values;
    if (request_.log_probabilities) {
      const at::Tensor log_p = at::log_softmax(decoder_.logits(normed) / request_.temperature, -1);
      const at::Tensor targets = scored_.targets.index_select(0, scored);
      values.log_probabilities = log_p.gather(1, targets.unsqueeze(1)).squeeze(1);
      if (scored_.has_target.defined())
        values.log_probabilities = values.log_probabilities * scored_.has_target.index_select(0, scored);
      if (request_.entropies) values.entropies = -(log_p.exp() * log_p).sum(-1);
      if (request_.log_sum_squares) values.log_sum_squares = (log_p.detach() * 2.0).logsumexp(-1);
      if (request_.mean_log_probabilities) values.mean_log_probabilities = log_p.mean(-1);
    }
    if (request_.values) values.values = decoder_.values(normed);
    return values;
  }

  TokenValues head_values() {
    const at::NoGradGuard no_grad;
    Columns all;
    for (const Group& group : groups_) {
      for_each_piece(group, [&](int64_t begin, int64_t end) {
        const at::Tensor scored = group.scored.slice(0, begin, end);
        const Columns piece = to_columns(values_of(group.hidden.slice(0, begin, end), scored));
        for (size_t i = 0; i < all.size(); ++i) {
          if (!piece[i].defined()) continue;
          if (!all[i].defined()) all[i] = at::zeros({scored_.size()}, at::kDouble);
          all[i].index_copy_(0, scored, piece[i]);
        }
      });
    }
    return to_values(all);
  }

  /// d loss / d values, [M] each.
  TokenValues objective_gradients(const TokenValues& values) {
    Batch batch = wrong_.batch;
    if (settings_.reference_is_policy || settings_.old_is_policy) {
      at::Tensor policy = at::zeros({batch.size()}, at::kDouble);
      policy.index_copy_(0, scored_.indices, values.log_probabilities);
      if (settings_.reference_is_policy) put_policy(batch, policy, inputs::kReferenceLogProbabilities);
      if (settings_.old_is_policy) put_policy(batch, policy, inputs::kOldLogProbabilities);
    }
    const auto objective = make_objective(subject_.objective, batch, options_);
    Columns leaves = to_columns(values);
    if (scored_.size() == 0) return {};
    std::vector<at::Tensor> inputs;
    for (at::Tensor& leaf : leaves) {
      if (leaf.defined()) inputs.push_back(leaf = leaf.detach().requires_grad_());
    }
    const at::Tensor loss = objective->loss(to_values(leaves), 0, scored_.size());
    loss_ = loss.item<double>();
    if (balance_coefficient_ != 0.0 && routed_ > 0.0) {
      const auto experts = static_cast<double>(choices_.size(0));
      balance_ = choices_ * (balance_coefficient_ * experts / (routed_ * routed_));
      loss_ += (probabilities_ * balance_).sum().item<double>();
    }
    Columns gradients;
    if (!loss.requires_grad()) return {};
    const auto found = torch::autograd::grad({loss}, inputs, {}, false, false, /*allow_unused=*/true);
    size_t next = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!leaves[i].defined()) continue;
      gradients[i] = found[next++];
      if (gradients[i].defined() && settings_.normaliser.size > 0)
        gradients[i] = gradients[i] * normaliser_weights(batch, scored_.indices, settings_.normaliser);
    }
    return to_values(gradients);
  }

  void backward(Group& group, const TokenValues& d_values) {
    WrongLeaves& leaves = decoder_.leaves();
    leaves.forget();
    const at::Tensor& last = group.inputs.back();
    at::Tensor d = at::zeros({group.rows.rows * group.rows.columns, last.size(-1)}, at::kDouble);
    for_each_piece(group, [&](int64_t begin, int64_t end) {
      const at::Tensor scored = group.scored.slice(0, begin, end);
      const at::Tensor hidden = group.hidden.slice(0, begin, end).detach().requires_grad_();
      const Columns values = to_columns(values_of(hidden, scored));
      const Columns all = to_columns(d_values);
      std::vector<at::Tensor> outputs, cotangents;
      for (size_t i = 0; i < all.size(); ++i) {
        if (!values[i].defined() || !all[i].defined()) continue;
        outputs.push_back(values[i]);
        cotangents.push_back(all[i].index_select(0, scored));
      }
      const at::Tensor d_hidden = leaves.backward(outputs, cotangents, hidden);
      if (d_hidden.defined()) d.index_copy_(0, group.scored_grid.slice(0, begin, end), d_hidden);
    });
    const int64_t lowest = settings_.head_alone ? std::max<int64_t>(layers() - settings_.top_layers, 0) : 0;
    d = d.view(last.sizes());
    for (int64_t i = layers() - 1; i >= lowest; --i) {
      const at::Tensor x = group.inputs[static_cast<size_t>(i)].detach().requires_grad_();
      const WrongDecoder::LayerOutput output = decoder_.layer(i, x, group.rows);
      d = leaves.backward({output.hidden, balance_.defined() ? output.probabilities : at::Tensor()},
                          {d, balance_}, x);
    }
    if (!settings_.head_alone && subject_.model.parameter("model.embed_tokens.weight").trainable()) {
      const at::Tensor of_tokens = d.reshape({-1, d.size(-1)}).index_select(0, group.rows.grid);
      const at::Tensor tokens = wrong_.batch.tokens.index_select(0, group.rows.stream);
      leaves.add_embedding(tokens, of_tokens * subject_.model.config().embedding_scale);
    }
    leaves.end_row();
  }

  int64_t layers() const { return static_cast<int64_t>(subject_.model.layers().size()); }

  const WrongSubject& subject_;
  const WrongSettings& settings_;
  WrongBatch wrong_;
  WrongDecoder decoder_;
  HeadTargets scored_;
  std::map<std::string, std::string> options_;
  HeadRequest request_;
  std::vector<Group> groups_;
  double loss_ = 0.0;
  at::Tensor choices_, probabilities_;  // [X]: of all tokens and sparse layers
  double routed_ = 0.0;
  double balance_coefficient_ = 0.0;  // 0: no loss balances the experts
  at::Tensor counted_;                // [N] bool: the tokens that it counts; undefined: all
  at::Tensor balance_;                // [X]: d loss / d probability of each expert
};

}  // namespace

WrongOutcome run_wrong(const WrongSubject& subject, const WrongSettings& settings) {
  settings.head_alone ? add_forward_run(subject.batch.size()) : add_tokens_run(subject.batch.size());
  check_wrong_memory(subject.model.config(), subject.batch);
  const at::AutoGradMode with_grad(true);
  return Run(subject, settings).run();
}

bool wrong_engine_knows(const WrongSubject& subject) {
  try {
    const WrongSettings plain;
    Run(subject, plain);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

void check_wrong_memory(const Config& config, const Batch& batch) {
  const double bytes = row_bytes(config, batch.padded_columns);
  if (bytes <= kMemory) return;
  throw InputError(
      "--diagnose: rows of {} columns, whose scores would take {:.1f} GiB a layer, expected at most {:.0f} "
      "GiB: give a "
      "shorter batch",
      batch.padded_columns, bytes / (int64_t{1} << 30), kMemory / (int64_t{1} << 30));
}

}  // namespace streambp::verify
