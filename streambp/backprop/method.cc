#include "streambp/backprop/method.h"

#include <algorithm>
#include <array>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/embeddings.h"
#include "streambp/backprop/passes.h"
#include "streambp/backprop/wide_gradients.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
void check_vocabularies(const HeadRequest& request, int64_t policy, int64_t teacher) {
  const int64_t larger = std::max(policy, teacher), smaller = std::min(policy, teacher);
  const bool padded = (larger - smaller) * 100 <= larger;
  if (request.divergence == Divergence::kNone || request.any_vocabulary || padded) return;
  throw InputError(
      "the teacher's vocabulary has {} tokens, the model's {}: more apart than padding (1 %), expected the "
      "option vocabulary=shared where the first {} tokens are the same",
      teacher, policy, smaller);
}

int64_t auto_chunk(int64_t tokens, c10::Device device, Method method) {
  return method_kind(method).auto_chunk(tokens, is_for_cuda(device));
}

int64_t chunk_of(const Settings& settings, int64_t tokens, c10::Device device) {
  if (!is_chunked(settings.method)) return 0;
  return std::min(settings.chunk > 0 ? settings.chunk : auto_chunk(tokens, device, settings.method), tokens);
}

bool keeps_input(int64_t layer, int64_t first, int64_t layers, int64_t every) {
  if (layer < first) return false;
  const int64_t above = layer - first;
  return above % every == 0 || above / every == (layers - 1 - first) / every;
}

namespace {

/// Whether the last layer has an indexer, which picks among rows that have run: chunks from first to last.
bool ends_with_indexer(const Config& config) {
  const int64_t last = config.num_hidden_layers - 1;
  return last >= 0 && config.has_indexer(last);
}

}  // namespace

bool joins_head(const Model& model, const Objective& objective, const Settings& settings) {
  return !ends_with_indexer(model.config()) && method_kind(settings.method).head_by_chunks &&
         settings.order == Order::kReverse && (settings.consumer == nullptr || !settings.consumer->frees()) &&
         settings.streams_head() && objective.separable() &&
         objective.router_loss.of(model.config().mixture) == 0.0 &&
         model.lowest_trainable_layer() < static_cast<int64_t>(model.layers().size());
}

int64_t auto_head_chunk(const Config& config, int64_t tokens, int64_t chunk, at::ScalarType dtype,
                        const HeadRequest& request, bool by_chunks) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t rows = std::min(chunk, tokens);
  const int64_t mlp_bytes = element * 4 * rows * config.intermediate_size;
  // Keys, values and their gradients of one layer, as far back as it looks, and the four [chunk, F] tensors
  // of an MLP's backward pass.
  int64_t seen = 0;
  for (const int64_t window : config.windows)
    seen = std::max(seen, window > 0 ? std::min(tokens, window + chunk) : tokens);
  int64_t width = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    width = std::max(width, config.carry_width(layer));
  const int64_t layer_bytes = element * 2 * seen * width + mlp_bytes;
  const int64_t per_logit = 1 + (config.final_logit_softcapping > 0.0 ? 1 : 0) + (request.entropies ? 1 : 0) +
                            (request.log_sum_squares ? 1 : 0) +
                            (request.divergence != Divergence::kNone ? 2 : 0) +
                            (request.divergence_temperature != request.temperature ? 1 : 0);
  const int64_t row_bytes = config.vocab_size * std::max<int64_t>(element, 4);
  // Few rows make thin products for the head's weight gradient, which is read and written once for each
  // chunk.
  if (!by_chunks) return std::clamp<int64_t>(layer_bytes / row_bytes / 16 * 16, 256, 1024) / per_logit;
  const int64_t most =
      std::max<int64_t>(1, std::clamp<int64_t>(mlp_bytes / row_bytes, 256, 1024) / per_logit);
  // Equal parts of the layer's chunk, about as large; where the head is one kernel, in whole tiles of it.
  const int64_t parts = std::max<int64_t>(1, (2 * rows + most) / (2 * most));
  const int64_t tile = per_logit == 1 ? 64 : 1;
  return std::min(rows, ((rows + parts - 1) / parts + tile - 1) / tile * tile);
}

void accumulate_embedding(const Pass& pass, const Rows& rows, at::Tensor gradient) {
  if (rows.embedded_gradient.defined()) gradient.add_(rows.embedded_gradient);
  pass.model.accumulate_embedding(pass.stream.batch.tokens.narrow(0, rows.begin, rows.size()),
                                  std::move(gradient));
}

