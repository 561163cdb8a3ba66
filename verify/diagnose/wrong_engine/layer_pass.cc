#include "verify/diagnose/wrong_engine/layer_pass.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/head/head.h"
#include "streambp/error.h"
#include "streambp/model/final_rows.h"
#include "verify/diagnose/wrong_engine/attention_parts.h"
#include "verify/diagnose/wrong_engine/late_objective.h"
#include "verify/diagnose/wrong_engine/layers_part.h"
#include "verify/diagnose/wrong_engine/narrow_values.h"
#include "verify/diagnose/wrong_engine/norm_ops.h"
#include "verify/diagnose/wrong_engine/plain_head.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"
#include "verify/diagnose/wrong_engine/wrong_mixture.h"
#include "verify/diagnose/wrong_engine/wrong_recurrence.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// Scores of all tokens by all tokens are written out.
constexpr int64_t kMostTokens = 4096;

class LayerPass {
 public:
  LayerPass(const WrongSubject& subject, const WrongSettings& settings)
      : model_(subject.model),
        settings_(settings),
        wrong_(wrong_batch(subject.batch, subject.input_ids, subject.labels, settings)),
        teacher_(subject.teacher),
        ops_(subject.model, settings, sinks_) {
    Batch& batch = wrong_.batch;
    if (batch.size() > kMostTokens)
      throw InputError("--diagnose: a batch of {} tokens, expected at most {}: give a shorter one",
                       batch.size(), kMostTokens);
    indices_ = token_indices(batch, false);
    by_rows_ = {0};
    for (int64_t i = 1; i < batch.size(); ++i) {
      if (indices_.row[i].item<int64_t>() != indices_.row[i - 1].item<int64_t>()) by_rows_.push_back(i);
    }
    by_rows_.push_back(batch.size());
    if (settings.positions_by_column) batch.positions = indices_.column;
    if (settings.positions_negated) batch.positions = -batch.positions;
    if (settings.balanced_ranks > 0) batch.positions = balanced_positions(batch, settings.balanced_ranks);
    // What the backward pass alone does not know of is there in the forward pass.
    const bool one_row = settings.ignores_documents && settings.slope_alone == SlopeAlone::kNone;
    if (one_row) batch.offsets = by_rows_;
    indices_ = token_indices(batch, one_row);
    objective_ = std::make_unique<LateObjective>(subject, settings, batch);
    if (objective_->targets().defined()) batch.targets = objective_->targets();
    if (batch.sequence_inputs.empty()) return;
    if (settings.ignores_documents || settings.padding_visible || settings.padding_scored)
      throw InputError("--diagnose: inputs of sequences, of which there are others with this mistake");
  }

  HeadInputs inputs(double temperature) {
    const at::NoGradGuard no_grad;
    at::Tensor unused;
    const Stream stream = model_.prepare(wrong_.batch);
    const at::Tensor hidden = through_layers(model_, stream, model_.embed(wrong_.batch.tokens), unused);
    HeadInputs found;
    found.normed = final_rows(model_, hidden);
    found.logits = logits_of(model_, settings_, found.normed) / temperature;
    return found;
  }

