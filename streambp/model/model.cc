#include "streambp/model/model.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include <ATen/Context.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/checked_batch.h"
#include "streambp/model/config/rope_frequencies.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/given_experts.h"
#include "streambp/model/given_picks.h"
#include "streambp/model/quantized/quantized_weights.h"
#include "streambp/model/quantized/unpack.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/ngrams.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Of random weights.
constexpr double kDeviation = 0.02;
constexpr double kConvolutionDeviation = 0.5;  // few terms: what they mix stays about as large
/// Parameters of fewer numbers are drawn by the CPU, the same for every device. A GPU draws larger ones
/// itself: billions of normal numbers take the CPU minutes.
constexpr int64_t kDrawnByGpu = int64_t{1} << 24;

}  // namespace

Rows Stream::rows(int64_t begin, int64_t end) const {
  const auto& offsets = batch.offsets;
  Rows rows{.begin = begin,
            .end = end,
            .offsets = {0},
            .rope = rope.rows(begin, end),
            .local_rope = {},
            .query_rope = {},
            .stream_rope = rope,
            .log_positions = {},
            .query_scales = {},
            .tokens = batch.tokens.narrow(0, begin, end - begin),
            .embedded = {},
            .embedded_gradient = {},
            .picks = picks.get()};
  if (embedded.defined()) rows.embedded = embedded.narrow(0, begin, end - begin);
  if (embedded_gradient.defined()) rows.embedded_gradient = embedded_gradient.narrow(0, begin, end - begin);
  if (local_rope.cosine.defined()) rows.local_rope = local_rope.rows(begin, end);
  if (query_rope.cosine.defined()) rows.query_rope = query_rope.rows(begin, end);
  if (ngrams.defined()) rows.ngrams = ngrams.narrow(0, begin, end - begin);
  if (log_positions.defined()) rows.log_positions = log_positions.narrow(0, begin, end - begin);
  if (query_scales.defined()) rows.query_scales = query_scales.narrow(0, begin, end - begin);
  // The last sequence that begins at or before `begin` and is not empty there.
  auto next = std::upper_bound(offsets.begin(), offsets.end(), begin);
  rows.sequence_begin = *(next - 1);
  for (; next != offsets.end() && *next < end; ++next) {
    if (*next - begin != rows.offsets.back()) rows.offsets.push_back(*next - begin);
  }
  rows.offsets.push_back(end - begin);
  return rows;
}

void require_lm_head(const Config& config) {
  if (config.value_model) throw InputError("lm_head in a dtype of its own: the model has a score instead");
}

at::ScalarType Model::dtype_of(const std::string& name) const {
  if (is_always_wide(name)) return sum_dtype(placement_.dtype);
  const auto is_of = [&](const char* module) { return name.find(module) != std::string::npos; };
  const bool is_heads = is_of("lm_head.") || (config_.tie_word_embeddings && is_of("embed_tokens."));
  return is_heads ? head_dtype() : placement_.dtype;
}

at::Tensor Model::zero_gradient(const at::Tensor& value) const {
  const MemoryScope scope("gradients");
  const at::ScalarType dtype = at::promote_types(value.scalar_type(), placement_.gradient_dtype);
  return at::zeros(value.sizes(), value.options().dtype(dtype));
}

at::Tensor Model::ExpertStacks::place(const ParameterShape& shape, int64_t experts,
                                      const at::TensorOptions& options) {
  if (!shape.of_expert || shape.shape.size() != 2 || !shape.name.ends_with(".weight"))
    return at::empty(shape.shape, options);
  // Before that stand the expert's number and its map's name.
  std::string map = shape.name;
  const size_t end = map.rfind('.', map.rfind('.') - 1), begin = map.rfind('.', end - 1) + 1;
  const int64_t expert = std::stoll(map.substr(begin, end - begin));
  at::Tensor& all = all_[map.erase(begin, end - begin)];
  if (!all.defined()) all = at::empty({experts, shape.shape[0], shape.shape[1]}, options);
  return all.select(0, expert);
}

