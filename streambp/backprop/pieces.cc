#include "streambp/backprop/pieces.h"

#include <utility>

#include "streambp/backprop/head/head.h"
#include "streambp/backprop/method.h"
#include "streambp/backprop/passes.h"
#include "streambp/backprop/wide_gradients.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

/// What layers that run alone have of a stream's experts.
LayerRun layer_run(const Stream& stream, bool graph_only) {
  return {.graph_only = graph_only, .choices = stream.choices.get(), .router = stream.router};
}

void require_rows(const Model& model, const Stream& stream, const at::Tensor& rows, const char* what,
                  int64_t width) {
  if (rows.dim() == 2 && rows.size(0) == stream.size() && rows.size(1) == width &&
      rows.scalar_type() == model.dtype() && rows.device() == model.device())
    return;
  throw InputError("{}: {} [{}] on {}, expected {} [{}, {}] on {}", what, c10::toString(rows.scalar_type()),
                   fmt::join(rows.sizes(), ", "), rows.device().str(), c10::toString(model.dtype()),
                   stream.size(), width, model.device().str());
}

StreamedForward alone(const Model& model, const Stream& stream, int64_t layer, const at::Tensor& x,
                      int64_t chunk, const KeptLayers& kept = {}) {
  const auto layers = static_cast<int64_t>(model.layers().size());
  if (layer < 0 || layer >= layers) throw InputError("layer {}: expected one of 0 to {}", layer, layers - 1);
  if (chunk < 0) throw InputError("chunk {}: expected at least 1, or 0 for auto", chunk);
  require_rows(model, stream, x, "layer input", model.config().residual_width());
  Settings settings;
  settings.chunk = chunk;
  Keep keep;
  keep.activations = kept;
  StreamedForward forward(model, stream, chunk_of(settings, stream.size(), model.device()), keep);
  forward.lend_input(layer, x.contiguous());
  return forward;
}

}  // namespace

Stream prepare_pieces(const Model& model, const Batch& batch) {
  Stream stream = model.prepare(batch);
  const MixtureSettings& mixture = model.config().mixture;
  if (mixture.num_experts > 0 && stream.choices == nullptr)
    stream.choices =
        std::make_shared<RouterChoices>(static_cast<int64_t>(model.layers().size()), stream.size(),
                                        mixture.num_experts_per_tok, mixture.num_experts, model.device());
  return stream;
}

at::Tensor layer_forward(const Model& model, const Stream& stream, int64_t layer, const at::Tensor& x,
                         int64_t chunk, at::Tensor* router_logits, KeptPiece* kept) {
  const at::NoGradGuard no_grad;
  const auto run = [&](const Stream& of_layer) {
    StreamedForward forward =
        alone(model, of_layer, layer, x, chunk, kept != nullptr ? kept->which : KeptLayers{});
    at::Tensor y = forward.run_alone(layer);
    if (kept != nullptr) kept->tensors = forward.kept(layer).tensors();
    return y;
  };
  if (router_logits == nullptr) return run(stream);
  RouterOutput router;
  Stream asked = stream;
  asked.router = &router;
  const Mixture& mixture = model.layers()[static_cast<size_t>(layer)].weights().mixture;
  if (mixture.sigmoid)
    throw InputError("router logits: their sigmoids are this model's scores, which no loss balances");
  const int64_t experts = static_cast<int64_t>(mixture.experts.size());
  *router_logits =
      experts > 0 ? at::empty({stream.size(), experts}, x.options()) : at::empty({0}, x.options());
  if (experts > 0) router.logits = *router_logits;
  return run(asked);
}

