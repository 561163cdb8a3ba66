// Hypotheses about backward passes that are another op's than the forward pass's, as where a kernel of its
// own computes them: every mistake of attention may be one of its backward pass alone.
#include <cmath>
#include <fmt/format.h>
#include <tuple>
#include <utility>

#include "verify/diagnose/trials/hypotheses_table.h"

namespace streambp::verify {

void HypothesisTable::slopes() {
  slopes_of_attention();
  slopes_of_parts();
}

void HypothesisTable::slopes_of_attention() {
  std::vector<std::tuple<std::string, std::string, std::function<void(WrongSettings&)>>> mistakes;
  const auto add_mistake = [&](const char* name, std::string text, std::function<void(WrongSettings&)> make) {
    mistakes.emplace_back(name, std::move(text), std::move(make));
  };
  bool windows = false;
  for (const int64_t window : config_.windows) windows = windows || (window > 0 && window < longest());
  if (windows) {
    add_mistake("windows-ignored", "does not know of sliding windows",
                [](WrongSettings& s) { s.ignores_windows = true; });
    add_mistake("window+1", "has windows that are one token too wide",
                [](WrongSettings& s) { s.window_offset = 1; });
    add_mistake("window-1", "has windows that are one token too narrow",
                [](WrongSettings& s) { s.window_offset = -1; });
  }
  if (longest() > 1) {
    add_mistake("not-causal", "has no causal mask",
                [all = longest()](WrongSettings& s) { s.looks_ahead = all, s.ignores_windows = true; });
    add_mistake("looks-ahead", "sees one token ahead", [](WrongSettings& s) { s.looks_ahead = 1; });
  }
  if (has_documents())
    add_mistake("documents", "does not know of documents, which see each other",
                [](WrongSettings& s) { s.ignores_documents = true; });
  if (config_.num_key_value_heads > 1 && config_.num_key_value_heads < config_.num_attention_heads)
    add_mistake("heads-in-turn", "takes heads of queries for a key's in turn, not in groups",
                [](WrongSettings& s) { s.key_value_heads_in_turn = true; });
  if (config_.attention_sinks)
    add_mistake("sinks", "has no sinks", [](WrongSettings& s) { s.no_sinks = true; });
  if (config_.attn_logit_softcapping > 0.0)
    add_mistake("softcap", "does not cap scores (attn_logit_softcapping)",
                [](WrongSettings& s) { s.no_attention_softcap = true; });
  if (config_.attention_scale > 0.0 && !config_.is_latent()) {
    add_mistake("not-scaled", "does not scale scores",
                [factor = 1.0 / config_.attention_scale](WrongSettings& s) { s.score_factor = factor; });
    const double of_heads = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    if (std::abs(of_heads / config_.attention_scale - 1.0) > 1e-9)
      add_mistake(
          "scale-of-head-dim", "divides scores by the root of head_dim",
          [factor = of_heads / config_.attention_scale](WrongSettings& s) { s.score_factor = factor; });
  }
  for (const auto& [of, about, text] :
       {std::tuple{SlopeAlone::kAll, "attention's slope", "the backward pass of attention"},
        std::tuple{SlopeAlone::kKeysAndValues, "keys' slope", "the backward pass of keys and values"},
        std::tuple{SlopeAlone::kQueries, "queries' slope", "the backward pass of queries"}}) {
    for (const auto& [name, mistake, make] : mistakes)
      add(fmt::format("{}-of-{}-alone", name, about), about,
          fmt::format("{} {}, where the forward pass does as it should", text, mistake),
          [of = of, make = make](WrongSettings& s) {
            make(s);
            s.slope_alone = of;
          });
  }
  slopes_of_groups();
  if (config_.attention_sinks)
    add("sinks-share-constant", "scores' slope",
        "the backward pass takes the share that sinks leave to keys, sigmoid(lse - sink), for a constant: "
        "queries and "
        "keys have no gradient through the log-sum-exp",
        [](WrongSettings& s) { s.sinks_share_constant = true; });
}

/// Sums over the query heads that share a key's or value's head.
void HypothesisTable::slopes_of_groups() {
  if (config_.num_key_value_heads <= 0 || config_.num_key_value_heads >= config_.num_attention_heads) return;
  for (const auto& [sum, name, text] :
       {std::tuple{GroupSum::kFirst, "first",
                   "from the first query head of their group alone, not the sum over it"},
        std::tuple{GroupSum::kLast, "last",
                   "from the last query head of their group alone, not the sum over it"},
        std::tuple{GroupSum::kMean, "mean",
                   "that are the mean over the query heads of a group, not their sum"},
        std::tuple{GroupSum::kInTurn, "in-turn",
                   "from query heads in turn, not from those of their own group (repeat instead of "
                   "repeat_interleave)"}}) {
    if (sum == GroupSum::kInTurn && config_.num_key_value_heads == 1) continue;
    for (const auto& [keys, values, of] :
         {std::tuple{true, true, "keys and values"}, std::tuple{true, false, "keys"},
          std::tuple{false, true, "values"}})
      add(fmt::format("group-sum-{}-of-{}", name, of),
          keys && values ? "keys' slope"
          : keys         ? "key sums' slope"
                         : "value sums' slope",
          fmt::format("the gradients of {} are wrong: {} have gradients {}", of, of, text),
          [sum = sum, keys = keys, values = values](WrongSettings& s) {
            if (keys) s.key_sum = sum;
            if (values) s.value_sum = sum;
          });
  }
}

/// Of norms, rotations, MLPs and residuals.
void HypothesisTable::slopes_of_parts() {
  const auto add_slope = [&](const char* name, const char* about, const std::string& text, WrongSlope slope) {
    add(name, about, text, [slope](WrongSettings& s) { s.slope = slope; });
  };
  if (config_.rotary_dim > 0)
    add_slope("rotation-not-back", "rotation's slope",
              "the backward pass turns the gradients of queries and keys as the heads were turned, not back "
              "(the sine's "
              "sign)",
              WrongSlope::kTurnsFurther);
  for (const bool all : {true, false}) {
    for (const auto& [name, slope, text] :
         {std::tuple{"constant", WrongSlope::kNormConstant, "takes the mean square for a constant"},
          std::tuple{"weightless", WrongSlope::kNormWeightless, "leaves their weight out of what they read"},
          std::tuple{"other-one", WrongSlope::kNormOtherOne,
                     config_.norm_adds_one ? "multiplies by their weight, not by 1 + weight"
                                           : "multiplies by 1 + weight, not by their weight"},
          std::tuple{"none", WrongSlope::kNormNone,
                     "is missing: no gradient goes through them, to what they read or to their weight"}})
      add(fmt::format("norms-{}{}", name, all ? "" : "-in-layers"),
          all ? "norms' slope" : "layers' norms' slope",
          fmt::format("the backward pass of {} {}", all ? "norms" : "the layers' norms, not the last one's,",
                      text),
          [slope = slope, all](WrongSettings& s) {
            s.slope = slope;
            s.last_norm_is_right = !all;
          });
  }
  add_slope("gate-constant", "MLP's slope",
            "the backward pass of the MLP takes its activated gate for a constant",
            WrongSlope::kGateConstant);
  add_slope("up-constant", "MLP's slope",
            "the backward pass of the MLP takes what its up projection gives for a constant",
            WrongSlope::kUpConstant);
  add_slope("activation-linear", "MLP's slope",
            "the backward pass of the MLP's activation leaves out the slope of its sigmoid",
            WrongSlope::kGateLinear);
  if (config_.hidden_act == Activation::kGelu || config_.hidden_act == Activation::kGeluTanh)
    add_slope(
        "activation-other-gelu", "MLP's slope",
        config_.hidden_act == Activation::kGeluTanh
            ? "the backward pass of the MLP's activation is that of the exact GELU, the forward pass the "
              "tanh's"
            : "the backward pass of the MLP's activation is that of the tanh's GELU, the forward pass the "
              "exact one's",
        WrongSlope::kOtherGelu);
  slopes_of_inputs();
  slopes_of_residuals();
}

/// What parts of layers send back to what they read.
void HypothesisTable::slopes_of_inputs() {
  const bool experts = config_.mixture.num_experts > 0;
  const std::string right = experts ? "the experts' own gradients are right, but " : "";
  const char* const part = experts ? "experts read" : "the MLP reads";
  for (const auto& [name, slope, text] :
       {std::tuple{"gate-alone", WrongSlope::kGateAlone,
                   "the gate projection's gradient alone, not the up projection's"},
        std::tuple{"up-alone", WrongSlope::kUpAlone,
                   "the up projection's gradient alone, not the gate projection's"}})
    add(name, "MLP's input slope", fmt::format("{}what {} has {}", right, part, text),
        [slope = slope, experts](WrongSettings& s) {
          s.slope = slope;
          s.slope_of_experts_alone = experts;
        });
  for (const bool second : {false, true}) {
    const std::string which = fmt::format(
        "the gradient of the {} half of {{}} alone, as where two tensor-parallel ranks do not add theirs up "
        "(an all-reduce is missing)",
        second ? "second" : "first");
    add(fmt::format("mlp-shard-{}", second ? 2 : 1), "MLP's input slope",
        fmt::format("{}what {} has {}", right, part, fmt::format(fmt::runtime(which), "its columns")),
        [second, experts](WrongSettings& s) {
          s.slope = WrongSlope::kMlpShard;
          s.second_shard = second;
          s.slope_of_experts_alone = experts;
        });
    if (config_.num_key_value_heads % 2 == 0)
      add(fmt::format("attention-shard-{}", second ? 2 : 1), "attention's input slope",
          fmt::format("what attention reads has {}", fmt::format(fmt::runtime(which), "its heads")),
          [second](WrongSettings& s) {
            s.slope = WrongSlope::kAttentionShard;
            s.second_shard = second;
          });
  }
  if (experts)
    add("router-none", "router's slope",
        "no gradient reaches the routers through the experts' weights, which are detached; the experts' own "
        "gradients are "
        "right",
        [](WrongSettings& s) { s.slope = WrongSlope::kRouterNone; });
  if (experts && config_.mixture.norm_topk_prob)
    add("router-sum-constant", "router's slope",
        "the backward pass of routers takes the sum that the chosen experts' weights are divided by for a "
        "constant "
        "(norm_topk_prob); the experts' own gradients are right",
        [](WrongSettings& s) { s.slope = WrongSlope::kRouterSum; });
}

/// What flows past parts of layers, and what does not flow through them.
void HypothesisTable::slopes_of_residuals() {
  for (const auto& [path, name, of, about] :
       {std::tuple{LostPath::kMlp, "mlp-straight", "the MLP", "middle's slope"},
        std::tuple{LostPath::kAttention, "attention-straight", "attention", "layer input's slope"}})
    add(name, about,
        fmt::format("no gradient flows through {} to what it reads: what is below has the residual's alone",
                    of),
        [path = path](WrongSettings& s) { s.lost_path = path; });
  using How = WrongResidual::How;
  for (const auto& [how, name, text] : {std::tuple{How::kThroughNorm, "through-norm",
                                                   "goes through the slope of the norm behind it as well, as "
                                                   "where a fused sum and norm adds it before "
                                                   "the norm's backward pass, not after"},
                                        std::tuple{How::kTwice, "twice", "is added twice"}}) {
    for (const auto& [mlp, attention, of] :
         {std::tuple{true, true, "before the MLP and before attention"},
          std::tuple{true, false, "before the MLP"}, std::tuple{false, true, "before attention"}})
      add(fmt::format("residual-{}-{}{}", name, mlp ? "mlp" : "", attention ? "attention" : ""),
          mlp ? "middle's slope" : "layer input's slope",
          fmt::format("the gradient of the residual {} {}", of, text),
          [how = how, mlp = mlp, attention = attention](WrongSettings& s) {
            s.residual = {how, mlp, attention};
          });
  }
}

}  // namespace streambp::verify