  Tensors run() {
    const at::AutoGradMode with_grad(true);
    model_.zero_gradients();
    Stream stream = model_.prepare(wrong_.batch);
    narrow_rotation(model_.config(), settings_.rotation, stream);
    const HeadTargets scored = head_targets(wrong_.batch, at::kCPU);
    const HeadRequest request = objective_->request();
    const double coefficient = objective_->router_loss.of(model_.config().mixture);
    if (coefficient != 0.0) {
      balance_ = std::make_shared<RouterBalance>(coefficient, model_.config().mixture.num_experts, at::kCPU,
                                                 objective_->router_loss.counted);
    }
    at::Tensor embedded_leaf;
    at::Tensor leaf = model_.embed(wrong_.batch.tokens).detach().requires_grad_();
    at::Tensor hidden = through_layers(model_, stream, leaf, embedded_leaf);
    if (settings_.head_alone && settings_.top_layers == 0)
      top_leaf_ = hidden = hidden.detach().requires_grad_();
    if (settings_.head_alone) leaf = top_leaf_, embedded_leaf = at::Tensor();
    if (balance_ != nullptr) balance_->close();
    HeadPass head{model_, scored, request, {}};
    if (request.divergence != Divergence::kNone) head.teacher = {teacher_, teacher_hidden()};
    HeadOutcome outcome;
    at::Tensor loss = asks_for_plain_head(settings_)
                          ? plain_head(model_, settings_, *objective_, hidden, scored)
                          : full_head(head, *objective_, hidden, ops_, outcome);
    if (settings_.z_loss != 0.0 || settings_.target_logits != 0.0)
      loss = loss + terms_of_logits(model_, settings_, hidden, scored);
    loss = loss + router_z_ * settings_.router_z_loss;
    std::vector<at::Tensor> leaves{leaf};
    if (embedded_leaf.defined()) leaves.push_back(embedded_leaf);
    for (const auto& [parameter, sink] : sinks_) leaves.push_back(sink);
    if (loss.requires_grad()) {
      const auto found = torch::autograd::grad({loss}, leaves, {}, false, false, /*allow_unused=*/true);
      at::Tensor d = found[0].defined() ? found[0] : at::zeros_like(leaf);
      size_t next = 1;
      if (embedded_leaf.defined() && found[next++].defined()) d = d + found[next - 1];
      for (const auto& [parameter, sink] : sinks_) {
        if (found[next].defined() && parameter->gradient.defined()) parameter->gradient.add_(found[next]);
        ++next;
      }
      if (model_.lowest_trainable_layer() < 0 && !settings_.head_alone)
        model_.accumulate_embedding(wrong_.batch.tokens, d);
    }
    return gradients_of(model_);
  }

 private:
  at::Tensor through_layers(Model& model, const Stream& stream, at::Tensor hidden,
                            at::Tensor& embedded_leaf) {
    Rows rows = stream.rows(0, stream.size());
    if (rows.embedded.defined() && &model == &model_)
      embedded_leaf = rows.embedded = rows.embedded.detach().requires_grad_();
    std::map<int64_t, KeysValues> shared;
    const std::vector<int64_t> layers = layers_in_order(settings_, model.layers().size());
    auto left = static_cast<int64_t>(layers.size());
    const bool with_grad = at::GradMode::is_enabled();
    for (const int64_t i : layers) {
      const at::AutoGradMode through(with_grad && (!settings_.head_alone || left <= settings_.top_layers));
      if (settings_.head_alone && left-- == settings_.top_layers)
        top_leaf_ = hidden = hidden.detach().requires_grad_();
      Before before;
      if (model.config().shares_keys_values(i)) {
        const KeysValues& of_producer = shared.at(model.config().producer_of(i));
        before.shared.keys = of_producer.keys;
        before.shared.values = of_producer.values;
      }
      KeysValues own;
      hidden = layer(model, i, hidden, rows, before, own);
      if (model.config().has_consumers(i)) shared.emplace(i, std::move(own));
    }
    return hidden;
  }

  at::Tensor teacher_hidden() {
    if (teacher_ == nullptr) throw InputError("--diagnose: no teacher");
    const at::NoGradGuard no_grad;
    const WrongSettings plain;
    at::Tensor unused;
    const WrongSettings wrong = std::exchange(settings_, plain);
    const std::shared_ptr<RouterBalance> balance = std::exchange(balance_, nullptr);
    const Stream stream = teacher_->prepare(wrong_.batch);
    at::Tensor hidden = through_layers(*teacher_, stream, teacher_->embed(wrong_.batch.tokens), unused);
    settings_ = wrong;
    balance_ = balance;
    return hidden;
  }

  bool attention_is_wrong(int64_t index) const {
    if (settings_.only_layer >= 0 && settings_.only_layer != index)
      return wrong_.hidden_key.any().item<bool>();
    return changes_attention(settings_) || wrong_.hidden_key.any().item<bool>();
  }

  bool hides_padding(int64_t index) const {
    return !settings_.padding_visible || settings_.only_layer != index;
  }

