#include "verify/diagnose/layer_roles.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>
#include <vector>

namespace streambp::verify {

Role role_of(const std::string& in_layer, const NormNames& norms) {
  const auto is_norm = [&](const std::string& name) {
    return !name.empty() && in_layer.starts_with(name + ".");
  };
  if (is_norm(norms.after_mlp)) return Role::kAfterMlp;
  if (is_norm(norms.before_mlp)) return Role::kBeforeMlp;
  if (is_norm(norms.after_attention)) return Role::kAfterAttention;
  if (is_norm(norms.before_attention)) return Role::kBeforeAttention;
  static const std::vector<std::pair<const char*, Role>> kParts{{".gate.", Role::kRouter},
                                                                {".router.", Role::kRouter},
                                                                {"router.", Role::kRouter},
                                                                {"experts", Role::kExperts},
                                                                {"shared_expert", Role::kExperts},
                                                                {"mlp.", Role::kMlp},
                                                                {"feed_forward.", Role::kMlp},
                                                                {"mixer.up_proj", Role::kMlp},
                                                                {"mixer.down_proj", Role::kMlp},
                                                                {".out_proj", Role::kOutput},
                                                                {"linear_attn.", Role::kRecurrence},
                                                                {"mamba.", Role::kRecurrence},
                                                                {"conv.", Role::kRecurrence},
                                                                {".qkv_proj", Role::kProjected},
                                                                {".q_", Role::kQueries},
                                                                {".k_", Role::kKeys},
                                                                {".kv_", Role::kKeys},
                                                                {".v_", Role::kValues},
                                                                {".o_proj", Role::kOutput},
                                                                {".sinks", Role::kSinks},
                                                                {"mixer.", Role::kRecurrence}};
  for (const auto& [part, role] : kParts) {
    if (in_layer.find(part) != std::string::npos) return role;
  }
  return Role::kOther;
}

std::string own_words(const std::set<Role>& roles) {
  const auto among = [&](std::initializer_list<Role> allowed) {
    return std::all_of(roles.begin(), roles.end(), [&](Role role) {
      return std::find(allowed.begin(), allowed.end(), role) != allowed.end();
    });
  };
  if (among({Role::kRouter})) return ": the routers' own gradient, or their load-balancing loss";
  if (among({Role::kSinks})) return ": the sinks' own gradient";
  if (among({Role::kQueries, Role::kKeys, Role::kValues, Role::kProjected, Role::kOutput, Role::kSinks}))
    return ": attention's maps, with the MLPs right: its mask, its scale, or the sum of their gradients";
  if (among({Role::kExperts})) return ": the sums of the experts' own gradients";
  return ": the sum that makes these gradients, not what flows through them";
}

/// Whose gradients are wrong: queries', keys', values'.
static std::pair<std::string, std::string> words_of_heads(bool q, bool k, bool v,
                                                          const std::string& of_scores) {
  if (q && k && v)
    return {"attention-backward",
            "the backward pass of attention is wrong for queries, keys and values (mask, "
            "documents, what it saved)"};
  if (q && k)
    return {"scores-backward", "the backward pass of the scores is wrong (" + of_scores +
                                   ", or the rotation of queries and keys)"};
  if (k && v)
    return {"keys-values-backward",
            "the gradients of keys and values are wrong and the queries' are right (sums over heads of a "
            "group, "
            "over chunks or ranks, or over layers that share them)"};
  if (q)
    return {"queries-backward",
            "the gradient of the queries is wrong and those of keys and values are right "
            "(" +
                of_scores + ", between the scores and q_proj)"};
  if (k)
    return {"keys-backward", "the gradient of the keys is wrong and those of queries and values are right (" +
                                 of_scores + ", or the sum over heads of a group)"};
  return {"values-backward", "the gradient of the values is wrong (the sum over heads of a group)"};
}

std::pair<std::string, std::string> words_for_roles(const Config& config, int64_t layer,
                                                    const RoleCounts& roles) {
  const auto has = [&](Role role) { return roles.contains(role); };
  const auto wrong = [&](Role role) { return has(role) && roles.at(role).first > 0; };
  const auto right = [&](Role role) { return !wrong(role); };
  const bool mlp_right = right(Role::kMlp) && right(Role::kExperts) && right(Role::kAfterMlp);
  const bool softcap = config.attn_logit_softcapping > 0.0;
  const std::string of_scores =
      softcap ? "softmax, softcap (attn_logit_softcapping), scale or mask" : "softmax, scale or mask";
  if (wrong(Role::kMlp) && right(Role::kExperts) && right(Role::kAfterMlp) &&
      roles.at(Role::kMlp).first < roles.at(Role::kMlp).second)
    return {
        "mlp-backward",
        "the backward pass of the MLP is wrong between its maps (activation, gate), some of which are right"};
  if (!mlp_right) {
    return {"input-gradient",
            layer + 1 == config.num_hidden_layers
                ? "the gradient that leaves the head is wrong where the layers take it (the last norm's, or "
                  "the residual stream's)"
                : fmt::format("the gradient that layer {} hands to layer {} is wrong (its input norm, the "
                              "residual stream, a checkpoint's or stage's edge)",
                              layer + 1, layer)};
  }
  if (has(Role::kRouter) && wrong(Role::kRouter)) {
    return {
        "experts-input-gradient",
        "the experts' own gradients are right, but what leaves them for their input and the router is "
        "wrong (an all-reduce or a sum over experts is missing, or a loss of the routers' own is another)"};
  }
  if (wrong(Role::kBeforeMlp) || wrong(Role::kAfterAttention)) {
    return {
        "mlp-input-gradient",
        has(Role::kExperts)
            ? "the experts' own gradients are right, but what leaves them for their input is wrong (the sum "
              "over their gate and up projection, or over experts, or their norm)"
            : "what leaves the MLP for its input is wrong (the sum over its maps, or its norm)"};
  }
  if (wrong(Role::kOutput)) {
    return has(Role::kRecurrence)
               ? std::pair<std::string, std::string>{"recurrence",
                                                     "the recurrence is another than the "
                                                     "forward pass's (its state, its gate)"}
               : std::pair<std::string, std::string>{
                     "attention",
                     "attention's maps are wrong and the MLP is right: what the norm before the MLP and the "
                     "residual stream send back is wrong (their sum, the norm's slope), or attention is "
                     "another in "
                     "the backward pass than in the forward pass (mask, scale, positions)"};
  }
  if (wrong(Role::kRecurrence))
    return {"recurrence-backward",
            "the backward pass of the recurrence is wrong (its state, its convolution, "
            "a document's start)"};
  if (wrong(Role::kProjected))
    return {"attention-backward", "the backward pass of attention is wrong (" + of_scores + ")"};
  const bool q = wrong(Role::kQueries), k = wrong(Role::kKeys), v = wrong(Role::kValues);
  if (q || k || v) return words_of_heads(q, k, v, of_scores);
  return wrong(Role::kBeforeAttention)
             ? std::pair<std::string, std::string>{"attention-input-gradient",
                                                   "what leaves attention's maps for their input is wrong "
                                                   "(their sum, or the norm)"}
             : std::pair<std::string, std::string>{"layer", "a part of the layer has another backward pass"};
}

}  // namespace streambp::verify
