// Hypotheses about backward passes that are another op's than the forward pass's, as where a kernel of its own computes
// them: every mistake of attention may be one of its backward pass alone.
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
    add_mistake("windows-ignored", "does not know of sliding windows", [](WrongSettings& s) { s.ignores_windows = true; });
    add_mistake("window+1", "has windows that are one token too wide", [](WrongSettings& s) { s.window_offset = 1; });
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
      add_mistake("scale-of-head-dim", "divides scores by the root of head_dim",
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
        "the backward pass takes the share that sinks leave to keys, sigmoid(lse - sink), for a constant: queries and "
        "keys have no gradient through the log-sum-exp",
        [](WrongSettings& s) { s.sinks_share_constant = true; });
}

/// Sums over the query heads that share a key's or value's head.
void HypothesisTable::slopes_of_groups() {
  if (config_.num_key_value_heads <= 0 || config_.num_key_value_heads >= config_.num_attention_heads) return;
  for (const auto& [sum, name, text] :
       {std::tuple{GroupSum::kFirst, "first", "from the first query head of their group alone, not the sum over it"},
        std::tuple{GroupSum::kLast, "last", "from the last query head of their group alone, not the sum over it"},
        std::tuple{GroupSum::kMean, "mean", "that are the mean over the query heads of a group, not their sum"},
        std::tuple{GroupSum::kInTurn, "in-turn",
                   "from query heads in turn, not from those of their own group (repeat instead of repeat_interleave)"}}) {
    if (sum == GroupSum::kInTurn && config_.num_key_value_heads == 1) continue;
    for (const auto& [keys, values, of] : {std::tuple{true, true, "keys and values"}, std::tuple{true, false, "keys"},
                                           std::tuple{false, true, "values"}})
      add(fmt::format("group-sum-{}-of-{}", name, of), keys && values ? "keys' slope" : keys ? "key sums' slope" : "value sums' slope",
          fmt::format("the gradients of {} are wrong: {} have gradients {}", of, of, text),
          [sum = sum, keys = keys, values = values](WrongSettings& s) {
            if (keys) s.key_sum = sum;
            if (values) s.value_sum = sum;
          });
  }
}

/// Of norms, rotations, MLPs and residuals.
void HypothesisTable::slopes_of_parts() {
  const auto add_slope = [&](const char* name, const char* about, const char* text, WrongSlope slope) {
    add(name, about, text, [slope](WrongSettings& s) { s.slope = slope; });
  };
  if (config_.rotary_dim > 0)
    add_slope("rotation-not-back", "rotation's slope",
              "the backward pass turns the gradients of queries and keys as the heads were turned, not back (the sine's "
              "sign)",
              WrongSlope::kTurnsFurther);
  add_slope("norms-constant", "norms' slope", "the backward pass of norms takes the mean square for a constant",
            WrongSlope::kNormConstant);
  add_slope("norms-weightless", "norms' slope", "the backward pass of norms leaves their weight out of what they read",
            WrongSlope::kNormWeightless);
  add_slope("norms-other-one", "norms' slope",
            config_.norm_adds_one ? "the backward pass of norms multiplies by their weight, not by 1 + weight"
                                  : "the backward pass of norms multiplies by 1 + weight, not by their weight",
            WrongSlope::kNormOtherOne);
  add_slope("gate-constant", "MLP's slope", "the backward pass of the MLP takes its activated gate for a constant",
            WrongSlope::kGateConstant);
  add_slope("up-constant", "MLP's slope",
            "the backward pass of the MLP takes what its up projection gives for a constant", WrongSlope::kUpConstant);
  add_slope("activation-linear", "MLP's slope",
            "the backward pass of the MLP's activation leaves out the slope of its sigmoid", WrongSlope::kGateLinear);
  if (config_.hidden_act == Activation::kGelu || config_.hidden_act == Activation::kGeluTanh)
    add_slope("activation-other-gelu", "MLP's slope",
              "the backward pass of the MLP's activation is that of the exact GELU, the forward pass the tanh's",
              WrongSlope::kOtherGelu);
  add_slope("gate-alone", "MLP's slope", "what the MLP reads has the gate projection's gradient alone, not the up projection's",
            WrongSlope::kGateAlone);
  add_slope("up-alone", "MLP's slope", "what the MLP reads has the up projection's gradient alone, not the gate projection's",
            WrongSlope::kUpAlone);
  for (const auto& [path, name, of] : {std::tuple{LostPath::kMlp, "mlp-straight", "the MLP"},
                                       std::tuple{LostPath::kAttention, "attention-straight", "attention"}})
    add(name, "residual's slope",
        fmt::format("no gradient flows through {} to what it reads: what is below has the residual's alone", of),
        [path = path](WrongSettings& s) { s.lost_path = path; });
  using How = WrongResidual::How;
  for (const auto& [how, name, text] :
       {std::tuple{How::kThroughNorm, "through-norm",
                   "goes through the slope of the norm behind it as well, as where a fused sum and norm adds it before "
                   "the norm's backward pass, not after"},
        std::tuple{How::kTwice, "twice", "is added twice"}}) {
    for (const auto& [mlp, attention, of] : {std::tuple{true, true, "before the MLP and before attention"},
                                             std::tuple{true, false, "before the MLP"},
                                             std::tuple{false, true, "before attention"}})
      add(fmt::format("residual-{}-{}{}", name, mlp ? "mlp" : "", attention ? "attention" : ""), "residual's slope",
          fmt::format("the gradient of the residual {} {}", of, text),
          [how = how, mlp = mlp, attention = attention](WrongSettings& s) { s.residual = {how, mlp, attention}; });
  }
}

}  // namespace streambp::verify