  bool leaks(const Model& model, int64_t index) const {
    const bool window = model.config().windows[static_cast<size_t>(index)] > 0;
    const bool recurrent = model.config().is_recurrent(index);
    switch (settings_.leak) {
      case Leak::kRecurrent:
        return recurrent;
      case Leak::kWindows:
        return !recurrent && window;
      case Leak::kFull:
        return !recurrent && !window;
      default:
        return false;
    }
  }

  at::Tensor layer(Model& model, int64_t index, const at::Tensor& x, Rows rows, const Before& before,
                   KeysValues& own) {
    LayerRun run{&model == &model_ ? static_cast<const ModelOps&>(ops_) : own_ops()};
    run.balance = balance_.get();
    const bool wrong = settings_.experts != WrongExperts::kNone || settings_.router_z_loss != 0.0;
    if (wrong && &model == &model_ && model.config().is_sparse(index))
      return with_wrong_experts(index, x, std::move(rows), before, run, own);
    return by(model.layers()[static_cast<size_t>(index)], model, index, x, std::move(rows), before, run, own);
  }

  /// By a layer that stands for the one of this index.
  at::Tensor by(const DecoderLayer& layer, Model& model, int64_t index, const at::Tensor& x, Rows rows,
                const Before& before, const LayerRun& run, KeysValues& own) {
    if (leaks(model, index)) rows.offsets = by_rows_;
    if (settings_.picks != nullptr && &model == &model_) order_picks(layer, index, x, rows, before);
    if (layer.is_recurrent() && layer.has_mixer()) {
      if (settings_.recurrence != WrongRecurrence{} && &model == &model_)
        return wrong_recurrent_layer(layer, x, rows, run, settings_.recurrence, sinks_);
      if (settings_.leak == Leak::kState)
        return recurrent_layer_by_halves(layer, x, rows, run, by_rows_, rows.offsets);
      if (settings_.leak == Leak::kConvolution)
        return recurrent_layer_by_halves(layer, x, rows, run, rows.offsets, by_rows_);
      if (settings_.state_restart.size > 0 || settings_.convolution_restart.size > 0)
        return recurrent_layer_by_halves(layer, x, rows, run,
                                         restarted(rows.offsets, indices_, settings_.state_restart),
                                         restarted(rows.offsets, indices_, settings_.convolution_restart));
    }
    if (layer.is_recurrent() || !attention_is_wrong(index)) {
      if (layer.is_recurrent() && wrong_.hidden_key.any().item<bool>() && !settings_.padding_in_states)
        throw InputError("--diagnose: padding that a recurrent layer's state would know");
      LayerOutput output = layer.forward(x, rows, before, run);
      own = output.own.attention;
      return output.hidden;
    }
    if (model.config().is_latent()) throw InputError("--diagnose: mistakes in latent attention");
    if (model.config().is_compressed())
      throw InputError("--diagnose: mistakes in attention to blocks of rows");
    Activations known;
    AttentionHeads heads = layer.attention_heads(x, rows, run, known, before.shared);
    known.attention.output = attention(index, layer.attention_settings(), heads);
    own = heads.own;
    return layer.after_attention(x, known, rows, run).hidden;
  }

  /// A layer whose experts give nothing, and then what wrong ones do.
  at::Tensor with_wrong_experts(int64_t index, const at::Tensor& x, Rows rows, const Before& before,
                                const LayerRun& run, KeysValues& own) {
    const Config& config = model_.config();
    const DecoderLayer& right = model_.layers()[static_cast<size_t>(index)];
    if (config.norms_outputs() || config.parallel || config.has_streams() || config.mixture.next_to_mlp ||
        right.weights().into_experts != nullptr || run.balance != nullptr)
      throw InputError("--diagnose: experts between other norms or maps, or that a loss balances");
    DecoderLayer::Weights without = right.weights();
    without.mixture.scale = 0.0;
    without.mixture.shared_expert = {};
    without.mixture.shared_expert_gate = nullptr;
    const DecoderLayer& half = halves_.emplace_back(config, index, without);
    const at::Tensor hidden = by(half, model_, index, x, std::move(rows), before, run, own);
    const at::Tensor normed = run.ops.rms_norm(hidden, right.weights().before_mlp);
    const at::Tensor z = linear(normed, {right.weights().mixture.router}).front().logsumexp(-1);
    router_z_ = router_z_ + z.square().mean();
    return hidden + wrong_mixture(normed, right.weights().mixture, settings_);
  }