Parameter& Model::add_parameter(const ParameterShape& shape, bool trainable, ExpertStacks* stacks) {
  const auto options = at::TensorOptions().device(placement_.device).dtype(dtype_of(shape.name));
  auto parameter = std::make_unique<Parameter>();
  parameter->name = shape.name;
  {
    const MemoryScope scope("weights");
    parameter->value = stacks != nullptr ? stacks->place(shape, config_.mixture.num_experts, options)
                                         : at::empty(shape.shape, options);
  }
  const bool is_trained = trainable && !is_never_trained(shape.name);
  parameter->deferred = is_trained && placement_.defers_gradients;
  if (is_trained && !placement_.defers_gradients) parameter->gradient = zero_gradient(parameter->value);
  by_name_[parameter->name] = parameter.get();
  return *parameters_.emplace_back(std::move(parameter));
}

Parameter* Model::add_part(const Parameter& whole, View view) {
  auto parameter = std::make_unique<Parameter>();
  parameter->name = whole.name;
  parameter->value = view(whole.value);
  if (whole.gradient.defined()) parameter->gradient = view(whole.gradient);
  parameter->deferred = whole.deferred;
  return parts_[&whole].emplace_back(Part{std::move(parameter), std::move(view)}).parameter.get();
}

Parameter* Model::add_rows(const Parameter& whole, int64_t first_row, int64_t rows) {
  return add_part(whole, [=](const at::Tensor& x) { return x.narrow(0, first_row, rows); });
}

Model::Model(const Config& config, const Placement& placement,
             const std::function<void(Parameter&, ParameterRole)>& fill)
    : config_(config), placement_(placement) {
  if (placement.head_dtype) require_lm_head(config);
  ExpertStacks stacks;
  const bool has_stacks = !placement.filled && !placement.is_quantized;
  for (const ParameterShape& shape : parameter_shapes(config)) {
    Parameter& parameter = add_parameter(shape, !placement.trainable || placement.trainable(shape.name),
                                         has_stacks ? &stacks : nullptr);
    fill(parameter, shape.role);
    if (placement.filled) placement.filled(parameter);
  }
  if (config.latent.trained_positions) alpha_ = &parameter(kTrainedFrequencies);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_.push_back(make_layer(i));
  embedding_ = &parameter("model.embed_tokens.weight");
  if (config.has_low_rank_streams()) {
    head_mixer_ = stream_mixer("model.hyper_connection_mixer", /*gives=*/false);
    norm_ = head_mixer_.norm;
  } else {
    norm_ = norm_of("model.norm");
  }
  if (config.has_head_gates())
    head_gates_ = stream_gates("model.hc_head.hc_", 0, /*magnitude=*/1.0, config.hyper.eps);
  if (config.plain_norms) {
    norm_.adds_one = false;
    embedding_norm_ = plain_norm(config.hidden_size);
  }
  if (config.value_model) {
    value_head_ = add_linear("score", "score.weight");
  } else {
    Linear* const head =
        add_linear("lm_head", config.tie_word_embeddings ? embedding_->name : "lm_head.weight");
    head->output_scale = 1.0 / config.logits_scaling;
    head_ = head;
  }
  embedding_scale_ = config.embedding_scale;
  if (config.rounds_embedding_scale)
    embedding_scale_ = at::scalar_tensor(embedding_scale_, dtype_of(embedding_->name)).item<double>();
}

