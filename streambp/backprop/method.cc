#include "streambp/backprop/method.h"

#include <algorithm>
#include <array>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

constexpr std::array<std::pair<const char*, Method>, 3> kMethods{
    {{"standard", Method::kStandard}, {"checkpoint", Method::kCheckpoint}, {"streambp", Method::kStreambp}}};

}  // namespace

Method parse_method(const std::string& name) {
  for (const auto& [known, method] : kMethods) {
    if (name == known) return method;
  }
  throw InputError("method '{}': expected one of {}", name, fmt::join(method_names(), ", "));
}

std::string method_name(Method method) {
  for (const auto& [name, known] : kMethods) {
    if (method == known) return name;
  }
  return {};
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const auto& known : kMethods) names.emplace_back(known.first);
  return names;
}

int64_t auto_chunk(int64_t tokens) {
  // Matrix products lose speed below 256 rows and gain none above 1024; in between, a quarter of the stream keeps the chunk's
  // activations small beside the layer inputs.
  return std::min(tokens, std::clamp<int64_t>(tokens / 4, 256, 1024));
}

int64_t auto_head_chunk(const Config& config, int64_t tokens, int64_t chunk, at::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  // Keys, values and their gradients of one layer, and the four [chunk, F] tensors of an MLP's backward pass.
  const int64_t layer_bytes = element * (4 * tokens * config.num_key_value_heads * config.head_dim +
                                         4 * std::min(chunk, tokens) * config.intermediate_size);
  const int64_t row_bytes = config.vocab_size * std::max<int64_t>(element, 4);
  return std::clamp<int64_t>(layer_bytes / row_bytes / 16 * 16, 256, 1024);
}

at::Tensor head_gradient(const Pass& pass, at::Tensor hidden, HeadOutcome& outcome) {
  if (pass.stream_head) {
    outcome = streamed_head(pass.model, pass.scored, pass.objective, pass.head_chunk, hidden);
    return hidden;
  }
  const at::AutoGradMode with_grad(true);
  const at::Tensor leaf = hidden.detach().requires_grad_();
  hidden.reset();
  const at::Tensor loss = full_head(pass.model, pass.scored, pass.objective, leaf, outcome);
  const MemoryScope scope("logits");
  return torch::autograd::grad({loss}, {leaf}).front();
}

Outcome backpropagate(Model& model, const Batch& batch, const Objective& objective,
                      const Settings& settings) {
  if (settings.chunk < 0) throw InputError("chunk {}: expected 1 or more tokens, or auto", settings.chunk);
  if (settings.head_chunk < 0)
    throw InputError("head chunk {}: expected 1 or more tokens, or auto", settings.head_chunk);
  const at::NoGradGuard no_grad;  // methods turn autograd on where they want it
  const MemoryScope scope("batch");
  const Stream stream = model.prepare(batch);
  const Scored scored = find_scored(batch, model.device());
  Outcome outcome;
  if (settings.method == Method::kStreambp) {
    const int64_t chunk = settings.chunk > 0 ? settings.chunk : auto_chunk(stream.size());
    outcome.chunk = std::min(chunk, stream.size());
  }
  if (settings.streams_head()) {
    outcome.head_chunk =
        settings.head_chunk > 0
            ? settings.head_chunk
            : auto_head_chunk(model.config(), stream.size(),
                              outcome.chunk > 0 ? outcome.chunk : stream.size(), model.dtype());
  }
  outcome.log_probabilities = at::zeros({stream.size()}, scored.targets.options().dtype(at::kDouble));
  if (scored.size() == 0) return outcome;  // nothing is scored: loss 0, gradients 0

  const Pass pass{
      model, stream, scored, objective, outcome.chunk, outcome.head_chunk, settings.streams_head()};
  HeadOutcome head;
  switch (settings.method) {
    case Method::kStandard:
      head = run_standard(pass);
      break;
    case Method::kCheckpoint:
      head = run_checkpoint(pass);
      break;
    case Method::kStreambp:
      head = run_streambp(pass);
      break;
  }
  outcome.loss = head.loss;
  outcome.log_probabilities.index_copy_(0, scored.places.to(model.device()), head.log_probabilities);
  return outcome;
}

}  // namespace streambp
