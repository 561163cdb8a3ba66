#include "streambp/python/engine.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "streambp/backprop/embeddings.h"
#include "streambp/backprop/method.h"
#include "streambp/backprop/pieces.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/data/padded_tensors.h"
#include "streambp/distributed/data_parallel.h"
#include "streambp/error.h"
#include "streambp/model/checked_batch.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/objective/terms.h"
#include "streambp/python/guest.h"
#include "streambp/python/pass_request.h"
#include "streambp/python/ranks.h"

namespace streambp::python {
namespace {

std::map<std::string, at::Tensor> to_map(const TensorDict& tensors) {
  std::map<std::string, at::Tensor> map;
  for (const auto& entry : tensors) map.emplace(entry.key(), entry.value());
  return map;
}

std::map<std::string, std::string> to_map(const TextDict& texts) {
  std::map<std::string, std::string> map;
  for (const auto& entry : texts) map.emplace(entry.key(), entry.value());
  return map;
}

/// A model's tensors while this lives.
class Loan {
 public:
  Loan(Model& model, const TensorDict& values, const TensorDict& gradients = TensorDict()) : model_(model) {
    model_.lend(to_map(values), to_map(gradients));
  }
  ~Loan() { model_.give_back(); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  Model& model_;
};

/// What all ranks of a pass have to have in common.
std::map<std::string, std::string> facts_of_pass(const std::string& objective, const TextDict& options,
                                                 const TextDict& settings, const TensorDict& gradients,
                                                 const Batch& batch) {
  const auto text_of = [](const TextDict& texts) {
    std::string all;
    for (const auto& [name, text] : to_map(texts)) all += fmt::format("{}={} ", name, text);
    return all;
  };
  std::string numbers;  // divisors, for one: a rank with another would have another share of the sums
  for (const auto& [name, number] : batch.scalar_inputs) numbers += fmt::format("{}={} ", name, number);
  std::string trained;
  for (const auto& [name, gradient] : to_map(gradients))
    trained += fmt::format("{} [{}] ", name, fmt::join(gradient.sizes(), ", "));
  return {{"the objective", objective},
          {"the objective's options", text_of(options)},
          {"the settings", text_of(settings)},
          {"the numbers in the batch", numbers},
          {"what is trained", trained}};
}

at::Tensor cpu_longs(const at::Tensor& integers) {
  return integers.defined() ? integers.detach().to(at::kCPU) : integers;
}

}  // namespace

StreamHandle::StreamHandle(const Model& model, at::Tensor input_ids, at::Tensor attention_mask,
                           at::Tensor position_ids)
    : input_ids_(std::move(input_ids)),
      attention_mask_(std::move(attention_mask)),
      position_ids_(std::move(position_ids)) {
  const Batch batch = scored_on({}, model.config().vocab_size);
  stream_ = prepare_pieces(model, batch);
  indices_ = batch.padded_indices.to(model.device());
}

Batch StreamHandle::scored_on(const at::Tensor& targets, int64_t vocab_size) const {
  return pack(input_ids_, attention_mask_, targets, position_ids_, vocab_size, FirstLabels::kIgnore);
}

Engine::Engine(const std::string& config_json, const std::string& source, const std::string& adapter_json,
               const std::string& dtype, const std::string& head_dtype, const std::string& device)
    : model_(answered([&] {
        join_device(device);
        Model model =
            Model::skeleton(parse_config(config_json, source), parse_dtype(dtype), c10::Device(device),
                            head_dtype == dtype ? std::nullopt : std::optional(parse_dtype(head_dtype)));
        if (!adapter_json.empty())
          model.attach_adapters(parse_lora_config(adapter_json, source + ", adapter"), /*seed=*/0);
        model.refuse_tied_picks();
        model.give_back();
        return model;
      })) {}

c10::Dict<std::string, std::vector<int64_t>> Engine::parameters() const {
  c10::Dict<std::string, std::vector<int64_t>> shapes;
  for (const auto& parameter : model_.parameters())
    shapes.insert(parameter->name, model_.skeleton_shapes().at(parameter->name));
  return shapes;
}

std::vector<std::string> Engine::layer_parameters(int64_t layer) const {
  return answered([&] {
    const auto layers = static_cast<int64_t>(model_.layers().size());
    if (layer < 0 || layer >= layers)
      throw InputError("layer {}: expected one of 0 to {}", layer, layers - 1);
    std::vector<std::string> names;
    for (const Parameter* parameter : model_.layer_parameters(layer, /*trainable_alone=*/false))
      names.push_back(parameter->name);
    return names;
  });
}

std::vector<std::string> Engine::head_parameters() const {
  std::vector<std::string> names;
  for (const Parameter* parameter : model_.head_parameters(/*trainable_alone=*/false))
    names.push_back(parameter->name);
  return names;
}

Batch Engine::read(const TensorDict& batch, const std::string& objective,
                   const std::string& first_labels) const {
  const Config& config = model_.config();
  return read_objective_batch(objective_kind(objective), to_map(batch), config.vocab_size,
                              parse_first_labels(first_labels), config.pad_token_id);
}

PreparedPass Engine::prepare(const TensorDict& given, const std::string& objective, const TextDict& settings,
                             const std::optional<at::Tensor>& reference) const {
  PreparedPass pass{.request = read_pass_request(to_map(settings))};
  pass.batch = read(given, objective, pass.request.first_labels);
  if (reference) {
    pass.batch.sequence_inputs.erase(inputs::kReferenceSums);
    pass.batch.token_inputs[inputs::kReferenceLogProbabilities] = reference->to(at::kCPU);
  }
  return pass;
}

Outcome Engine::run_in_parts(const PreparedPass& pass, const std::string& objective, const TextDict& options,
                             Model* teacher) {
  const PassRequest& request = pass.request;
  const std::vector<Batch> parts =
      request.micro_batches == 1
          ? std::vector<Batch>{pass.batch}
          : micro_batches(pass.batch, request.micro_batches, has_pairs(objective_kind(objective).layout));
  const auto objectives = part_objectives(model_, objective, pass.batch, parts, to_map(options));
  double loss = 0.0;
  Outcome outcome;
  for (size_t i = 0; i < parts.size(); ++i) {
    outcome = backpropagate(model_, parts[i], *objectives[i], request.settings, teacher);
    loss += outcome.loss;
  }
  if (parts.size() > 1) outcome.log_probabilities = outcome.values = at::Tensor();  // of the last part alone
  outcome.loss = loss;
  return outcome;
}

Outcome Engine::run_on_ranks(Communicator& communicator, PreparedPass& pass, const std::string& objective,
                             const TextDict& options, Model* teacher) {
  const auto parts =
      parts_of_rank(communicator, model_, objective, pass.batch, pass.request.micro_batches, to_map(options));
  ReducedGradients sums(communicator, model_, ZeroStage::kNone);
  return backpropagate_parts(communicator, model_, parts, pass.request.settings, sums, teacher);
}

std::tuple<double, TensorDict, std::string> Engine::backward(
    const TensorDict& values, const TensorDict& gradients, const TensorDict& given,
    const std::string& objective, const TextDict& options, const TextDict& settings,
    const std::optional<at::Tensor>& reference, const std::optional<c10::intrusive_ptr<Engine>>& teacher,
    const TensorDict& teacher_values, const std::string& process_group) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    const auto communicator = process_group.empty() ? nullptr : ranks_of_group(process_group);
    PreparedPass pass;
    try {
      pass = prepare(given, objective, settings, reference);
      if (communicator) check_batch(model_.config(), pass.batch);
    } catch (const InputError& error) {
      if (communicator) begin_together(*communicator, error.what(), {});
      throw;
    }
    if (communicator)
      begin_together(*communicator, {}, facts_of_pass(objective, options, settings, gradients, pass.batch));
    const Loan loan(model_, values, gradients);
    std::optional<Loan> teachers;
    Model* const teaching = teacher ? &(*teacher)->model_ : nullptr;
    if (teaching != nullptr) teachers.emplace(*teaching, teacher_values);
    const Outcome outcome = communicator ? run_on_ranks(*communicator, pass, objective, options, teaching)
                                         : run_in_parts(pass, objective, options, teaching);
    TensorDict per_token;
    const auto put = [&](const char* name, const at::Tensor& of_stream) {
      if (of_stream.defined()) per_token.insert(name, unpack(pass.batch, of_stream.to(at::kCPU)));
    };
    put("log_probabilities", outcome.log_probabilities);
    put("values", outcome.values);
    const Settings& run_settings = pass.request.settings;
    const nlohmann::json run{{"method", method_kind(run_settings.method).name},
                             {"configuration", configuration_text(run_settings)},
                             {"tokens", pass.batch.size()},
                             {"chunk", outcome.chunk},
                             {"head_chunk", outcome.head_chunk},
                             {"notes", reading_notes(pass.batch)}};
    return std::tuple{outcome.loss, per_token, run.dump()};
  });
}

