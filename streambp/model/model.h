// A decoder with its parameters on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"
#include "streambp/model/config/config.h"
#include "streambp/model/files/checkpoint.h"
#include "streambp/model/layer.h"
#include "streambp/model/layers/shared_keys_values.h"
#include "streambp/model/lora/lora.h"

namespace streambp {

class WeightProvider;

/// A batch on the model's device, cut into rows on demand.
struct Stream {
  Batch batch;                    // tokens and targets on the device
  RopeTable rope;                 // of all tokens
  RopeTable local_rope;           // for layers with a window, where the model rotates their heads otherwise
  RopeTable query_rope;           // for queries, where it differs from the keys'
  at::Tensor log_positions = {};  // of all tokens, float64: of 1 + position, where queries are scaled by them
  at::Tensor query_scales = {};   // of all tokens, float64: LatentPositions::query_scales
  /// Where layers read them (Gemma 4): the model's first hidden states [N, D], and where the gradient that
  /// layers leave for them is added (undefined: nobody wants it).
  at::Tensor embedded, embedded_gradient;
  at::Tensor ngrams = {};                    // of all tokens, where layers read them: [N, size]
  std::shared_ptr<SharedKeysValues> shared;  // null where every layer has its own; a pass's own
  std::shared_ptr<RowPicks> picks;           // null where no layer has an indexer; a pass's own
  std::shared_ptr<RouterBalance> balance;    // null where no loss balances the experts; a pass's own
  std::shared_ptr<RouterChoices> choices;  // null where no layer runs twice and none are given; a pass's own
  RouterOutput* router = nullptr;          // of a layer that runs alone, where it is asked for

  int64_t size() const { return batch.size(); }
  /// Tokens [begin, end), begin < end.
  Rows rows(int64_t begin, int64_t end) const;
};

/// Throws InputError for a model without an LM head: Placement::head_dtype is not for it.
void require_lm_head(const Config& config);

class Model {
 public:
  /// Where the parameters live, and in which dtypes.
  struct Placement {
    at::ScalarType dtype = at::kFloat;
    c10::Device device = at::kCPU;
    /// Of the gradients: `dtype`, or float32 for sums wider than a half-precision parameter.
    at::ScalarType gradient_dtype = at::kFloat;
    /// Which parameters need a gradient, by name; empty: all.
    std::function<bool(const std::string&)> trainable = {};
    /// Gradients are deferred from the outset (defer_gradients): no memory is taken for them.
    bool defers_gradients = false;
    /// Called with each parameter of the base as soon as it has its value: who provides the values of layers
    /// (provide) takes them here, before the next parameter's memory is asked for.
    std::function<void(Parameter&)> filled = {};
    /// Some weights are quantised as they are stored. Where they are, or `filled` is there, all parameters
    /// have a storage of their own, which comes and goes; else one map of a layer's experts has one together.
    bool is_quantized = false;
    /// Of lm_head, its input and its logits, where that is wider than `dtype` (TRL's cast_lm_head_to_fp32);
    /// of an embedding that is the head as well, whose rows are `dtype` after it is looked up. See
    /// require_lm_head.
    std::optional<at::ScalarType> head_dtype = {};
  };

  /// The weights of a folder, converted to the placement's dtype.
  static Model load(const Checkpoint& checkpoint, const Placement& placement);

  /// Random weights: normal with deviation 0.02, norms around 1. The same seed gives the same values on every
  /// device, but for parameters of 2^24 numbers and more, which a GPU draws itself.
  static Model random(const Config& config, const Placement& placement, uint64_t seed);

  /// A model without values, for tensors that somebody else owns: see lend(). Adapters may be attached to it.
  /// `device`: where they will be; `head_dtype`: Placement's.
  static Model skeleton(const Config& config, at::ScalarType dtype, c10::Device device,
                        std::optional<at::ScalarType> head_dtype = {});

  /// Of a skeleton: these are the parameters of the names from now on, and their gradients, which passes add
  /// to; nothing is copied. Parameters without a gradient are frozen. Values may be fewer than the model has:
  /// a pass uses those of its layers. All tensors are the model's dtype (lm_head's its own), of their
  /// parameter's shape, on one device, and contiguous. Throws InputError naming a tensor that is not so, or
  /// unknown.
  void lend(const std::map<std::string, at::Tensor>& values,
            const std::map<std::string, at::Tensor>& gradients);