Model Model::load(const Checkpoint& checkpoint, const Placement& placement) {
  const auto quantized = std::make_shared<QuantizedWeights>();
  const std::vector<ParameterShape> shapes = parameter_shapes(checkpoint.config());
  Placement own = placement;
  own.is_quantized = std::any_of(shapes.begin(), shapes.end(), [&](const ParameterShape& shape) {
    return !checkpoint.packing(shape.name) && is_quantized(checkpoint.stored(shape.name));
  });
  Model model(checkpoint.config(), own, [&](Parameter& parameter, ParameterRole) {
    const StoredTensor& stored = checkpoint.stored(parameter.name);
    const auto find = [&](const std::string& name) -> const StoredTensor& { return checkpoint.stored(name); };
    if (const auto packing = checkpoint.packing(parameter.name)) {
      const MemoryScope scope("weights");
      return unpack_into(*packing, find, parameter.name, parse_dtype(checkpoint.config().dtype),
                         parameter.value);
    }
    if (!is_quantized(stored)) return read_into(stored, parameter.value);
    if (placement.filled) {
      throw InputError(
          "{}: tensor {} is quantised as it is stored: expected no --quantize, --weights host or --zero "
          "zero-3",
          stored.file.path().string(), shown(stored.name));
    }
    const MemoryScope scope("weights");
    quantized->take(parameter,
                    read_quantized(find, parameter.name, parameter.value.sizes().vec(), placement.device));
  });
  if (own.is_quantized) model.provide(quantized);
  return model;
}

Model Model::random(const Config& config, const Placement& placement, uint64_t seed) {
  uint64_t stream = seed;
  const auto draw = [&](Parameter& parameter, ParameterRole role) {
    stream += 0x9E3779B97F4A7C15;  // each parameter its own seed
    if (!has_values(placement.device)) return;
    if (role == ParameterRole::kHash) {
      const at::Tensor drawn =
          at::rand({parameter.value.size(0), config.mixture.num_experts},
                   at::detail::createCPUGenerator(stream), at::TensorOptions(at::kFloat));
      const at::Tensor order = at::argsort(drawn, /*stable=*/true, /*dim=*/1, /*descending=*/false);
      parameter.value.copy_(order.narrow(1, 0, parameter.value.size(1)));
      return;
    }
    if (placement.device.is_cuda() && parameter.value.numel() >= kDrawnByGpu) {
      at::Generator generator = at::globalContext().defaultGenerator(placement.device).clone();
      generator.set_current_seed(stream);
      parameter.value.normal_(0.0, kDeviation, generator);
      return;
    }
    at::Generator generator = at::detail::createCPUGenerator(stream);
    const at::Tensor noise =
        at::randn(parameter.value.sizes(), generator, at::TensorOptions().dtype(sum_dtype(placement.dtype)))
            .mul_(kDeviation);
    // The delta rule's own norm multiplies by its weight in every family.
    const bool adds_one = config.norm_adds_one && !parameter.name.ends_with(".linear_attn.norm.weight") &&
                          !(config.plain_norms && parameter.name == "model.norm.weight");
    if (role == ParameterRole::kConvolution) noise.mul_(kConvolutionDeviation / kDeviation);
    const bool of_gates = role == ParameterRole::kHyper && parameter.name.ends_with("scale");
    const bool around_one = of_gates || (role == ParameterRole::kNorm && !adds_one) ||
                            role == ParameterRole::kScalar ||
                            parameter.name.ends_with(".indexer.k_norm.weight") ||
                            parameter.name.ends_with(".indexer.q_input_norm.weight") ||
                            parameter.name.ends_with(".softmax_scaling.bias") ||
                            parameter.name.ends_with(".indexer.kv_norm.weight");
    parameter.value.copy_(around_one ? noise + 1.0 : noise);
  };
  return Model(config, placement, [&](Parameter& parameter, ParameterRole role) {
    draw(parameter, role);
    // The model is the same one, however wide its head is.
    if (has_values(placement.device) && !is_always_wide(parameter.name) &&
        parameter.value.scalar_type() != placement.dtype)
      parameter.value.copy_(parameter.value.to(placement.dtype));
  });
}

Parameter& Model::parameter(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw InputError("{} model: no parameter is named '{}'", config_.family, name);
  return *found->second;
}

