#include "streambp/model/model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/tensor_file.h"
#include "streambp/ops/rows.h"

namespace streambp {

Rows Stream::rows(int64_t begin, int64_t end) const {
  const auto& offsets = batch.offsets;
  Rows rows{begin, end, {0}, 0, rope.rows(begin, end)};
  // The last sequence that begins at or before `begin` and is not empty there.
  auto next = std::upper_bound(offsets.begin(), offsets.end(), begin);
  rows.sequence_begin = *(next - 1);
  for (; next != offsets.end() && *next < end; ++next) {
    if (*next - begin != rows.offsets.back()) rows.offsets.push_back(*next - begin);
  }
  rows.offsets.push_back(end - begin);
  return rows;
}

at::Tensor rope_inverse_frequencies(const Config& config) {
  const RopeSettings& rope = config.rope;
  std::vector<double> frequencies(static_cast<size_t>(config.head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double& frequency = frequencies[i];
    frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (rope.type == RopeType::kLinear) frequency /= rope.factor;
    if (rope.type == RopeType::kLlama3) {
      const auto original = static_cast<double>(rope.original_max_position_embeddings);
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      if (wavelength > original / rope.low_freq_factor) {
        frequency /= rope.factor;
      } else if (wavelength >= original / rope.high_freq_factor) {
        const double smooth =
            (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
      }
    }
  }
  return at::tensor(at::ArrayRef<double>(frequencies), at::kDouble);
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
  return *parameters_.emplace_back(std::move(parameter));
}

const Linear* Model::add_linear(const std::string& name, const std::string& weight, const std::string& bias) {
  auto map = std::make_unique<Linear>();
  map->name = name;
  map->weight = &parameter(weight);
  if (!bias.empty()) map->bias = &parameter(bias);
  return maps_.emplace_back(std::move(map)).get();
}

Model::Model(const Config& config, const Placement& placement, const std::function<void(Parameter&)>& fill)
    : config_(config), placement_(placement) {
  for (const ParameterShape& shape : parameter_shapes(config)) {
    fill(add_parameter(shape, !placement.trainable || placement.trainable(shape.name)));
  }
  const auto linear = [&](const std::string& name, bool bias) {
    return add_linear(name, name + ".weight", bias ? name + ".bias" : "");
  };
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    DecoderLayer::Weights weights;
    weights.input_layernorm = &parameter(prefix + "input_layernorm.weight");
    weights.q_proj = linear(prefix + "self_attn.q_proj", config.qkv_bias);
    weights.k_proj = linear(prefix + "self_attn.k_proj", config.qkv_bias);
    weights.v_proj = linear(prefix + "self_attn.v_proj", config.qkv_bias);
    weights.o_proj = linear(prefix + "self_attn.o_proj", config.o_bias);
    if (config.qk_norm) {
      weights.q_norm = &parameter(prefix + "self_attn.q_norm.weight");
      weights.k_norm = &parameter(prefix + "self_attn.k_norm.weight");
    }
    weights.post_attention_layernorm = &parameter(prefix + "post_attention_layernorm.weight");
    weights.gate_proj = linear(prefix + "mlp.gate_proj", config.mlp_bias);
    weights.up_proj = linear(prefix + "mlp.up_proj", config.mlp_bias);
    weights.down_proj = linear(prefix + "mlp.down_proj", config.mlp_bias);
    layers_.emplace_back(config, weights);
  }
  embedding_ = &parameter("model.embed_tokens.weight");
  norm_ = &parameter("model.norm.weight");
  if (config.value_model) {
    value_head_ = linear("score", false);
  } else {
    head_ = add_linear("lm_head", config.tie_word_embeddings ? embedding_->name : "lm_head.weight");
  }
  inverse_frequencies_ = rope_inverse_frequencies(config).to(placement.device);
}

Model Model::load(const Checkpoint& checkpoint, const Placement& placement) {
  return Model(checkpoint.config(), placement, [&](Parameter& parameter) {
    parameter.value.copy_(as_tensor(checkpoint.entry(parameter.name), checkpoint.bytes(parameter.name)));
  });
}

Model Model::random(const Config& config, const Placement& placement, uint64_t seed) {
  uint64_t stream = seed;
  return Model(config, placement, [&](Parameter& parameter) {
    stream += 0x9E3779B97F4A7C15;  // each parameter its own seed
    if (placement.device.is_meta()) return;
    at::Generator generator = at::detail::createCPUGenerator(stream);
    const at::ScalarType drawn = placement.dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor noise =
        at::randn(parameter.value.sizes(), generator, at::TensorOptions().dtype(drawn)).mul_(0.02);
    const bool norm = parameter.value.dim() == 1 && parameter.name.find("norm") != std::string::npos;
    parameter.value.copy_(norm ? noise + 1.0 : noise);
  });
}

Parameter& Model::parameter(const std::string& name) const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const auto& p) { return p->name == name; });
  if (found == parameters_.end())
    throw InputError("{} model: no parameter is named '{}'", config_.family, name);
  return **found;
}

void Model::zero_gradients() {
  for (const auto& parameter : parameters_) {
    if (parameter->trainable()) parameter->gradient.zero_();
  }
}

Stream Model::prepare(const Batch& batch) const {
  const MemoryScope scope("batch");
  Stream stream{batch, {}};
  stream.batch.tokens = batch.tokens.to(device());
  stream.batch.targets = batch.targets.to(device());
  stream.rope = rope_table(batch.positions.to(device()), inverse_frequencies_, dtype());
  return stream;
}

at::Tensor Model::embed(const at::Tensor& tokens) const {
  return gather_rows(embedding_->value, tokens);
}

void Model::accumulate_embedding(const at::Tensor& tokens, const at::Tensor& dx) {
  accumulate_rows(*embedding_, tokens, dx);
}

int64_t Model::lowest_trainable_layer() const {
  if (embedding_->trainable()) return -1;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].trainable()) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(layers_.size());
}

}  // namespace streambp