  /// Of a skeleton: the rotary embedding's frequencies [rotary_dim / 2] float64 as somebody else's module has
  /// them, and its factor, in place of those of the config; nothing: the config's. Throws InputError for
  /// another number of frequencies.
  struct GivenRope {
    at::Tensor frequencies;
    double attention_factor = 1.0;
  };
  void give_rope(std::optional<GivenRope> rope, std::optional<GivenRope> local);

  /// Stands for a model of transformers, whose indexers pick other rows of equal scores on a CPU: passes
  /// throw InputError where such picks decide.
  void refuse_tied_picks() { refuses_tied_picks_ = true; }

  /// Lets go of all that was lent.
  void give_back();

  /// The shape of each of a skeleton's parameters, by name. Filled by give_back().
  const std::map<std::string, std::vector<int64_t>>& skeleton_shapes() const { return skeleton_shapes_; }

  /// From now on the values of the layers' parameters come from `provider` (null: they are all there), which
  /// methods ask for a layer before they run it: see LayerWeights.
  void provide(std::shared_ptr<WeightProvider> provider) { provider_ = std::move(provider); }
  /// Null where all values are there.
  WeightProvider* provider() const { return provider_.get(); }

  const Config& config() const { return config_; }
  c10::Device device() const { return placement_.device; }
  at::ScalarType dtype() const { return placement_.dtype; }
  /// Of the rows that enter the LM head, of its parameters and of the logits.
  at::ScalarType head_dtype() const { return placement_.head_dtype.value_or(placement_.dtype); }

  /// In the order of parameter_shapes(config).
  const std::vector<std::unique_ptr<Parameter>>& parameters() const { return parameters_; }
  /// Throws InputError if there is none of this name.
  Parameter& parameter(const std::string& name) const;

  /// The gradients of all trainable parameters by Hugging Face's names: the tensors themselves, which passes
  /// add to. Without those that defer_gradients has freed.
  std::map<std::string, at::Tensor> gradients() const;

  void zero_gradients();

  /// Frees the gradients of all trainable parameters, for passes that consume gradients: they come back with
  /// allocate_gradients, zero, and go with defer_gradients.
  void defer_gradients();
  void defer_gradients(const std::vector<Parameter*>& parameters);
  void allocate_gradients(const std::vector<Parameter*>& parameters);

  /// Makes `gradient`, of its shape, the one that passes add to, for the parameter and its parts.
  void replace_gradient(Parameter& parameter, at::Tensor gradient);

  /// The trainable parameters, or all, of a layer; of what the head's pass uses (final norm, heads); the
  /// trainable ones of the embedding, with those that make per-layer inputs.
  std::vector<Parameter*> layer_parameters(int64_t layer, bool trainable_alone = true) const;
  std::vector<Parameter*> head_parameters(bool trainable_alone = true) const;
  std::vector<Parameter*> embedding_parameters() const;
  /// The trainable parameters that a layer's backward pass adds to: its own, and those of a shared block that
  /// it runs, which are among embedding_parameters(), because they are final as late.
  std::vector<Parameter*> parameters_added_to(int64_t layer) const;

  /// Adds adapters to the targeted maps: A random as PEFT draws it (uniform within 1/sqrt(in)), B zero
  /// (of the embedding: A zero, B normal). Modules to save get a copy that is trained instead of the
  /// base's. Base weights stay as the placement has them: freeze them there.
  void attach_adapters(const LoraConfig& lora, uint64_t seed);

  /// The adapters of a PEFT folder. Throws InputError naming a tensor that is missing, surplus or of the
  /// wrong shape.
  void load_adapters(const std::filesystem::path& folder);

  /// Writes a PEFT folder: adapter_config.json and adapter_model.safetensors.
  void save_adapters(const std::filesystem::path& folder, const std::string& base) const;

  bool has_adapters() const { return lora_.has_value(); }

  /// With adapters off the model is its base: the reference model of LoRA training. Trained biases stay, as
  /// PEFT has it.
  void enable_adapters(bool enabled);

  /// Adds each adapter to its base weight, W += scale * B A, writes saved modules and trained rows over the
  /// base's, and takes all that away. A head that was the embedding becomes a weight of its own where
  /// they differ. Throws InputError for an adapter with a bias for a map without one.
  void merge_adapters();

  /// Adds a value head [1, D] to the model. Throws InputError for another shape.
  void attach_value_head(const at::Tensor& weight);

  /// Takes `batch` to the device and computes its rotary tables.
  Stream prepare(const Batch& batch) const;