void Model::zero_gradients() {
  for (const auto& parameter : parameters_) {
    if (parameter->gradient.defined()) parameter->gradient.zero_();
  }
}

namespace {

/// Throws InputError where rows that their trainer runs in passes of their own have other frequencies there
/// than `frequencies`, those of the longest.
void require_one_rope(const RopeSettings& rope, int64_t rotary_dim, const Batch& batch,
                      const std::vector<double>& frequencies) {
  const auto columns = batch.sequence_inputs.find(kPassColumns);
  if (columns == batch.sequence_inputs.end()) return;
  const auto fewest = static_cast<int64_t>(columns->second.min().item<double>());
  if (rope_inverse_frequencies(rope, rotary_dim, fewest) == frequencies) return;
  throw InputError(
      "rows of {} and of {} columns, which run in passes of their own: their rotary frequencies differ, "
      "expected both on one side of {}, original_max_position_embeddings; leave the estimate's rows out "
      "(loss_type apo_zero_unpaired), or have the trainer pad both to as many columns",
      fewest, rope_length(batch), rope.original_max_position_embeddings);
}

}  // namespace

RopeTable Model::rope_of(const RopeSettings& rope, const std::optional<GivenRope>& given, int64_t rotary_dim,
                         const Batch& batch, const at::Tensor& row_factors) const {
  const at::Tensor positions = batch.positions.to(device());
  const std::vector<double> frequencies = rope_inverse_frequencies(rope, rotary_dim, rope_length(batch));
  require_one_rope(rope, rotary_dim, batch, frequencies);
  at::Tensor turning =
      given ? given->frequencies : at::tensor(at::ArrayRef<double>(frequencies), at::kDouble);
  turning = turning.to(device());
  if (alpha_ != nullptr) turning = turning * alpha_->value.to(at::kDouble).exp();
  RopeTable table = rope_table(positions, turning, given ? given->attention_factor : rope.attention_factor,
                               dtype(), row_factors);
  if (alpha_ != nullptr && alpha_->trainable()) {
    const at::ScalarType wide = at::promote_types(dtype(), at::kFloat);
    table.angles = positions.to(wide).unsqueeze(1) * turning.to(wide);
  }
  return table;
}

void Model::give_rope(std::optional<GivenRope> rope, std::optional<GivenRope> local) {
  const auto check = [](const std::optional<GivenRope>& given, int64_t rotary_dim) {
    if (given && given->frequencies.sizes() != at::IntArrayRef{rotary_dim / 2})
      throw InputError("inv_freq: [{}] frequencies, expected [{}]",
                       fmt::join(given->frequencies.sizes(), ", "), rotary_dim / 2);
  };
  check(rope, config_.rotary_dim);
  if (local && !config_.local_rope) throw InputError("inv_freq: the model has no local rotary embedding");
  check(local, config_.local_rope ? config_.local_rotary_dim() : 0);
  given_rope_ = std::move(rope);
  given_local_rope_ = std::move(local);
}

namespace {

/// What each token's rotated queries are multiplied by (Config::query_scale_beta), [N] float64.
at::Tensor query_scales(const Config& config, const at::Tensor& positions) {
  const at::Tensor turns = positions.div(config.query_scale_original, "floor").to(at::kDouble);
  return turns.log1p_().mul_(config.query_scale_beta).add_(1.0);
}

}  // namespace

