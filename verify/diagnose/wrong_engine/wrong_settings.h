// What a wrong engine does wrong: the mistakes that training code makes, one field each. Nothing is set: it
// is right.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::verify {

/// Runs of tokens that some engine works on at a time.
struct Cut {
  enum class Along {
    kSequence,  // tokens of a sequence, counted from its first
    kColumns,   // columns of the padded input
    kStream,    // the packed stream of all real tokens
    kFlat,      // the padded input, row after row
    kScored,    // the scored tokens of the stream
    kRows,      // rows of the padded input
  };
  Along along = Along::kSequence;
  int64_t size = 0;  // 0: not cut

  bool operator==(const Cut&) const = default;
};

/// The given advantages, changed before they are used, group by group of neighbouring sequences.
struct AdvantageChange {
  enum class Kind { kNone, kCentred, kWhitened } kind = Kind::kNone;
  int64_t group = 0;         // sequences of a group; 0: all
  bool over_tokens = false;  // mean and deviation are of the tokens, not of the sequences
  double eps = 0.0;          // added to the deviation

  bool operator==(const AdvantageChange&) const = default;
};

/// Which part of a tied embedding's gradient is there how often.
struct TiedGradient {
  double input = 1.0;
  double head = 1.0;

  bool operator==(const TiedGradient&) const = default;
};

/// Sums that are kept in bfloat16.
enum class NarrowSums {
  kNone,
  kEmbedding,  // rows of the embedding's gradient, token by token (index_add_)
  kVectors,    // those, and the gradients of norms and biases, token by token
  kRows,       // every gradient, row by row of the padded input (accumulation steps of one row)
  kRounded,    // no sum, but every gradient in the end
};

/// What of the rotation is kept in bfloat16.
enum class NarrowRotation {
  kNone,
  kFrequencies,  // inv_freq, as a model's buffers are when all of it is cast
  kTables,       // cosines and sines
};

/// What of the forward pass is rounded to bfloat16 besides.
enum class NarrowValues {
  kNone,
  kAttention,  // attention's probabilities
  kRouter,     // the routers' logits
  kLogits,     // the head's
  kAdapters,   // adapters' own matrices
};

/// Norms that are not there.
enum class MissingNorm { kNone, kHeads, kAfterAttention, kAfterMlp, kFinal };

/// What attention gives padding, which sees nothing, where later layers hear of it.
enum class BlindQueries {
  kThemselves,
  kRow,           // the mean of its row's values, as a softmax over equal scores
  kRowWithSlope,  // the same, whose gradient flows to the scores, as where a mask is added to them
  kNothing,       // zero
};

/// In packed rows, the layers, or the parts of them, that don't know where a document begins.
enum class Leak { kNone, kRecurrent, kState, kConvolution, kWindows, kFull };

/// What is wrong with the weights of a token's experts.
enum class WrongExperts {
  kNone,
  kCorrectedWeights,  // what is added to scores for the choice stays in them
  kWeightedInputs,    // they multiply what experts read, not what they give
  kReversedWeights,   // the experts of a token have them in the reverse order
  kLostExpert,        // what one of them gives, lost_expert, is not there
  kFirstAlone,        // the first that is chosen alone answers
  kEqualWeights,      // all that are chosen count alike
  kOthers,            // in place of each another answers, expert_shift further on
  kCapacity,          // an expert drops the tokens that come after the first expert_capacity
};

/// What is wrong within a recurrent layer's rule.
struct WrongRecurrence {
  bool heads_not_normed = false;  // queries and keys of a delta rule are taken as they are
  bool no_activation = false;     // behind the convolution
  bool no_decay = false;          // the state keeps what it has
  double beta = 1.0;              // of a delta rule: what beta is multiplied by

  bool operator==(const WrongRecurrence&) const = default;
};

/// A way that gradients flow in a layer, which the backward pass leaves out.
enum class LostPath {
  kNone,
  kResidualOfMlp,        // what the MLP's output is added to
  kResidualOfAttention,  // what attention's output is added to
  kAdapters,             // from adapters to what they read
  kMlp,                  // from the MLP to what it reads
  kAttention,            // from attention to what it reads
};