  const std::vector<DecoderLayer>& layers() const { return layers_; }
  const RmsNorm& norm() const { return norm_; }
  /// Of what the final norm reads, where it is a sum of several residual streams by gates.
  const StreamGates& head_gates() const { return head_gates_; }
  /// With Config::has_low_rank_streams() what the heads read goes through this instead, and norm() is its.
  const StreamMixer& head_mixer() const { return head_mixer_; }
  /// The embedding itself where the model ties them.
  const Linear& head() const { return *head_; }
  bool has_head() const { return head_ != nullptr; }
  /// A critic's score, or the head that attach_value_head put there.
  const Linear& value_head() const { return *value_head_; }
  bool has_value_head() const { return value_head_ != nullptr; }

  /// Rows of the embedding for `tokens` [n], times Config::embedding_scale, or normed: [n, D], once for each
  /// residual stream.
  at::Tensor embed(const at::Tensor& tokens) const;
  /// Adds dx [n, D], which may be overwritten, to the gradient of the embedding's rows, but for the row of
  /// Config::pad_token_id.
  void accumulate_embedding(const at::Tensor& tokens, at::Tensor dx);

  /// The lowest layer whose input needs no gradient although the layer itself or one above it may: backward
  /// passes end there. -1 where the embedding needs a gradient, the number of layers where only the final
  /// norm or the head do.
  int64_t lowest_trainable_layer() const;

 private:
  Model(const Config& config, const Placement& placement,
        const std::function<void(Parameter&, ParameterRole)>& fill);

  std::vector<Parameter*> present_embedding_parameters() const;
  /// Memory for the weights of each map of a layer's experts, one of all (see ops/mlp/grouped_experts.h).
  class ExpertStacks {
   public:
    /// A parameter's, one of `experts` or another.
    at::Tensor place(const ParameterShape& shape, int64_t experts, const at::TensorOptions& options);

   private:
    std::map<std::string, at::Tensor> all_;  // by name, less the expert's number
  };
  Parameter& add_parameter(const ParameterShape& shape, bool trainable, ExpertStacks* stacks = nullptr);
  Linear* add_linear(const std::string& name, const std::string& weight, const std::string& bias = "");
  /// A part of `whole` as a parameter over the same storage.
  using View = std::function<at::Tensor(const at::Tensor&)>;
  Parameter* add_part(const Parameter& whole, View view);
  /// Rows [first_row, first_row + rows) of it.
  Parameter* add_rows(const Parameter& whole, int64_t first_row, int64_t rows);
  void renew_parts(const Parameter& whole);
  using MapsByName = std::unordered_map<std::string, std::vector<Linear*>>;
  void attach(const LoraTarget& target, const LoraConfig& lora, const MapsByName& maps,
              at::Generator generator);
  void attach_to_experts(const LoraTarget& target, const LowRankAdapter& whole, const MapsByName& maps);
  void save_parameter(const std::string& name);
  void train_rows(const std::string& name, const std::vector<int64_t>& tokens);
  Linear& map_of(const std::string& name);
  void rename(Parameter& parameter, const std::string& name);
  void split_head();
  void take_saved_parameters();
  /// The map of `name`'s weight, and bias where it has one; one that is added to the residual stream.
  Linear* add_map(const std::string& name, bool bias);
  Linear* add_residual_map(const std::string& name, bool bias);
  /// The maps of `sizes` rows that stand one after another in one; what each gives is multiplied by its
  /// entry of `scales`, where there are.
  std::vector<const Linear*> add_fused_maps(const std::string& name, const std::vector<int64_t>& sizes,
                                            const std::vector<double>& scales = {}, bool bias = false);
  /// One expert's map in the two tensors of all: [in, out] of [experts, in, out], [out] of [experts, out].
  Linear* add_expert_map(const std::string& experts, int64_t expert, const std::string& part);
  RmsNorm norm_of(const std::string& name) const;
  /// One without a weight of its own, over `size` numbers.
  RmsNorm plain_norm(int64_t size);
  /// Those of the `which`-th weights that the parameters `names` (with a dot) are of.
  StreamGates stream_gates(const std::string& names, int64_t which, double magnitude, double eps);
  /// Those of what a half of a layer gives, and how the streams are mixed first.
  StreamGates gates_of_given(const std::string& names);
  GatedMlp make_mlp(const std::string& name, bool of_expert = false);
  GatedMlp make_fused_mlp(const std::string& name, int64_t width);
  NgramInput make_ngrams(const std::string& name, int64_t index);
  StreamMixer stream_mixer(const std::string& names, bool gives);
  /// Gives all MLPs of a layer the clamped gate.
  void clamp_all(DecoderLayer::Weights& weights) const;
  Mixture make_mixture(const std::string& name, int64_t index);
  Mixture make_granite_mixture(const std::string& prefix);
  /// Experts that are parts of two tensors of all, `gate_up` [experts, 2 F, D], the gate's rows before the
  /// up's, and `down` [experts, D, F]; adapters know them as `name`'s.
  void add_stacked_experts(const std::string& name, const std::string& gate_up, const std::string& down,
                           Mixture& mixture);
  void make_mixture_next_to_mlp(const std::string& prefix, DecoderLayer::Weights& weights);
  PerLayerInput make_per_layer_input(const std::string& prefix, int64_t index);
  /// embed() before any norm.
  at::Tensor looked_up(const at::Tensor& tokens) const;
  void make_attention(const std::string& name, int64_t index, DecoderLayer::Weights& weights);
  void make_delta_rule(const std::string& name, DecoderLayer::Weights& weights);
  /// The same where each channel has its gate.
  void make_channel_rule(const std::string& name, DecoderLayer::Weights& weights);
  void make_latent(const std::string& name, int64_t index, DecoderLayer::Weights& weights);
  /// The block that layer `index`, `prefix`, runs before its state space; its projections are `weights`'.
  SharedBlock make_shared_block(const std::string& prefix, int64_t index, DecoderLayer::Weights& weights);
  void make_compressed(const std::string& name, int64_t index, DecoderLayer::Weights& weights);
  Compressor make_compressor(const std::string& name, int64_t index);
  /// Of the parameter `name`: the model's, but of a kCorrection and of what belongs to lm_head.
  at::ScalarType dtype_of(const std::string& name) const;
  /// The gradient of a parameter that has `value`, zero: in the placement's gradient_dtype, or the value's
  /// own where that is wider.
  at::Tensor zero_gradient(const at::Tensor& value) const;
  DecoderLayer make_layer(int64_t index);
  /// `row_factors` as in rope_table.
  RopeTable rope_of(const RopeSettings& rope, const std::optional<GivenRope>& given, int64_t rotary_dim,
                    const Batch& batch, const at::Tensor& row_factors = {}) const;