void Engine::set_rope(const std::optional<at::Tensor>& frequencies, double attention_factor,
                      const std::optional<at::Tensor>& local_frequencies, double local_attention_factor) {
  answered([&] {
    const std::lock_guard lock(mutex_);
    const auto given = [](const std::optional<at::Tensor>& tensor, double factor) {
      return tensor ? std::optional(Model::GivenRope{*tensor, factor}) : std::nullopt;
    };
    model_.give_rope(given(frequencies, attention_factor), given(local_frequencies, local_attention_factor));
  });
}

bool Engine::needs_reference(const std::string& objective, const TextDict& options, const TensorDict& batch,
                             const std::string& first_labels) const {
  return answered([&] {
    const ObjectiveKind& kind = objective_kind(objective);
    const Batch read_batch = read(batch, objective, first_labels);
    return streambp::needs_reference(kind, complete_options(kind, to_map(options), read_batch), read_batch);
  });
}

std::tuple<int64_t, int64_t, int64_t, int64_t> Engine::sizes(const TensorDict& given,
                                                             const std::string& objective,
                                                             const std::string& first_labels) const {
  return answered([&] {
    const Layout layout = objective_kind(objective).layout;
    const Batch batch = read(given, objective, first_labels);
    int64_t longest = 0;
    for (size_t row = 1; row < batch.offsets.size(); ++row)
      longest = std::max(longest, batch.offsets[row] - batch.offsets[row - 1]);
    const int64_t rows_of_sample = layout == Layout::kTexts ? 0 : has_pairs(layout) ? 2 : 1;
    return std::tuple{static_cast<int64_t>(batch.offsets.size()) - 1, longest, batch.size(), rows_of_sample};
  });
}