/// A residual whose gradient is another than that of what it is added to: before the MLP, before attention,
/// or both.
struct WrongResidual {
  enum class How {
    kRight,
    kThroughNorm,  // it goes through the slope of the norm behind it, as where a fused sum and norm adds too
                   // early
    kTwice,        // it is there twice
  } how = How::kRight;
  bool before_mlp = true, before_attention = true;

  bool operator==(const WrongResidual&) const = default;
};

/// The op whose backward pass is another's, where the forward pass is right.
enum class WrongSlope {
  kNone,
  kNormConstant,    // norms: the mean square is taken for a constant
  kNormWeightless,  // norms: what they read has no weight in its gradient
  kNormOtherOne,    // norms: it has the weight where it should have 1 + weight, or the reverse
  kTurnsFurther,    // rotation: gradients turn as the heads do, not back
  kGateConstant,    // MLPs: the activated gate is taken for a constant
  kUpConstant,      // MLPs: what the up projection gives is
  kGateLinear,      // MLPs: the activation's slope is that of a linear map, activated / gate
  kOtherGelu,       // MLPs: it is that of GELU's other form
  kGateAlone,       // MLPs: what they read has the gate projection's gradient alone
  kUpAlone,         // MLPs: it has the up projection's alone
  kMlpShard,        // MLPs: it has that of one half of their columns alone
  kAttentionShard,  // attention: what it reads has the gradient of one half of its heads alone
  kNormNone,        // norms: no gradient goes through them, to what they read or to their weight
  kRouterNone,      // routers: no gradient reaches them through the experts' weights
  kRouterSum,       // routers: the sum that chosen weights are divided by is taken for a constant
};

/// Which of the query heads that share a key's or value's head send it a gradient.
enum class GroupSum {
  kAll,
  kInTurn,  // every n-th head of all, as where heads were repeated in turn
  kFirst,
  kLast,
  kMean,  // all, and their mean is taken
};

/// Of which tokens, or of which heads, parameters of the layers have gradients of their own: what flows
/// through them is right.
enum class OwnShare {
  kAll,
  kFirstColumns,  // of the padded input, the first half
  kFirstHeads,    // norms of heads: the first half
};

/// Whose gradients are those of attention with the mistakes that are asked for, where the forward pass has
/// none.
enum class SlopeAlone { kNone, kAll, kQueries, kKeysAndValues };

/// How attention to blocks of keys is put together without the blocks' log-sum-exp.
enum class BlockMerge {
  kRight,
  kSum,         // what each block gives, its own softmax, is added up
  kMeanOfSeen,  // the mean of the blocks of which a query sees anything
  kMeanOfAll,   // of all blocks
};

/// Two kinds of parameters that have each other's values: names that differ in `one` and `other` alone.
struct Exchange {
  std::string one, other;     // one empty: none have
  bool values_alone = false;  // gradients are under the names that hold the values, not under their own

  bool operator==(const Exchange&) const = default;
};

/// What linear maps of the layers read, rounded to float8 (e4m3).
struct NarrowInputs {
  std::string endings;    // of the maps' weights, each with a blank behind it; empty: of none
  bool by_token = false;  // each token's numbers are scaled by their largest

  bool operator==(const NarrowInputs&) const = default;
};

/// What is done to the values of parameters of one kind (other_weights.h).
struct WeightChange {
  enum class How {
    kZero,              // they are 0
    kAbsent,            // they are 0, and no gradient reaches them
    kReversed,          // along their last dimension
    kTimes,             // they are `factor` times as large
    kRolled,            // of each `rows` rows the first are `by` further down, the last ones first
    kTransposed,        // of square ones
    kTransposedValues,  // the same, and gradients are those of the values that are there
    kHeadsInTurn,       // heads' columns, of `by` ranks each head's turn within a rank comes before the rank
    kAbsentTail,        // of each `rows` rows the last `by` are 0, and no gradient reaches them
    kInt8Rows,          // rounded to int8, each row by its largest, as weights that are quantised
    kInt8,              // all by the largest
    kFloat8Rows,        // the same to float8 (e4m3)
    kFloat8,
  };
  std::string kind;  // kAllMatrices: those of all layers
  How how = How::kZero;
  int64_t rows = 0, by = 0;
  double factor = 2.0;