  /// Has the layer's indexer pick, says what it did, and puts other picks in their place: the layer's run
  /// finds them.
  void order_picks(const DecoderLayer& layer, int64_t index, const at::Tensor& x, const Rows& rows,
                   const Before& before) {
    if (!model_.config().has_indexer(index) || rows.picks == nullptr || !rows.picks->are_needed()) return;
    {
      const at::NoGradGuard no_grad;
      layer.forward(x.detach(), rows, before, LayerRun{});
    }
    at::Tensor picks = rows.picks->find(index, 0, rows.size()).clone();
    settings_.picks->picked[index] = picks.clone();
    settings_.picks->tied_rows = rows.picks->tied_rows();
    const auto found = settings_.picks->orders.find(index);
    if (found == settings_.picks->orders.end()) return;
    rows.picks->keep(index, 0, picks.index_copy_(0, found->second.rows, found->second.picks));
  }

  at::Tensor attention(int64_t index, const AttentionSettings& settings, const AttentionHeads& heads) {
    const WrongSettings asked = settings_;
    if (asked.only_layer >= 0 && asked.only_layer != index) settings_ = WrongSettings{};
    at::Tensor output = settings_.slope_alone == SlopeAlone::kNone
                            ? attention_with(settings, heads, hides_padding(index))
                            : sloped_attention(settings, heads);
    settings_ = asked;
    return settings_.heads_not_transposed ? heads_not_transposed(output, by_rows_) : output;
  }

  /// Right, with the gradients of queries, of keys and values or of all that it has with the mistakes asked
  /// for.
  at::Tensor sloped_attention(const AttentionSettings& settings, const AttentionHeads& heads) {
    const SlopeAlone of = settings_.slope_alone;
    const auto with = [&](bool queries, bool keys) {
      AttentionHeads some = heads;
      if (!queries) some.queries = some.queries.detach();
      if (!keys) some.own.keys = some.own.keys.detach(), some.own.values = some.own.values.detach();
      return attention_with(settings, some, true);
    };
    const TokenIndices own = indices_;
    indices_ = token_indices(wrong_.batch, settings_.ignores_documents);
    const at::Tensor wrong = with(of != SlopeAlone::kKeysAndValues, of != SlopeAlone::kQueries);
    indices_ = own;
    settings_ = WrongSettings{};
    const at::Tensor right = with(of == SlopeAlone::kKeysAndValues, of == SlopeAlone::kQueries);
    return right + (wrong - wrong.detach());
  }