Stream Model::prepare(const Batch& batch) const {
  require_plain_positions(config_, batch);
  const MemoryScope scope("batch");
  for (const auto& rows : trained_rows_) rows->write();  // a step may have moved them
  Stream stream;
  stream.batch = batch;
  stream.batch.tokens = batch.tokens.to(device());
  stream.batch.targets = batch.targets.to(device());
  stream.rope = rope_of(config_.rope, given_rope_, config_.rotary_dim, batch);
  if (config_.local_rope) {
    stream.local_rope = rope_of(*config_.local_rope, given_local_rope_, config_.local_rotary_dim(), batch);
  }
  if (config_.query_scale_beta != 0.0) {
    at::Tensor scales = query_scales(config_, batch.positions.to(device()));
    if (config_.is_latent()) {  // which scales what does not rotate, too
      stream.query_scales = std::move(scales);
    } else {
      stream.query_rope = rope_of(config_.rope, given_rope_, config_.rotary_dim, batch, scales);
    }
  }
  if (!config_.ngrams.modules.empty())
    stream.ngrams =
        ngram_tokens(stream.batch.tokens, batch.offsets, config_.ngrams.size, config_.ngrams.boundary);
  if (config_.latent.trained_positions)
    stream.log_positions = batch.positions.to(device()).to(at::kDouble).log1p_();
  if (config_.layers_read_embedding()) {
    const MemoryScope inputs("layer inputs");
    stream.embedded = embed(stream.batch.tokens);
  }
  if (config_.gemma4.num_kv_shared_layers > 0 || !config_.latent.sources.empty())
    stream.shared = std::make_shared<SharedKeysValues>(config_, stream.size());
  stream.choices = given_choices(config_, batch, device());
  stream.picks = picks_of(config_, batch, device());
  if (refuses_tied_picks_ && stream.picks != nullptr) stream.picks->refuse_ties();
  return stream;
}

at::Tensor Model::looked_up(const at::Tensor& tokens) const {
  at::Tensor rows = gather_rows(embedding_->value, tokens);
  if (embedding_adapter_ && embedding_adapter_->enabled) {
    const LowRankAdapter& adapter = *embedding_adapter_;
    rows.addmm_(gather_rows(adapter.a->value.t(), tokens), adapter.b->value.t(), /*beta=*/1, adapter.scale);
  }
  return (embedding_scale_ == 1.0 ? rows : rows.mul_(embedding_scale_)).to(dtype());
}

at::Tensor Model::embed(const at::Tensor& tokens) const {
  const at::Tensor rows = looked_up(tokens);
  if (config_.has_streams()) return rows.repeat({1, config_.hyper.streams});
  if (embedding_norm_.weight == nullptr) return rows;
  RmsNormSaved unused;
  return rms_norm_forward(rows, embedding_norm_, unused);
}

void Model::accumulate_embedding(const at::Tensor& tokens, at::Tensor dx) {
  if (config_.has_streams()) dx = dx.view({dx.size(0), config_.hyper.streams, -1}).sum(1);
  if (embedding_norm_.weight != nullptr) {
    RmsNormSaved saved;
    rms_norm_forward(looked_up(tokens), embedding_norm_, saved);
    dx = rms_norm_backward(dx, saved, embedding_norm_);
  }
  if (embedding_scale_ != 1.0) dx.mul_(embedding_scale_);  // a whole stream: no copy of it
  // nn.Embedding and PEFT's look-ups hold the row of padding_idx constant: it keeps what it has, which is the
  // head's part where the two are tied.
  accumulate_rows(*embedding_, tokens, dx, config_.pad_token_id);
  if (embedding_rows_ == nullptr && !embedding_adapter_) return;
  dx = dx.to(embedding_->value.scalar_type());
  if (embedding_rows_ != nullptr) accumulate_trained_rows(*embedding_rows_, tokens, dx);
  if (!embedding_adapter_ || !embedding_adapter_->trainable()) return;
  const LowRankAdapter& adapter = *embedding_adapter_;
  accumulate_product(*adapter.b, dx, gather_rows(adapter.a->value.t(), tokens).mul_(adapter.scale));
  Parameter columns;
  columns.gradient = adapter.a->gradient.t();
  accumulate_rows(columns, tokens, at::mm(dx, adapter.b->value).mul_(adapter.scale), config_.pad_token_id);
}

int64_t Model::lowest_trainable_layer() const {
  if (!present_embedding_parameters().empty()) return -1;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].trainable()) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(layers_.size());
}

}  // namespace streambp