  bool operator==(const WeightChange&) const = default;
};

/// Weights that are off by so many times a direction.
struct WeightStep {
  std::shared_ptr<const std::map<std::string, at::Tensor>> along;  // by name; null: they are not
  double size = 0.0;

  bool operator==(const WeightStep&) const = default;
};

/// What indexers pick in a pass, and what rows see in place of that.
struct PickControl {
  /// Of a layer the picks of all its rows, or of some.
  struct Order {
    at::Tensor rows;   // int64
    at::Tensor picks;  // [rows, width] int32
  };
  std::map<int64_t, Order> orders;
  std::map<int64_t, at::Tensor> picked;  // receives what each layer's indexer picks, [N, width]
  /// Receives how many rows of a layer leave out one with the very score of one that they pick.
  std::map<int64_t, int64_t> tied_rows;
};

struct WrongSettings {
  /// No mistake: the backward pass ends with the head, whose gradients alone, and the last norm's, are made.
  bool head_alone = false;
  int64_t top_layers = 0;  // then those of so many layers below it are made too

  // Targets.
  int64_t target_shift =
      0;  // 1: logits are scored on the label at their own position; -1: on the one after the next
  bool first_label = false;     // with a shift of 1: a row's first token is its own label
  bool no_last_column = false;  // tokens of the last column have no target
  bool padding_runs = false;    // padding is among the tokens, and no other token sees it
  std::vector<int64_t>
      document_starts;          // where documents begin in the stream, and its end; empty: where they do
  bool positions_stay = false;  // then positions begin where documents should
  bool padding_scored = false;  // padding counts among the labels
  bool prompt_scored = false;   // so do tokens that have none: their next one is
  Cut labels_of_chunk;          // labels are shifted within a chunk: its last token has none
  Cut normaliser;               // the mean of the chunks' means
  std::map<std::string, std::string> options;  // of the objective, instead of the given ones
  bool reference_is_policy = false;
  bool old_is_policy = false;
  int64_t old_shift = 0,
          reference_shift = 0;  // how many tokens later the log-probabilities of each token stand
  AdvantageChange advantages;
  /// The sequence whose reference's log-probabilities, or advantages, each sequence has; empty: its own.
  std::vector<int64_t> reference_order, advantage_order;

  // Attention.
  bool padding_visible = false;
  bool ignores_documents = false;
  bool ignores_windows = false;
  int64_t window_offset = 0;
  Cut own_chunk_only;    // keys and values of earlier chunks are lost
  Cut top_left;          // a chunk's first query is aligned with the sequence's first key
  Cut sees_whole_chunk;  // no causal mask within a chunk
  Cut detached;          // no gradient flows to keys and values of earlier chunks
  Leak leak = Leak::kNone;
  bool padding_in_states = false;  // recurrent layers take padding on the left for tokens; attention does not
  BlindQueries blind = BlindQueries::kThemselves;
  Cut state_restart, convolution_restart;  // recurrent layers' begin anew at each chunk
  int64_t key_block = 0;                   // columns of the padded input that a block of block_merge has
  BlockMerge block_merge = BlockMerge::kRight;
  int64_t looks_ahead = 0;          // later tokens that a query sees
  bool prompt_sees_itself = false;  // tokens of a prompt see all of it, later ones too
  double score_factor = 1.0;        // of the scores' scale
  int64_t only_layer = -1;          // whose attention alone has the mistakes above; -1: all layers'
  bool no_attention_softcap = false;
  bool softmax_without_sum =
      false;                       // its backward pass leaves out the sum over keys (FlashAttention's delta)
  bool rotation_straight = false;  // the backward pass takes the rotation for the identity
  bool attention_softcap_straight = false;  // the backward pass takes it for the identity
  bool no_sinks = false;
  bool sinks_share_constant =
      false;  // the backward pass takes the share that sinks leave to keys for a constant
  SlopeAlone slope_alone = SlopeAlone::kNone;
  GroupSum key_sum = GroupSum::kAll, value_sum = GroupSum::kAll;
  bool key_value_heads_in_turn =
      false;  // queries take them in turn (repeat), not in groups (repeat_interleave)

