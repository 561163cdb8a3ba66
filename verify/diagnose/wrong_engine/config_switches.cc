// What config.json may say otherwise without another shape of any weight: one line a switch or count.
#include <algorithm>
#include <utility>

#include "verify/diagnose/wrong_engine/config_changes.h"

namespace streambp::verify {
namespace {

/// A switch, what is said of it where it is on and should not be, and the reverse.
struct Switch {
  const char* name;
  bool& (*of)(Config& config);
  bool (*matters)(const Config& config);
  const char* text;
};

/// A count, and others that it may be.
struct Count {
  const char* name;
  int64_t& (*of)(Config& config);
  bool (*matters)(const Config& config);
  int64_t (*other)(const Config& config);
  const char* text;
};

bool always(const Config&) {
  return true;
}

bool has_experts(const Config& c) {
  return c.mixture.num_experts > 0;
}

bool has_state_space(const Config& c) {
  return c.delta_rule.state_space && c.delta_rule.norms_gated;
}

bool has_groups(const Config& c) {
  return has_experts(c) && c.mixture.n_group > 1;
}

const std::vector<Switch>& switches() {
  static const std::vector<Switch> kSwitches{
      {"norm-centers", [](Config& c) -> bool& { return c.norm_centers; }, always,
       "norms subtract the mean where they should not, or the reverse (LayerNorm and RMSNorm)"},
      {"rope-truncate", [](Config& c) -> bool& { return c.rope.truncate; },
       [](const Config& c) { return c.rope.type == RopeType::kYarn; },
       "the ends of yarn's ramp are rounded where they should not be, or the reverse (truncate)"},
      {"router-scores", [](Config& c) -> bool& { return c.mixture.sigmoid_scores; }, has_experts,
       "routers' scores are sigmoids where they should be a softmax, or the reverse (scoring_func)"},
      {"router-correction", [](Config& c) -> bool& { return c.mixture.corrected; },
       [](const Config& c) { return has_experts(c) && c.mixture.corrected; },
       "experts are chosen without what is added to their scores (e_score_correction_bias)"},
      {"norm-before-gate", [](Config& c) -> bool& { return c.delta_rule.norm_before_gate; }, has_state_space,
       "recurrent layers norm what they give before its gate where they should after it, or the reverse "
       "(norm_before_gate)"},
      {"logistic-gate", [](Config& c) -> bool& { return c.delta_rule.logistic_gate; },
       [](const Config& c) { return c.delta_rule.value_heads > 0 && !c.delta_rule.state_space; },
       "the gate of what recurrent layers give is a sigmoid where it should be SiLU, or the reverse"},
      {"rates-bounded", [](Config& c) -> bool& { return c.limits_all_mlps; },
       [](const Config& c) { return c.swiglu_limit > 0.0; },
       "swiglu_limit is that of all MLPs where it should be of experts alone, or the reverse"},
      {"indexer-pairs", [](Config& c) -> bool& { return c.indexer.interleaved; },
       [](const Config& c) { return c.has_indexers(); },
       "rotary pairs of the indexers' heads are others: neighbours instead of halves, or the reverse"},
      {"indexer-last", [](Config& c) -> bool& { return c.indexer.rotates_last; },
       [](const Config& c) { return c.has_indexers(); },
       "of the indexers' heads the other entries rotate: the last instead of the first, or the reverse"}};
  return kSwitches;
}

const std::vector<Count>& counts() {
  static const std::vector<Count> kCounts{
      {"experts-of-all-groups", [](Config& c) -> int64_t& { return c.mixture.topk_group; }, has_groups,
       [](const Config& c) { return c.mixture.n_group; },
       "experts are chosen among those of all groups (n_group and topk_group are ignored)"},
      {"one-group-more", [](Config& c) -> int64_t& { return c.mixture.topk_group; }, has_groups,
       [](const Config& c) { return std::min(c.mixture.topk_group + 1, c.mixture.n_group); },
       "experts are chosen among those of one group more (topk_group)"},
      {"one-expert-more", [](Config& c) -> int64_t& { return c.mixture.num_experts_per_tok; }, has_experts,
       [](const Config& c) { return std::min(c.mixture.num_experts_per_tok + 1, c.mixture.num_experts); },
       "a token goes to one expert more (num_experts_per_tok)"},
      {"one-expert-less", [](Config& c) -> int64_t& { return c.mixture.num_experts_per_tok; }, has_experts,
       [](const Config& c) { return std::max<int64_t>(c.mixture.num_experts_per_tok - 1, 1); },
       "a token goes to one expert less (num_experts_per_tok)"},
      {"picks-all", [](Config& c) -> int64_t& { return c.indexer.topk; },
       [](const Config& c) { return c.has_indexers(); }, [](const Config&) { return int64_t{1} << 20; },
       "indexers are left out: attention sees all earlier tokens (index_topk)"},
      {"one-pick-more", [](Config& c) -> int64_t& { return c.indexer.topk; },
       [](const Config& c) { return c.has_indexers(); }, [](const Config& c) { return c.indexer.topk + 1; },
       "indexers pick one more (index_topk)"},
      {"one-pick-less", [](Config& c) -> int64_t& { return c.indexer.topk; },
       [](const Config& c) { return c.has_indexers(); },
       [](const Config& c) { return std::max<int64_t>(c.indexer.topk - 1, 1); },
       "indexers pick one less (index_topk)"},
      {"no-local-blocks", [](Config& c) -> int64_t& { return c.indexer.local_blocks; },
       [](const Config& c) { return c.has_indexers(); }, [](const Config&) { return int64_t{0}; },
       "the last blocks are picked by their scores, as all others are (local blocks)"},
      {"rotates-all", [](Config& c) -> int64_t& { return c.rotary_dim; },
       [](const Config& c) { return !c.is_latent() && !c.is_compressed() && c.gemma4.global_head_dim == 0; },
       [](const Config& c) { return c.rotary_dim == 0 ? 0 : c.head_dim; },
       "all of a head is rotated (partial_rotary_factor is ignored)"},
      {"rotates-half", [](Config& c) -> int64_t& { return c.rotary_dim; },
       [](const Config& c) {
         return !c.is_latent() && !c.is_compressed() && c.gemma4.global_head_dim == 0 &&
                c.rotary_dim == c.head_dim && c.head_dim % 4 == 0;
       },
       [](const Config& c) { return c.rotary_dim / 2; },
       "half of a head is rotated where all of it should be (partial_rotary_factor)"}};
  return kCounts;
}

}  // namespace

std::vector<ConfigChange> config_switches() {
  std::vector<ConfigChange> all;
  for (const Switch& each : switches())
    all.push_back({each.name, each.text, [each](Config& c) {
                     if (each.matters(c)) each.of(c) = !each.of(c);
                   }});
  for (const Count& each : counts())
    all.push_back({each.name, each.text, [each](Config& c) {
                     if (each.matters(c)) each.of(c) = each.other(c);
                   }});
  return all;
}

}  // namespace streambp::verify