  Config config_;
  Placement placement_;
  std::shared_ptr<WeightProvider> provider_;
  bool is_skeleton_ = false;
  bool refuses_tied_picks_ = false;
  c10::Device lender_ = at::kCPU;  // of a skeleton: where what it is lent lies
  std::map<std::string, std::vector<int64_t>> skeleton_shapes_;
  std::optional<GivenRope> given_rope_, given_local_rope_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::unordered_map<std::string, Parameter*> by_name_;
  struct Part {
    std::unique_ptr<Parameter> parameter;
    View view;
  };
  std::unordered_map<const Parameter*, std::vector<Part>> parts_;  // of fused parameters
  std::vector<std::unique_ptr<Linear>> maps_;                      // those of the layers, then the heads
  std::map<int64_t, std::unique_ptr<Parameter>> ones_;  // weights of norms without any, by size; frozen
  std::optional<LoraConfig> lora_;
  /// A parameter that is trained instead of the base's, whose value it shows while adapters are off.
  struct SavedParameter {
    Parameter* trained;
    Parameter* base;
    at::Tensor value;  // the trained one, while they are off
  };
  std::vector<SavedParameter> saved_;
  std::vector<std::pair<Parameter*, std::string>> trained_biases_;  // and their names in the base
  std::vector<std::unique_ptr<TrainedRows>> trained_rows_;
  const TrainedRows* embedding_rows_ = nullptr;
  std::optional<LowRankAdapter> embedding_adapter_;  // A [r, V], B [D, r]
  std::vector<DecoderLayer> layers_;
  Parameter* embedding_ = nullptr;
  RmsNorm norm_;
  StreamGates head_gates_;  // only with Config::has_head_gates()
  StreamMixer head_mixer_;  // only with Config::has_low_rank_streams()
  const Linear* head_ = nullptr;
  const Linear* value_head_ = nullptr;
  double embedding_scale_ = 1.0;  // rounded where the config says so
  RmsNorm embedding_norm_;        // only with Config::plain_norms
  Parameter* alpha_ = nullptr;    // of rotary frequencies, where these are trained
};

/// While it lives the model's adapters are left out, whatever is thrown meanwhile.
class AdaptersOff {
 public:
  explicit AdaptersOff(Model& model) : model_(model) { model_.enable_adapters(false); }
  ~AdaptersOff() { model_.enable_adapters(true); }
  AdaptersOff(const AdaptersOff&) = delete;
  AdaptersOff& operator=(const AdaptersOff&) = delete;

 private:
  Model& model_;
};

}  // namespace streambp