at::Tensor layer_backward(Model& model, const Stream& stream, int64_t layer, const at::Tensor& x,
                          const at::Tensor& dy, int64_t chunk, const at::Tensor& d_router_logits,
                          const std::vector<at::Tensor>& kept) {
  const at::NoGradGuard no_grad;
  StreamedForward forward = alone(model, stream, layer, x, chunk);
  forward.lend_kept(layer, KeptActivations(kept));
  require_rows(model, stream, dy, "gradient of the layer's output", model.config().residual_width());
  RouterOutput router;
  LayerRun run = layer_run(stream, /*graph_only=*/true);
  if (d_router_logits.defined()) {
    const Mixture& mixture = model.layers()[static_cast<size_t>(layer)].weights().mixture;
    require_rows(model, stream, d_router_logits, "gradient of the router's logits",
                 static_cast<int64_t>(mixture.experts.size()));
    router.gradient = d_router_logits;
    run.router = &router;
  }
  if (stream.choices != nullptr) stream.choices->close();
  const WideGradients sums(
      model, forward.chunks().count() > 1 ? model.parameters_added_to(layer) : std::vector<Parameter*>{});
  at::Tensor dx;
  {
    const MemoryScope scope("layer inputs");
    dx = at::empty(x.sizes(), x.options());
  }
  backward_in_reverse(model, forward, layer, run, forward.chunks().to_run(), dy, /*head=*/nullptr, dx);
  return dx;
}

HeadPiece head_piece(Model& model, const Batch& given, const Objective& objective, const at::Tensor& hidden,
                     int64_t head_chunk, bool goes_back) {
  const at::NoGradGuard no_grad;
  objective.require_batch(given);
  Batch batch = given;
  if (objective.targets().defined()) batch.targets = objective.targets();
  const HeadRequest request = objective.request();
  check_request(model, batch, request, /*teacher=*/nullptr);
  if (request.pooling != Pooling::kNone || objective.router_loss.of(model.config().mixture) != 0.0)
    throw InputError("{}: not a function of the last layer's tokens alone", objective.name());
  const HeadTargets scored = head_targets(batch, model.device());
  const int64_t tokens = batch.size();
  if (head_chunk <= 0)
    head_chunk =
        auto_head_chunk(model.config(), tokens, auto_chunk(tokens, model.device()), model.dtype(), request);
  HeadPiece piece;
  const HeadPass pass{model, scored, request, {}};
  if (!goes_back) {
    const TokenValues values = head_values(pass, head_chunk, hidden);
    LossSum loss;
    if (scored.size() > 0) loss.add(objective.loss(values, 0, scored.size()));
    piece.loss = loss.read();
    piece.log_probabilities = in_stream(values.log_probabilities, scored, tokens);
    return piece;
  }
  const WideVectors sums(model);
  {
    const MemoryScope scope("layer inputs");
    piece.gradient = hidden.clone();
  }
  if (scored.size() == 0) {
    piece.gradient.zero_();
    piece.log_probabilities = at::zeros({tokens}, scored.targets.options().dtype(at::kDouble));
    return piece;
  }
  StreamedHead head(pass, objective, head_chunk);
  head.run(0, piece.gradient);
  const HeadOutcome outcome = head.outcome();
  piece.loss = outcome.loss;
  piece.log_probabilities = in_stream(outcome.values.log_probabilities, scored, tokens);
  return piece;
}

namespace {

class WeightedLogProbabilities final : public Objective {
 public:
  WeightedLogProbabilities(at::Tensor weights, double temperature)
      : weights_(std::move(weights)), temperature_(temperature) {
    router_loss.coefficient = 0.0;  // the caller's, like the rest of the loss
  }

  std::string name() const override { return "log-probabilities"; }
  bool separable() const override { return true; }
  HeadRequest request() const override {
    HeadRequest request;
    request.temperature = temperature_;
    return request;
  }
  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    if (!weights_.defined()) return values.log_probabilities.sum();
    return (values.log_probabilities * weights_.narrow(0, begin, end - begin)).sum();
  }

 private:
  at::Tensor weights_;  // [M]
  double temperature_;
};

}  // namespace

std::unique_ptr<Objective> weighted_log_probabilities(const Batch& batch, const at::Tensor& weights,
                                                      double temperature) {
  if (!(temperature > 0.0)) throw InputError("temperature {}: expected a number above 0", temperature);
  at::Tensor of_scored;
  if (weights.defined()) {
    const at::Tensor indices = scored_indices(batch).to(weights.device());
    of_scored = weights.detach().to(at::kDouble).index_select(0, indices);
  }
  auto objective = std::make_unique<WeightedLogProbabilities>(of_scored, temperature);
  objective->set_batch(batch);
  return objective;
}

}  // namespace streambp