void begin_gradients(const Pass& pass, const std::vector<Parameter*>& parameters) {
  if (pass.consumer != nullptr) pass.model.allocate_gradients(parameters);  // those that are deferred
}

std::vector<Parameter*> begin_layer_gradients(const Pass& pass, int64_t layer) {
  // Looked up only where they are consumed: a mixture has thousands.
  std::vector<Parameter*> parameters;
  if (pass.consumer != nullptr) parameters = pass.model.layer_parameters(layer);
  begin_gradients(pass, parameters);
  // Per-layer inputs leave gradients for the embedding in every layer; shared blocks and trained frequencies
  // have theirs with it.
  if (layer == 0 || pass.model.config().layers_share_parameters())
    begin_gradients(pass, pass.model.embedding_parameters());
  return parameters;
}

void use_gradients(const Pass& pass, const std::vector<Parameter*>& parameters) {
  if (pass.consumer != nullptr) hand_over(pass.model, *pass.consumer, parameters);
}

at::Tensor head_gradient(const Pass& pass, at::Tensor hidden, HeadOutcome& outcome) {
  if (pass.stream_head && pass.head.request.pooling != Pooling::kNone) {
    const Span span("head");
    at::Tensor gradient = streamed_embeddings(pass.head, pass.head_chunk, hidden);
    outcome.loss = embeddings_gradient(pass.objective, gradient);
    embeddings_backward(pass.head, pass.head_chunk, gradient, hidden);
    return hidden;
  }
  if (pass.stream_head) {
    StreamedHead head(pass.head, pass.objective, pass.head_chunk);
    head.run(0, hidden);
    outcome = head.outcome();
    return hidden;
  }
  const at::AutoGradMode with_grad(true);
  const at::Tensor leaf = hidden.detach().requires_grad_();
  hidden.reset();
  const at::Tensor loss = full_head(pass.head, pass.objective, leaf, pass.ops, outcome);
  const MemoryScope scope("logits");
  at::Tensor gradient = torch::autograd::grad({loss}, {leaf}).front();
  outcome.held.clear();
  return gradient;
}

void check_request(const Model& model, const Batch& batch, const HeadRequest& request, const Model* teacher) {
  if (request.log_probabilities && !model.has_head())
    throw InputError(
        "the model has no LM head, and the objective needs one; expected a model with one or, for one that "
        "gives scores, reward or infonce");
  if (request.values && !model.has_value_head())
    throw InputError(
        "the model has no value head, and the objective needs one; expected one with score.weight, or "
        "value_head.weight with the batch");
  if (request.divergence == Divergence::kNone) return;
  if (teacher == nullptr || !teacher->has_head())
    throw InputError("the objective needs a teacher model: --teacher, or the argument of that name");
  check_vocabularies(request, model.config().vocab_size, teacher->config().vocab_size);
  const int64_t largest = batch.tokens.numel() > 0 ? batch.tokens.max().item<int64_t>() : 0;
  if (largest >= teacher->config().vocab_size) {
    throw InputError("token {} in the batch: the teacher's vocabulary has {} tokens", largest,
                     teacher->config().vocab_size);
  }
}