at::Tensor Engine::evaluate(const TensorDict& values, const TensorDict& given, const std::string& objective,
                            const TextDict& options, const std::string& first_labels, bool adapters) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    // Of a reference, which has sampled nothing.
    const Batch batch = without_given_indices(read(given, objective, first_labels));
    const ObjectiveKind& kind = objective_kind(objective);
    const Options complete = complete_options(kind, to_map(options), batch);
    const Loan loan(model_, values);
    std::optional<AdaptersOff> base;
    if (!adapters) base.emplace(model_);
    return streambp::evaluate(model_, batch, logit_temperature(kind, complete))
        .log_probabilities.to(at::kCPU);
  });
}

c10::intrusive_ptr<StreamHandle> Engine::stream(const at::Tensor& input_ids,
                                                const std::optional<at::Tensor>& attention_mask,
                                                const std::optional<at::Tensor>& position_ids) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    return c10::make_intrusive<StreamHandle>(model_, cpu_longs(input_ids),
                                             cpu_longs(attention_mask.value_or(at::Tensor())),
                                             cpu_longs(position_ids.value_or(at::Tensor())));
  });
}

std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>> Engine::layer_forward(
    const c10::intrusive_ptr<StreamHandle>& stream, int64_t layer, const at::Tensor& x,
    const TensorDict& values, int64_t chunk, bool routes, const std::string& keep) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    const Loan loan(model_, values);
    at::Tensor router_logits = at::empty({0}, x.options());
    KeptPiece kept{.which = parse_kept_layers(keep)};
    const at::Tensor y =
        streambp::layer_forward(model_, stream->stream(), layer, x.detach(), chunk,
                                routes ? &router_logits : nullptr, kept.which.any() ? &kept : nullptr);
    return std::tuple{y, router_logits, kept.tensors};
  });
}

at::Tensor Engine::layer_backward(const c10::intrusive_ptr<StreamHandle>& stream, int64_t layer,
                                  const at::Tensor& x, const at::Tensor& dy, const TensorDict& values,
                                  const TensorDict& gradients, int64_t chunk,
                                  const std::optional<at::Tensor>& d_router_logits,
                                  const std::vector<at::Tensor>& kept) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    const Loan loan(model_, values, gradients);
    return streambp::layer_backward(model_, stream->stream(), layer, x.detach(), dy.detach(), chunk,
                                    d_router_logits ? d_router_logits->detach() : at::Tensor(), kept);
  });
}

