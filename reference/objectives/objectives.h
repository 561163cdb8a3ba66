// Losses as functions of what the heads say of the scored tokens, by theme. An objective sees a whole batch:
// its normalisers count all of it. What does not fit together (lengths, ranges) throws std::invalid_argument
// when the objective is made, or when it is evaluated on another number of tokens than it was made for.
#pragma once

#include "reference/objectives/objectives_grpo.h"
#include "reference/objectives/objectives_likelihood.h"
#include "reference/objectives/objectives_policy.h"
#include "reference/objectives/objectives_preference.h"
#include "reference/objectives/objectives_texts.h"
