// The objectives, each defined in its own file.
#pragma once

#include "streambp/objective/objective.h"

namespace streambp {

ObjectiveKind sft_kind();
ObjectiveKind dpo_kind();
ObjectiveKind cpo_kind();
ObjectiveKind simpo_kind();
ObjectiveKind orpo_kind();
ObjectiveKind kto_kind();
ObjectiveKind grpo_kind();
ObjectiveKind ppo_kind();
ObjectiveKind rloo_kind();
ObjectiveKind distill_kind();
ObjectiveKind reward_kind();
ObjectiveKind infonce_kind();

}  // namespace streambp
