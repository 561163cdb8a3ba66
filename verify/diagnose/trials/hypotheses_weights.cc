// Hypotheses about single kinds of weights: left out, turned round, norms that are missing or taken
// otherwise.
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "streambp/model/config/parameter_shapes.h"
#include "verify/diagnose/trials/hypotheses_table.h"
#include "verify/diagnose/wrong_engine/other_weights.h"

namespace streambp::verify {
namespace {

using How = WeightChange::How;

/// Experts are left out one by one where there are no more.
constexpr int64_t kMostLostExperts = 16;

/// What a name of a kind is called in a sentence: without the ending that all have.
std::string called(const std::string& kind) {
  static const std::string kWeight = ".weight";
  return kind.ends_with(kWeight) ? kind.substr(0, kind.size() - kWeight.size()) : kind;
}

bool is_alone(ParameterRole role) {
  return role == ParameterRole::kBias || role == ParameterRole::kPerHead ||
         role == ParameterRole::kConvolution;
}

}  // namespace

void HypothesisTable::backward_rules() {
  add("softmax-without-sum", "softmax's slope",
      "the backward pass of attention's softmax leaves out the sum over the keys (FlashAttention's delta)",
      [](WrongSettings& s) { s.softmax_without_sum = true; });
  if (config_.rotary_dim > 0 || config_.is_latent())
    add("rotation-straight", "rotation's slope",
        "the backward pass takes the rotation of queries and keys for the identity",
        [](WrongSettings& s) { s.rotation_straight = true; });
}

/// What a layer's parts hand on to their input, but for one way.
void HypothesisTable::lost_paths() {
  add("residual-straight-mlp", "residual's slope",
      "no gradient flows through the residual that the MLP is added to: what is below has the MLP's part "
      "alone (a "
      "fused sum and norm sends back the norm's)",
      [](WrongSettings& s) { s.lost_path = LostPath::kResidualOfMlp; });
  add("residual-straight-attention", "residual's slope",
      "no gradient flows through the residual that attention is added to: what is below has attention's part "
      "alone (a "
      "fused sum and norm sends back the norm's)",
      [](WrongSettings& s) { s.lost_path = LostPath::kResidualOfAttention; });
  if (subject_.model.has_adapters())
    add("adapters-straight", "adapters' slope",
        "no gradient flows through the adapters to what they read: the weights they adapt alone send one "
        "back",
        [](WrongSettings& s) { s.lost_path = LostPath::kAdapters; });
}

/// Weights, and what linear maps read, as quantised training has them.
void HypothesisTable::quantised() {
  if (!subject_.model.has_adapters() && !subject_.model.has_value_head()) {
    for (const auto& [name, how, text] :
         {std::tuple{"int8-rows", How::kInt8Rows, "int8, each row with a scale of its own"},
          std::tuple{"int8", How::kInt8, "int8, each matrix with one scale"},
          std::tuple{"float8-rows", How::kFloat8Rows, "float8 (e4m3), each row with a scale of its own"},
          std::tuple{"float8", How::kFloat8, "float8 (e4m3), each matrix with one scale"}})
      add(fmt::format("weights-{}", name), "quantised weights",
          fmt::format("the layers' matrices are quantised: rounded to {}", text),
          [how = how](WrongSettings& s) {
            s.weights = {{kAllMatrices, how}};
          });
  }
  for (const auto& [endings, text] :
       {std::pair{"self_attn.q_proj.weight self_attn.k_proj.weight self_attn.v_proj.weight ",
                  "q_proj, k_proj and v_proj read"},
        std::pair{"self_attn.o_proj.weight ", "o_proj reads"},
        std::pair{"mlp.gate_proj.weight mlp.up_proj.weight ", "gate_proj and up_proj read"},
        std::pair{"mlp.down_proj.weight ", "down_proj reads"},
        std::pair{
            "self_attn.q_proj.weight self_attn.k_proj.weight self_attn.v_proj.weight self_attn.o_proj.weight "
            "mlp.gate_proj.weight mlp.up_proj.weight mlp.down_proj.weight ",
            "the layers' linear maps read"}}) {
    for (const bool by_token : {false, true})
      add(fmt::format("float8-inputs-{}{}", text, by_token ? "-by-token" : ""), "float8 inputs",
          fmt::format("what {} is rounded to float8 (e4m3){}", text,
                      by_token ? ", each token with a scale of its own" : ""),
          [endings = std::string(endings), by_token](WrongSettings& s) {
            s.narrow_inputs = {endings, by_token};
          });
  }
}

/// Parts of a recurrent layer's rule.
void HypothesisTable::recurrences() {
  const DeltaRuleSettings& rule = config_.delta_rule;
  if (rule.value_heads == 0 || rule.convolution_alone || rule.beside_attention) return;
  add("no-activation-behind-convolution", "recurrent rule",
      "there is no activation (SiLU) behind the recurrent layers' convolution",
      [](WrongSettings& s) { s.recurrence.no_activation = true; });
  add("no-decay", "recurrent rule",
      "the recurrent layers' state has no decay (A_log, dt_bias): it keeps what it has",
      [](WrongSettings& s) { s.recurrence.no_decay = true; });
  if (!rule.state_space)
    add("delta-beta-doubled", "recurrent rule",
        "beta of the delta rule is twice as large, up to 2, so that its eigenvalues are negative too "
        "(allow_neg_eigval)",
        [](WrongSettings& s) { s.recurrence.beta = 2.0; });
  if (!rule.state_space)
    add("delta-heads-not-normed", "recurrent rule",
        "queries and keys of the delta rule are not normed (use_qk_l2norm_in_kernel)",
        [](WrongSettings& s) { s.recurrence.heads_not_normed = true; });
}

/// Experts that take no more tokens than their share.
void HypothesisTable::capacities() {
  const auto add_capacities = [&](int64_t tokens, bool padding) {
    std::set<int64_t> seen;
    for (const double factor : {1.0, 1.25, 1.5, 2.0}) {
      const double choices = static_cast<double>(tokens * config_.mixture.num_experts_per_tok);
      const auto capacity = static_cast<int64_t>(
          std::ceil(factor * choices / static_cast<double>(config_.mixture.num_experts) - 1e-9));
      if (capacity >= tokens || !seen.insert(capacity).second) continue;
      add(fmt::format("capacity-{}{}", capacity, padding ? "-with-padding" : ""), "experts",
          fmt::format(
              "an expert takes {} tokens{}, its even share of {} times {:g}, and those that come after are "
              "dropped (capacity_factor)",
              capacity, padding ? ", padding among them" : "", tokens, factor),
          [capacity, padding](WrongSettings& s) {
            s.experts = WrongExperts::kCapacity;
            s.expert_capacity = capacity;
            s.padding_runs = padding;
          });
    }
  };
  add_capacities(batch_.size(), false);
  if (knows_padding()) add_capacities(batch_.padded_rows * batch_.padded_columns, true);
}

void HypothesisTable::experts() {
  if (config_.mixture.num_experts == 0) return;
  if (config_.mixture.num_experts_per_tok > 1)
    add("reversed-weights", "experts",
        "a token's experts have each other's weights: in the reverse order, as where choices are sorted and "
        "weights "
        "are not",
        [](WrongSettings& s) { s.experts = WrongExperts::kReversedWeights; });
  capacities();
  for (int64_t expert = 0;
       expert < config_.mixture.num_experts && config_.mixture.num_experts <= kMostLostExperts; ++expert)
    add(fmt::format("lost-expert-{}", expert), "experts",
        fmt::format("what expert {} gives is lost, as that of a rank that does not answer", expert),
        [expert](WrongSettings& s) {
          s.experts = WrongExperts::kLostExpert;
          s.lost_expert = expert;
        });
  if (config_.mixture.num_experts_per_tok > 1 && config_.mixture.norm_topk_prob)
    add("first-expert-alone", "experts",
        "of a token's experts the first alone answers, with the weight that it has among all",
        [](WrongSettings& s) { s.experts = WrongExperts::kFirstAlone; });
  add("equal-weights", "experts",
      "a token's experts count alike: their routers' scores are not their weights",
      [](WrongSettings& s) { s.experts = WrongExperts::kEqualWeights; });
  for (const int64_t shift : {int64_t{1}, config_.mixture.num_experts - 1, config_.mixture.num_experts / 2})
    add(fmt::format("other-experts-{}", shift), "experts",
        fmt::format("another expert answers than the one that was chosen, the one {} further on of {}", shift,
                    config_.mixture.num_experts),
        [shift](WrongSettings& s) {
          s.experts = WrongExperts::kOthers;
          s.expert_shift = shift;
        });
  add("weighted-inputs", "experts",
      "experts' weights multiply their input, not what they give (apply_router_weight_on_input)",
      [](WrongSettings& s) { s.experts = WrongExperts::kWeightedInputs; });
  if (config_.mixture.corrected)
    add("corrected-weights", "experts",
        "the correction that is added to routers' scores for the choice stays in the experts' weights "
        "(e_score_correction_bias)",
        [](WrongSettings& s) { s.experts = WrongExperts::kCorrectedWeights; });
}

void HypothesisTable::kinds_of_weights() {
  if (subject_.model.has_value_head() || subject_.model.has_adapters()) return;
  std::map<std::string, ParameterShape> kinds;
  for (const ParameterShape& shape : parameter_shapes(config_)) kinds.emplace(kind_of(shape.name), shape);
  for (const auto& [kind, of_kind] : kinds) {
    const ParameterRole role = of_kind.role;
    const std::string name = called(kind);
    if (role == ParameterRole::kNorm) {
      if (kind == "model.norm.weight") continue;  // the last norm
      add(fmt::format("norm-missing-{}", name), "norms", fmt::format("the norm {} is missing", name),
          [kind = kind](WrongSettings& s) { s.missing_norms = {kind}; });
      continue;
    }
    if (role == ParameterRole::kEmbedding || role == ParameterRole::kHead ||
        role == ParameterRole::kIndexer || role == ParameterRole::kHash || kind.ends_with("sinks"))
      continue;
    // What takes no part has no gradient.
    const bool shared = kind.find("shared_expert") != kind.npos && kind.ends_with("down_proj.weight");
    const std::string given = shared ? fmt::format("what the shared expert gives ({})", name) : name;
    add(fmt::format("left-out-{}", name), "left out", fmt::format("{} is left out", given),
        [kind = kind](WrongSettings& s) {
          s.weights = {{kind, How::kAbsent}};
        });
    if (shared)
      add(fmt::format("twice-{}", name), "left out",
          fmt::format("{} is added twice, as where each of two ranks adds it before their sum", given),
          [kind = kind](WrongSettings& s) {
            s.weights = {{kind, How::kTimes}};
          });
    if (is_alone(role))
      add(fmt::format("zero-{}", name), "left out",
          fmt::format("{} is 0, as where it is not loaded, or its value is left out", name),
          [kind = kind](WrongSettings& s) {
            s.weights = {{kind, How::kZero}};
          });
    turned_round(kind, name, of_kind.shape);
  }
  biases(kinds);
  exchanges();
  gates();
  heads_entries(kinds.contains("self_attn.q_norm.weight"));
}

/// Weights in another order of their taps, rows, columns or heads.
void HypothesisTable::turned_round(const std::string& kind, const std::string& name,
                                   const std::vector<int64_t>& shape) {
  const auto add_turned = [&](const char* how, const std::string& text, const WeightChange& change) {
    add(fmt::format("{}-{}", how, name), "turned round", fmt::format("{} {}", name, text),
        [change](WrongSettings& s) { s.weights = {change}; });
  };
  if (shape.size() == 3 && shape[1] == 1)
    add_turned("reversed", "is applied in the reverse order of its taps, flipped", {kind, How::kReversed});
  if (shape.size() != 2) return;
  if (shape[0] == shape[1] && shape[0] > 1) {
    add_turned("transposed", "is applied transposed", {kind, How::kTransposed});
    add_turned("loaded-transposed", "is loaded transposed", {kind, How::kTransposedValues});
  }
  if (kind.ends_with("gate_up_proj.weight"))
    add_turned("halves", "has its halves exchanged: the activation is the up projection's",
               {kind, How::kRolled, shape[0], shape[0] / 2});
  const int64_t heads = config_.num_attention_heads;
  for (int64_t ranks = 2; kind == "self_attn.o_proj.weight" && ranks < heads; ++ranks) {
    if (heads % ranks == 0 && shape[1] % heads == 0)
      add_turned(fmt::format("heads-in-turn-{}", ranks).c_str(),
                 fmt::format("reads heads in another order: of {} ranks each one's first head, then each "
                             "one's second (an all-to-all's order)",
                             ranks),
                 {kind, How::kHeadsInTurn, heads, ranks});
  }
}

/// All biases of the layers together.
void HypothesisTable::biases(const std::map<std::string, ParameterShape>& kinds) {
  std::vector<std::string> all;
  for (const auto& [kind, of_kind] : kinds) {
    if (of_kind.role == ParameterRole::kBias) all.push_back(kind);
  }
  if (all.size() < 2) return;
  for (const auto& [name, how, text] :
       {std::tuple{"zero-biases", How::kZero, "all biases are 0, as where they are not loaded"},
        std::tuple{"left-out-biases", How::kAbsent, "all biases are left out"}})
    add(name, "left out", text, [all, how = how](WrongSettings& s) {
      for (const std::string& kind : all) s.weights.push_back({kind, how});
    });
}

/// Parameters of one shape that have each other's values.
void HypothesisTable::exchanges() {
  std::map<std::string, std::vector<int64_t>> shapes;
  std::set<std::string> norms;  // of layers, ".input_layernorm."
  for (const ParameterShape& each : parameter_shapes(config_)) {
    shapes.emplace(each.name, each.shape);
    const std::string kind = kind_of(each.name);
    if (each.role == ParameterRole::kNorm && each.name != kind) norms.insert(kind);
  }
  std::vector<std::pair<std::string, std::string>> pairs{
      {".gate_proj.", ".up_proj."}, {".k_proj.", ".v_proj."}, {".q_proj.", ".k_proj."}};
  for (auto one = norms.begin(); one != norms.end(); ++one) {
    for (auto other = std::next(one); other != norms.end(); ++other) pairs.emplace_back(*one, *other);
  }
  for (const auto& [one, other] : pairs) {
    bool any = false, alike = true;
    for (const auto& [name, shape] : shapes) {
      const size_t at = name.find(one);
      if (at == name.npos) continue;
      const auto found = shapes.find(std::string(name).replace(at, one.size(), other));
      any = true;
      alike = alike && found != shapes.end() && found->second == shape;
    }
    if (!any || !alike) continue;
    const auto bare = [](std::string name) {
      if (name.starts_with('.')) return name.substr(1, name.size() - 2);
      return called(name);
    };
    const bool gates = one == ".gate_proj.";
    for (const bool values_alone : {false, true})
      add(fmt::format("exchanged-{}-{}{}", bare(one), bare(other), values_alone ? "-values" : ""),
          "exchanged weights",
          fmt::format("{} and {} are exchanged{}{}", gates ? "gate" : bare(one),
                      gates ? "up projection" : bare(other),
                      values_alone ? ", in their values alone: each is loaded from the other's" : "",
                      gates ? ": the activation is up_proj's" : ""),
          [exchange = Exchange{one, other, values_alone}](WrongSettings& s) { s.exchange = exchange; });
  }
}

/// A gate that is 1: its logits are 0, and what it multiplies counts twice.
void HypothesisTable::gates() {
  const auto add_gate = [&](const char* text, const WeightChange& gate,
                            const char* behind = "self_attn.o_proj.weight") {
    add(fmt::format("no-gate-{}", called(gate.kind)), "gates", text, [gate, behind](WrongSettings& s) {
      s.weights = {gate, {behind, How::kTimes}};
    });
  };
  if (config_.mixture.shared_expert_intermediate_size > 0 && !config_.mixture.shared_expert_ungated)
    add_gate("the shared expert's gate is left out: what it gives is added whole (shared_expert_gate)",
             {"mlp.shared_expert_gate.weight", How::kAbsent}, "mlp.shared_expert.down_proj.weight");
  if (config_.attention_output_gate)
    add_gate(
        "what attention gives is not gated: its output gate is left out (the second half of each head's "
        "rows of q_proj)",
        {"self_attn.q_proj.weight", How::kAbsentTail, 2 * config_.head_dim, config_.head_dim});
  if (config_.output_gate_map)
    add_gate("what attention gives is not gated: its output gate is left out (gate_proj)",
             {"self_attn.gate_proj.weight", How::kAbsent});
  if (config_.gates_heads)
    add_gate("what attention gives is not gated: its output gate is left out (g_proj)",
             {"self_attn.g_proj.weight", How::kAbsent});
}

/// Others of a head's entries are rotated, or normed together.
void HypothesisTable::heads_entries(bool normed) {
  if (config_.is_latent() || config_.is_compressed() || config_.gemma4.global_head_dim > 0) return;
  if (normed)
    add("head-norms-together", "norms",
        config_.qk_norm_full_width
            ? "queries and keys are normed head by head, each head by itself, where all heads should be "
              "together"
            : "queries and keys are normed over all heads together where each head should be by itself",
        [](WrongSettings& s) { s.other_head_norms = true; });
  if (config_.rotary_dim == 0 || config_.rotary_dim >= config_.head_dim || config_.fused_projections) return;
  const int64_t by = config_.rotary_dim;
  add("rotates-last", "rotary entries",
      "of a head's entries the last are rotated where the first should be, its other half "
      "(partial_rotary_factor)",
      [rows = config_.head_dim, by](WrongSettings& s) {
        for (const char* kind :
             {"self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
              "self_attn.k_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight"})
          s.weights.push_back({kind, How::kRolled, rows, by});
      });
}

}  // namespace streambp::verify