std::tuple<double, at::Tensor> Engine::head_loss(const c10::intrusive_ptr<StreamHandle>& stream,
                                                 const at::Tensor& hidden, const TensorDict& given,
                                                 const std::string& objective, const TextDict& options,
                                                 const TensorDict& values, const TensorDict& gradients,
                                                 int64_t head_chunk, bool goes_back) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    const Batch batch = read(given, objective, "ignore");
    if (batch.offsets != stream->stream().batch.offsets)
      throw InputError("batch: its rows have other lengths than the stream that the layers ran on");
    const auto loss = make_objective(objective, batch, to_map(options));
    const Loan loan(model_, values, gradients);
    HeadPiece piece = head_piece(model_, batch, *loss, hidden.detach(), head_chunk, goes_back);
    if (!piece.gradient.defined()) piece.gradient = at::empty({0}, hidden.options());
    return std::tuple{piece.loss, piece.gradient};
  });
}

at::Tensor Engine::head_log_probabilities(const c10::intrusive_ptr<StreamHandle>& stream,
                                          const at::Tensor& hidden, const at::Tensor& targets,
                                          double temperature, const TensorDict& values, int64_t head_chunk) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    const Batch batch = stream->scored_on(cpu_longs(targets), model_.config().vocab_size);
    const auto sum = weighted_log_probabilities(batch, {}, temperature);
    const Loan loan(model_, values);
    const HeadPiece piece = head_piece(model_, batch, *sum, hidden.detach(), head_chunk, /*goes_back=*/false);
    return unpack(batch, piece.log_probabilities.to(at::kCPU)).to(hidden.device());
  });
}

at::Tensor Engine::head_log_probabilities_backward(const c10::intrusive_ptr<StreamHandle>& stream,
                                                   const at::Tensor& hidden, const at::Tensor& targets,
                                                   double temperature, const at::Tensor& gradient,
                                                   const TensorDict& values, const TensorDict& gradients,
                                                   int64_t head_chunk) {
  return answered([&] {
    const std::lock_guard lock(mutex_);
    const GuestScope guest;
    const Batch batch = stream->scored_on(cpu_longs(targets), model_.config().vocab_size);
    if (gradient.sizes() != targets.sizes())
      throw InputError("gradient: [{}], expected that of the log-probabilities, [{}]",
                       fmt::join(gradient.sizes(), ", "), fmt::join(targets.sizes(), ", "));
    const at::Tensor weights =
        gradient.detach().to(hidden.device(), at::kDouble).flatten().index_select(0, stream->indices());
    const auto sum = weighted_log_probabilities(batch, weights, temperature);
    const Loan loan(model_, values, gradients);
    return head_piece(model_, batch, *sum, hidden.detach(), head_chunk, /*goes_back=*/true).gradient;
  });
}

std::string objectives_json() {
  nlohmann::json all = nlohmann::json::array();
  for (const ObjectiveKind& kind : objective_kinds()) {
    nlohmann::json options = nlohmann::json::array();
    for (const Option& option : kind.options)
      options.push_back({{"name", option.name},
                         {"default", option.default_value},
                         {"help", option.help},
                         {"choices", option.choices}});
    all.push_back({{"name", kind.name},
                   {"summary", kind.summary},
                   {"source", kind.source},
                   {"inputs", known_tensors(kind)},
                   {"options", options}});
  }
  return all.dump();
}

std::string settings_json() {
  nlohmann::json all = nlohmann::json::array();
  all.push_back({{"name", "method"}, {"help", "method of back-propagation"}, {"choices", method_names()}});
  for (const SettingKind& kind : setting_kinds()) {
    if (kind.name == "baseline") continue;
    all.push_back({{"name", kind.name}, {"help", kind.help}, {"choices", kind.choices}});
  }
  all.push_back({{"name", "micro_batches"},
                 {"help", "passes whose gradients are added up"},
                 {"choices", nlohmann::json::array()}});
  all.push_back({{"name", "first_labels"},
                 {"help", "what to do with labels that padding would predict"},
                 {"choices", {"refuse", "ignore", "ignore-all"}}});
  return all.dump();
}

}  // namespace streambp::python