namespace {

/// Puts the scored tokens' values back into the stream.
void fill(Outcome& outcome, const TokenValues& values, const HeadTargets& scored, int64_t tokens) {
  outcome.log_probabilities = in_stream(values.log_probabilities, scored, tokens);
  outcome.values = in_stream(values.values, scored, tokens);
}

Keep keep_of(const Model& model, const Settings& settings) {
  return {.first = std::max<int64_t>(model.lowest_trainable_layer(), 0),
          .every = settings.every,
          .activations = settings.keep,
          .offload = settings.offload,
          .offload_layers = settings.offload_layers};
}

/// Null where the loss has no such term.
std::shared_ptr<RouterBalance> balance_of(const Model& model, const RouterLoss& loss) {
  const MixtureSettings& mixture = model.config().mixture;
  const double coefficient = loss.of(mixture);
  if (coefficient == 0.0) return nullptr;
  return std::make_shared<RouterBalance>(coefficient, mixture.num_experts, model.device(), loss.counted,
                                         loss.sum_over_ranks);
}

/// Null where no layer has experts to choose.
std::shared_ptr<RouterChoices> choices_of(const Model& model, int64_t tokens) {
  const MixtureSettings& mixture = model.config().mixture;
  if (mixture.num_experts == 0) return nullptr;
  return std::make_shared<RouterChoices>(static_cast<int64_t>(model.layers().size()), tokens,
                                         mixture.num_experts_per_tok, mixture.num_experts, model.device());
}

/// The objective of a batch of which nothing is scored: no token has a term, so that what is left of the loss
/// is the routers' alone.
class NothingScored : public Objective {
 public:
  explicit NothingScored(const Objective& given) : name_(given.name()), request_(given.request()) {
    request_.divergence = Divergence::kNone;  // no teacher need run
    router_loss = given.router_loss;
  }
  std::string name() const override { return name_; }
  HeadRequest request() const override { return request_; }
  bool separable() const override { return true; }
  at::Tensor loss(const TokenValues& values, int64_t /*begin*/, int64_t /*end*/) const override {
    const at::Tensor& none = request_.log_probabilities ? values.log_probabilities : values.values;
    return none.sum();
  }

 private:
  std::string name_;
  HeadRequest request_;
};

/// Whether the last layer is recurrent: of a part it is then not joined with the head, since it has to pass
/// on its state before any backward pass.
bool ends_recurrent(const Model& model) {
  const auto layers = static_cast<int64_t>(model.layers().size());
  return layers > 0 && model.config().is_recurrent(layers - 1);
}

/// backpropagate(), or with a `part` backpropagate_part().
Outcome run(Model& model, const Batch& given, const Objective& whole, const Settings& settings,
            Model* teacher, StreamPart* part) {
  check_settings(settings);
  whole.require_batch(given);
  const MethodKind& kind = method_kind(settings.method);
  Batch batch = given;
  if (whole.targets().defined()) batch.targets = whole.targets();
  const at::NoGradGuard no_grad;  // methods turn autograd on where they want it
  const MemoryScope scope("batch");
  check_request(model, batch, whole.request(), teacher);
  Stream stream = model.prepare(batch);
  const HeadTargets scored = head_targets(batch, model.device());
  const bool is_scored = scored.size() > 0 || whole.request().pooling != Pooling::kNone || part != nullptr;
  const NothingScored nothing(whole);
  const Objective& objective = is_scored ? whole : nothing;
  const HeadRequest request = objective.request();
  stream.balance = balance_of(model, objective.router_loss);
  if (kind.recomputes && stream.choices == nullptr) stream.choices = choices_of(model, stream.size());
  if (kind.recomputes && stream.embedded.defined() && model.lowest_trainable_layer() < 0) {
    const MemoryScope inputs("layer inputs");
    stream.embedded_gradient =
        at::zeros(stream.embedded.sizes(), stream.embedded.options().dtype(sum_dtype(stream.embedded)));
  }
  Outcome outcome;
  outcome.chunk = chunk_of(settings, stream.size(), model.device());
  const int64_t chunk = outcome.chunk > 0 ? outcome.chunk : stream.size();
  if (settings.streams_head()) {
    const bool by_chunks = kind.head_by_chunks && objective.separable();
    outcome.head_chunk = settings.head_chunk > 0 ? settings.head_chunk
                                                 : auto_head_chunk(model.config(), stream.size(), chunk,
                                                                   model.dtype(), request, by_chunks);
  }
  if (settings.consumer != nullptr && settings.consumer->frees()) model.defer_gradients();
  const WideVectors sums(model);
  if (!is_scored && stream.balance == nullptr) {
    // Loss 0, gradients 0.
    if (settings.consumer != nullptr) {
      hand_over_unscored(model, keep_of(model, settings), *settings.consumer);
      settings.consumer->finish();
    }
    outcome.log_probabilities = at::zeros({stream.size()}, scored.targets.options().dtype(at::kDouble));
    return outcome;
  }
  HeadPass head{model, scored, request, {}};
  if (request.divergence != Divergence::kNone) {
    const MemoryScope teacher_scope("teacher");
    const Span span("teacher");
    head.teacher = {teacher, streamed_hidden_states(*teacher, teacher->prepare(without_given_indices(batch)),
                                                    auto_chunk(stream.size(), model.device()), part)};
  }
  const Pass pass{
      .model = model,
      .stream = stream,
      .head = head,
      .objective = objective,
      .chunk = outcome.chunk,
      .head_chunk = outcome.head_chunk,
      .stream_head = settings.streams_head(),
      .keep = keep_of(model, settings),
      .consumer = settings.consumer,
      .order = settings.order,
      .joins_head = joins_head(model, objective, settings) && (part == nullptr || !ends_recurrent(model)),
      .part = part,
      .ops = settings.is_fair() ? own_ops() : model_ops(settings.baseline)};
  const HeadOutcome result = kind.run(pass);
  if (settings.consumer != nullptr) settings.consumer->finish();
  outcome.loss = result.loss;
  if (stream.balance != nullptr && objective.router_loss.reports) outcome.loss += stream.balance->loss();
  fill(outcome, result.values, scored, stream.size());
  return outcome;
}

}  // namespace

