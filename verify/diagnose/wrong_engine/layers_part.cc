#include "verify/diagnose/wrong_engine/layers_part.h"

#include <numeric>

namespace streambp::verify {

std::vector<int64_t> layers_in_order(const WrongSettings& settings, size_t layers) {
  if (!settings.layer_order.empty()) return settings.layer_order;
  std::vector<int64_t> all(layers);
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

WrongSettings without_layers_part(WrongSettings settings) {
  const WrongSettings plain;
  settings.head_alone = settings.padding_in_states = settings.even_shards = false;
  settings.blind = plain.blind;
  settings.state_restart = settings.convolution_restart = plain.state_restart;
  settings.vocabulary_shards = settings.balanced_ranks = 0;
  settings.target_shift = plain.target_shift;
  settings.experts = plain.experts;
  settings.expert_capacity = settings.lost_expert = settings.old_shift = settings.reference_shift = 0;
  settings.recurrence = plain.recurrence;
  settings.padding_runs = settings.positions_stay = false;
  settings.document_starts.clear();
  settings.more_logits = 0.0;
  settings.missing_logits.clear();
  settings.layer_order.clear();
  settings.expert_shift = 0;
  settings.heads_not_transposed = settings.positions_negated = false;
  settings.zero_sink = settings.first_unseen = false;
  settings.window_everywhere = 0;
  settings.key_block = 0;
  settings.block_merge = plain.block_merge;
  settings.rotation_straight = settings.softmax_without_sum = false;
  settings.first_label = settings.no_last_column = settings.padding_scored = settings.prompt_scored = false;
  settings.labels_of_chunk = settings.normaliser = plain.normaliser;
  settings.options.clear();
  settings.reference_is_policy = settings.old_is_policy = false;
  settings.advantages = plain.advantages;
  settings.padding_visible = settings.ignores_documents = settings.ignores_windows = false;
  settings.window_offset = settings.looks_ahead = 0;
  settings.own_chunk_only = settings.top_left = settings.sees_whole_chunk = settings.detached =
      plain.detached;
  settings.leak = Leak::kNone;
  settings.score_factor = 1.0;
  settings.only_layer = -1;
  settings.sinks_share_constant = false;
  settings.slope_alone = SlopeAlone::kNone;
  settings.key_sum = settings.value_sum = GroupSum::kAll;
  settings.top_layers = 0;
  settings.no_attention_softcap = settings.no_sinks = settings.positions_by_column = false;
  settings.target_slope_rounded = settings.key_value_heads_in_turn = settings.prompt_sees_itself = false;
  settings.attention_softcap_straight = settings.final_softcap_straight = false;
  if (settings.narrow != NarrowValues::kRouter && settings.narrow != NarrowValues::kAdapters)
    settings.narrow = plain.narrow;
  settings.rotation = NarrowRotation::kNone;
  settings.z_loss = settings.router_z_loss = settings.target_logits = 0.0;
  settings.missing_norms.clear();
  settings.other_head_norms = false;
  settings.picks.reset();
  return settings;
}

}  // namespace streambp::verify