  at::Tensor attention_with(const AttentionSettings& settings, const AttentionHeads& heads,
                            bool hides_padding) {
    const at::Tensor q = heads.queries.transpose(0, 1);
    const int64_t group = heads.queries.size(1) / heads.own.keys.size(1);
    const auto for_queries = [&](const at::Tensor& x, GroupSum sum) {
      const at::Tensor by_head = x.transpose(0, 1);
      return settings_.key_value_heads_in_turn ? by_head.repeat({group, 1, 1})
                                               : repeated_for_queries(by_head, group, sum);
    };
    const at::Tensor k = for_queries(heads.own.keys, settings_.key_sum),
                     v = for_queries(heads.own.values, settings_.value_sum);
    const auto of_query = [](const at::Tensor& x) { return x.unsqueeze(1); };
    const auto of_key = [](const at::Tensor& x) { return x.unsqueeze(0); };
    at::Tensor seen = keys_seen(settings_, indices_, wrong_.batch, settings.window);
    if (hides_padding) seen = seen & of_key(wrong_.hidden_key.logical_not());
    // What sees nothing sees itself: a softmax over nothing is NaN.
    const at::Tensor blind = seen.any(1, true).logical_not();
    seen = seen | (at::eye(seen.size(0), at::TensorOptions(at::kBool)) & blind);
    at::Tensor same;
    if (settings_.detached.size > 0) {
      const at::Tensor chunk = chunk_starts(indices_, settings_.detached);
      same = of_query(chunk) == of_key(chunk);
    }
    at::Tensor scores = at::matmul(q, k.transpose(1, 2));
    if (same.defined()) scores = at::where(same, scores, at::matmul(q, k.detach().transpose(1, 2)));
    scores = scores * (settings.scoring.scale * settings_.score_factor);
    const double cap = settings_.no_attention_softcap ? 0.0 : settings.scoring.softcap;
    if (cap > 0.0) scores = capped(scores, cap, settings_.attention_softcap_straight);
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    if (settings.sinks != nullptr && !settings_.no_sinks) {
      at::Tensor& sink = sinks_[settings.sinks];
      if (!sink.defined()) sink = settings.sinks->value.detach().clone().requires_grad_();
      scores = at::cat({scores, sink.view({-1, 1, 1}).expand({-1, scores.size(1), 1})}, -1);
    }
    if (settings_.zero_sink) scores = at::cat({scores, at::zeros_like(scores.narrow(-1, 0, 1))}, -1);
    at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, seen.size(0));
    if (settings_.block_merge != BlockMerge::kRight)
      weights = merged_blocks(scores, seen, indices_.column, settings_);
    if (settings_.sinks_share_constant) weights = with_constant_share(scores);
    if (settings_.softmax_without_sum) {
      const at::Tensor p = weights.detach();
      const at::Tensor along = p * scores.narrow(-1, 0, seen.size(0)).masked_fill(seen.logical_not(), 0.0);
      weights = p + (along - along.detach());
    }
    if (settings_.narrow == NarrowValues::kAttention) weights = narrowed(weights);
    if (settings_.blind != BlindQueries::kThemselves) {
      const at::Tensor row = of_query(indices_.sequence) == of_key(indices_.sequence);
      weights =
          at::where(blind, of_blind_queries(settings_.blind, row, q, k, settings.scoring.scale), weights);
    }
    const at::Tensor attended = same.defined()
                                    ? at::matmul(weights * same, v) + at::matmul(weights * ~same, v.detach())
                                    : at::matmul(weights, v);
    return attended.transpose(0, 1);
  }

  Model& model_;
  WrongSettings settings_;
  WrongBatch wrong_;
  Model* teacher_;
  TokenIndices indices_;
  std::vector<int64_t> by_rows_;  // where the padded input's rows begin in the stream
  std::unique_ptr<LateObjective> objective_;
  std::shared_ptr<RouterBalance> balance_;
  std::map<Parameter*, at::Tensor> sinks_;
  at::Tensor top_leaf_;  // what a backward pass that ends early ends with
  at::Tensor router_z_ = at::zeros({}, at::kDouble);
  NormOps ops_;
  std::deque<DecoderLayer> halves_;  // which graphs read
};

}  // namespace

Tensors run_layer_pass(const WrongSubject& subject, const WrongSettings& settings) {
  if (!(without_layers_part(settings) == WrongSettings{}))
    throw InputError(
        "--diagnose: a mistake that the wrong engine alone makes, of a model that it does not know");
  settings.head_alone ? add_forward_run(subject.batch.size()) : add_tokens_run(subject.batch.size());
  return LayerPass(subject, settings).run();
}

std::optional<Tensors> with_terms_of_logits(const WrongSubject& subject, const WrongSettings& with) {
  if (subject.objective != "sft" || !subject.model.has_head()) return std::nullopt;
  if (with.router_z_loss != 0.0 && subject.model.config().mixture.num_experts == 0) return std::nullopt;
  try {
    return run_layer_pass(subject, with);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

HeadInputs head_inputs(const WrongSubject& subject, double temperature) {
  add_forward_run(subject.batch.size());
  return LayerPass(subject, WrongSettings{}).inputs(temperature);
}

}  // namespace streambp::verify