Outcome backpropagate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
                      Model* teacher) {
  return run(model, batch, objective, settings, teacher, /*part=*/nullptr);
}

Outcome backpropagate_part(Model& model, const Batch& batch, const Objective& objective,
                           const Settings& settings, StreamPart& part, Model* teacher) {
  if (settings.method != Method::kStreambp || settings.order != Order::kReverse || !settings.streams_head())
    throw InputError(
        "{}: rows of a sequence are elsewhere, expected streambp in reverse order with a streamed head",
        configuration_text(settings));
  return run(model, batch, objective, settings, teacher, &part);
}

void reserve_host_memory(const Model& model, int64_t tokens, const Settings& settings) {
  const Keep keep = keep_of(model, settings);
  if (keep.offload != Offload::kHost) return;
  const Config& config = model.config();
  const auto copies = std::make_shared<HostCopies>(model.device());
  const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
  const auto layers = static_cast<int64_t>(model.layers().size());
  std::vector<StreamBuffer> buffers;
  const auto reserve = [&](int64_t width, const at::TensorOptions& of) {
    buffers.emplace_back(std::vector<int64_t>{tokens, width}, of, copies);
  };
  for (int64_t layer = keep.first; layer < layers; ++layer) {
    if (keep.inputs_on_host() && layer > 0 && keeps_input(layer, keep.first, layers, keep.every))
      reserve(config.residual_width(), options);
    if (!keep.activations_on_host(layer)) continue;
    const auto kept = [&](int64_t count) { return keeps_of(count, layer, layers); };
    const bool attends = config.can_store_attention(layer);
    if (kept(keep.activations.attention) && attends) {
      reserve(config.attention_width(layer), options);
      reserve(config.query_heads_of(layer), options.dtype(sum_dtype(model.dtype())));
    }
    if (kept(keep.activations.queries) && attends) reserve(config.projected_query_width(layer), options);
    for (int i = 0; i < 2 && kept(keep.activations.keys_values) && config.can_store_keys_values(layer); ++i)
      reserve(config.carry_width(layer) / 2, options);
    if (kept(keep.activations.attention_half)) reserve(config.hidden_size, options);
    for (int i = 0; i < 2 && kept(keep.activations.gate_up) && config.can_store_gate_up(layer); ++i)
      reserve(config.intermediate_size_of(layer), options);
  }
}

namespace {

Outcome values_of(Model& model, const Batch& batch, double temperature, StreamPart* part) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope("batch");
  const Stream stream = model.prepare(batch);
  const HeadTargets scored = head_targets(batch, model.device());
  HeadRequest request;
  request.log_probabilities = model.has_head();
  request.values = model.has_value_head() && batch.value_mask.defined();
  request.temperature = temperature;
  Outcome outcome;
  outcome.chunk = auto_chunk(stream.size(), model.device());
  outcome.head_chunk = auto_head_chunk(model.config(), stream.size(), outcome.chunk, model.dtype());
  const at::Tensor hidden = streamed_hidden_states(model, stream, outcome.chunk, part);
  fill(outcome, head_values({model, scored, request, {}}, outcome.head_chunk, hidden), scored, stream.size());
  return outcome;
}

}  // namespace

Outcome evaluate(Model& model, const Batch& batch, double temperature) {
  return values_of(model, batch, temperature, /*part=*/nullptr);
}

Outcome evaluate_part(Model& model, const Batch& batch, StreamPart& part, double temperature) {
  return values_of(model, batch, temperature, &part);
}

}  // namespace streambp