  bool zero_sink = false;             // the softmax has one more logit, of 0
  bool first_unseen = false;          // a sequence's first token is seen by itself alone
  int64_t window_everywhere = 0;      // of layers that see all tokens; 0: none
  bool heads_not_transposed = false;  // what heads give is read as if tokens came first

  // Rotary positions.
  bool positions_by_column = false;  // 0, 1, ... along a row whatever is given
  Cut rope_restart;                  // positions begin anew at each chunk
  int64_t balanced_ranks =
      0;  // that share a row in 2 chunks each, i and 2 n - 1 - i, and count positions on from one to the next
  bool positions_negated = false;
  bool queries_not_rotated = false, keys_not_rotated = false;
  int64_t key_offset = 0;         // that keys' positions are off by
  int64_t key_padding = 0;        // keys' positions are off by so many times the row's left padding
  Cut padding_from_second_chunk;  // positions of all chunks but the first are off by the row's left padding
  int64_t rope_length = 0;        // that tables are made for; 0: the batch's
  NarrowRotation rotation = NarrowRotation::kNone;

  std::shared_ptr<PickControl> picks;  // null: rows see what indexers pick

  // Weights.
  std::string config_change;  // of config_changes.h; empty: none
  std::string config_number;  // of config_changes.h, whose value is config_value; empty: none
  double config_value = 0.0;
  WrongExperts experts = WrongExperts::kNone;
  int64_t expert_capacity = 0, lost_expert = 0, expert_shift = 0;
  std::vector<int64_t> layer_order;  // that run, one after another; empty: all in theirs
  WrongRecurrence recurrence;
  std::vector<WeightChange> weights;
  WeightStep step;
  double teacher_logits = 1.0;      // what a teacher's logits are multiplied by
  double adapter_rank_power = 0.0;  // adapters' scale is off by this power of their rank
  double adapter_scale_factor = 1.0;
  bool adapter_scale_one = false;
  bool head_adapter_bypassed = false;
  bool no_gate_clamps = false;
  MissingNorm missing_norm = MissingNorm::kNone;
  std::vector<std::string> missing_norms;  // kinds of parameters (other_weights.h), by the library's layers
  bool other_head_norms = false;           // each head is normed where all should be together, or the reverse
  bool other_norm_order =
      false;  // heads are normed after their rotation where they should be before, or the reverse
  NarrowValues narrow = NarrowValues::kNone;
  std::string
      narrow_parameters;  // the ending of the names of those that are rounded to bfloat16; empty: none
  Exchange exchange;

  // Loss and gradients.
  bool padding_routed = false;          // a loss that balances the experts counts padding on the right
  bool final_softcap_straight = false;  // the backward pass takes it for the identity
  double target_logits = 0.0;  // this times the mean of the scored tokens' targets' logits is subtracted
  double z_loss = 0.0;         // this times the mean square of the scored tokens' log-sum-exp is added
  double router_z_loss = 0.0;  // this times the mean square of the routers' log-sum-exp, summed over layers
  double more_logits = 0.0;    // so many logits of 0 are in the softmax's sum besides
  std::vector<int64_t> missing_logits;  // entries of the vocabulary that are not in the softmax
  LostPath lost_path = LostPath::kNone;
  OwnShare own_share = OwnShare::kAll;
  WrongResidual residual;
  WrongSlope slope = WrongSlope::kNone;
  bool second_shard = false;            // of the halves the other one
  bool last_norm_is_right = false;      // of norms whose slope is wrong
  bool slope_of_experts_alone = false;  // of MLPs whose slope is wrong
  NarrowInputs narrow_inputs;
  TiedGradient tied;
  bool padding_row_trained = false;  // the embedding has no padding_idx
  NarrowSums sums = NarrowSums::kNone;
  int64_t vocabulary_shards = 0;      // a target's softmax is over its own shard of the vocabulary
  bool even_shards = false;           // all but the last of them of the same size, rounded down, else up
  bool target_slope_rounded = false;  // a target's probability is rounded to bfloat16 before 1 is taken off

  bool operator==(const WrongSettings&) const = default;
};

}  // namespace streambp::verify
