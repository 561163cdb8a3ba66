#include "streambp/model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Context.h>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/rope_frequencies.h"
#include "streambp/model/tensor_file.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/rows.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Of random weights.
constexpr double kDeviation = 0.02;
/// Parameters of fewer numbers are drawn by the CPU, the same for every device. A GPU draws larger ones
/// itself: billions of normal numbers take the CPU minutes.
constexpr int64_t kDrawnByGpu = int64_t{1} << 24;

}  // namespace

Rows Stream::rows(int64_t begin, int64_t end) const {
  const auto& offsets = batch.offsets;
  Rows rows{.begin = begin, .end = end, .offsets = {0}, .rope = rope.rows(begin, end), .local_rope = {}};
  if (local_rope.cosine.defined()) rows.local_rope = local_rope.rows(begin, end);
  // The last sequence that begins at or before `begin` and is not empty there.
  auto next = std::upper_bound(offsets.begin(), offsets.end(), begin);
  rows.sequence_begin = *(next - 1);
  for (; next != offsets.end() && *next < end; ++next) {
    if (*next - begin != rows.offsets.back()) rows.offsets.push_back(*next - begin);
  }
  rows.offsets.push_back(end - begin);
  return rows;
}

Parameter& Model::add_parameter(const ParameterShape& shape, bool trainable) {
  const auto options = at::TensorOptions().device(placement_.device);
  auto parameter = std::make_unique<Parameter>();
  parameter->name = shape.name;
  {
    const MemoryScope scope("weights");
    parameter->value = at::empty(shape.shape, options.dtype(placement_.dtype));
  }
  if (trainable) {
    const MemoryScope scope("gradients");
    parameter->gradient = at::zeros(shape.shape, options.dtype(placement_.gradient_dtype));
  }
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

Linear* Model::add_linear(const std::string& name, const std::string& weight, const std::string& bias) {
  auto map = std::make_unique<Linear>();
  map->name = name;
  map->weight = &parameter(weight);
  if (!bias.empty()) map->bias = &parameter(bias);
  return maps_.emplace_back(std::move(map)).get();
}

DecoderLayer Model::make_layer(int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto linear = [&](const std::string& name, bool bias = false) {
    return add_linear(prefix + name, prefix + name + ".weight", bias ? prefix + name + ".bias" : "");
  };
  // The maps of `sizes` rows that stand one after another in one.
  const auto parts = [&](const std::string& name, const std::vector<int64_t>& sizes) {
    const Parameter& whole = parameter(prefix + name + ".weight");
    std::vector<const Linear*> maps;
    int64_t first_row = 0;
    for (const int64_t rows : sizes) {
      Linear* const map = linear(name);
      map->weight = add_rows(whole, first_row, rows);
      map->first_row = std::exchange(first_row, first_row + rows);
      maps.push_back(map);
    }
    return maps;
  };
  const auto norm = [&](const std::string& name) {
    return RmsNorm{&parameter(prefix + name + ".weight"), config_.rms_norm_eps, config_.norm_adds_one};
  };
  const auto mlp = [&](const std::string& name) {
    return GatedMlp{linear(name + ".gate_proj", config_.mlp_bias),
                    linear(name + ".up_proj", config_.mlp_bias),
                    linear(name + ".down_proj", config_.mlp_bias), config_.hidden_act};
  };

  DecoderLayer::Weights weights;
  weights.input_layernorm = norm("input_layernorm");
  if (config_.fused_projections) {
    const int64_t keys = config_.num_key_value_heads * config_.head_dim;
    const auto qkv =
        parts("self_attn.qkv_proj", {config_.num_attention_heads * config_.head_dim, keys, keys});
    std::tie(weights.q_proj, weights.k_proj, weights.v_proj) = std::tie(qkv[0], qkv[1], qkv[2]);
  } else {
    weights.q_proj = linear("self_attn.q_proj", config_.qkv_bias);
    weights.k_proj = linear("self_attn.k_proj", config_.qkv_bias);
    weights.v_proj = linear("self_attn.v_proj", config_.qkv_bias);
  }
  weights.o_proj = linear("self_attn.o_proj", config_.o_bias);
  if (config_.qk_norm) {
    weights.q_norm = norm("self_attn.q_norm");
    weights.k_norm = norm("self_attn.k_norm");
  }
  weights.post_attention_layernorm = norm("post_attention_layernorm");
  if (config_.sandwich_norms) {
    weights.pre_feedforward_layernorm = norm("pre_feedforward_layernorm");
    weights.post_feedforward_layernorm = norm("post_feedforward_layernorm");
  }
  if (config_.is_sparse(index)) {
    weights.mixture = {
        linear("mlp.gate"), {}, config_.mixture.num_experts_per_tok, config_.mixture.norm_topk_prob};
    for (int64_t expert = 0; expert < config_.mixture.num_experts; ++expert)
      weights.mixture.experts.push_back(mlp(fmt::format("mlp.experts.{}", expert)));
  } else if (config_.fused_projections) {
    const auto maps = parts("mlp.gate_up_proj", {config_.intermediate_size, config_.intermediate_size});
    weights.mlp = {maps[0], maps[1], linear("mlp.down_proj"), config_.hidden_act};
  } else {
    weights.mlp = mlp("mlp");
  }
  return {config_, index, std::move(weights)};
}

Model::Model(const Config& config, const Placement& placement,
             const std::function<void(Parameter&, ParameterRole)>& fill)
    : config_(config), placement_(placement) {
  for (const ParameterShape& shape : parameter_shapes(config)) {
    fill(add_parameter(shape, !placement.trainable || placement.trainable(shape.name)), shape.role);
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_.push_back(make_layer(i));
  embedding_ = &parameter("model.embed_tokens.weight");
  norm_ = {&parameter("model.norm.weight"), config.rms_norm_eps, config.norm_adds_one};
  if (config.value_model) {
    value_head_ = add_linear("score", "score.weight");
  } else {
    head_ = add_linear("lm_head", config.tie_word_embeddings ? embedding_->name : "lm_head.weight");
  }
  embedding_scale_ = at::scalar_tensor(config.embedding_scale, placement.dtype).item<double>();
}

Model Model::load(const Checkpoint& checkpoint, const Placement& placement) {
  return Model(checkpoint.config(), placement, [&](Parameter& parameter, ParameterRole) {
    read_into(checkpoint.stored(parameter.name), parameter.value);
  });
}

Model Model::random(const Config& config, const Placement& placement, uint64_t seed) {
  uint64_t stream = seed;
  return Model(config, placement, [&](Parameter& parameter, ParameterRole role) {
    stream += 0x9E3779B97F4A7C15;  // each parameter its own seed
    if (!has_values(placement.device)) return;
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
    const bool is_norm = role == ParameterRole::kNorm;
    parameter.value.copy_(is_norm && !config.norm_adds_one ? noise + 1.0 : noise);
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

RopeTable Model::rope_of(const RopeSettings& rope, const Batch& batch) const {
  const std::vector<double> frequencies =
      rope_inverse_frequencies(rope, config_.rotary_dim, rope_length(batch));
  return rope_table(batch.positions.to(device()),
                    at::tensor(at::ArrayRef<double>(frequencies), at::kDouble).to(device()),
                    rope.attention_factor, dtype());
}

Stream Model::prepare(const Batch& batch) const {
  const MemoryScope scope("batch");
  for (const auto& rows : trained_rows_) rows->write();  // a step may have moved them
  Stream stream;
  stream.batch = batch;
  stream.batch.tokens = batch.tokens.to(device());
  stream.batch.targets = batch.targets.to(device());
  stream.rope = rope_of(config_.rope, batch);
  if (config_.local_rope) stream.local_rope = rope_of(*config_.local_rope, batch);
  return stream;
}

at::Tensor Model::embed(const at::Tensor& tokens) const {
  at::Tensor rows = gather_rows(embedding_->value, tokens);
  if (embedding_adapter_ && embedding_adapter_->enabled) {
    const LowRankAdapter& adapter = *embedding_adapter_;
    rows.addmm_(gather_rows(adapter.a->value.t(), tokens), adapter.b->value.t(), /*beta=*/1, adapter.scale);
  }
  return embedding_scale_ == 1.0 ? rows : rows.mul_(embedding_scale_);
}

void Model::accumulate_embedding(const at::Tensor& tokens, at::Tensor dx) {
  if (embedding_scale_ != 1.0) dx.mul_(embedding_scale_);  // a whole stream: no copy of it
  // nn.Embedding and PEFT's look-ups hold the row of padding_idx constant: it keeps what it has, which is the
  // head's part where the two are tied.
  const auto add_rows = [&](Parameter& parameter, const at::Tensor& d) {
    if (!parameter.trainable()) return;
    if (!config_.pad_token_id) return accumulate_rows(parameter, tokens, d);
    const at::Tensor row = parameter.gradient.narrow(0, *config_.pad_token_id, 1);
    const at::Tensor kept = row.clone();
    accumulate_rows(parameter, tokens, d);
    row.copy_(kept);
  };
  add_rows(*embedding_, dx);
  if (embedding_rows_ != nullptr) accumulate_trained_rows(*embedding_rows_, tokens, dx);
  if (!embedding_adapter_ || !embedding_adapter_->trainable()) return;
  const LowRankAdapter& adapter = *embedding_adapter_;
  accumulate_product(*adapter.b, dx, gather_rows(adapter.a->value.t(), tokens).mul_(adapter.scale));
  Parameter columns;
  columns.gradient = adapter.a->gradient.t();
  add_rows(columns, at::mm(dx, adapter.b->value).mul_(adapter.scale));
}

int64_t Model::lowest_trainable_layer() const {
  if (!embedding_parameters().empty()) return -1;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].trainable()) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(layers_.size());
}

}  // namespace streambp
