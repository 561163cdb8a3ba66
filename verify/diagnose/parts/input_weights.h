// Weights of rows that a loss gives where a number of each sequence is left out, another's, or met by all
// others.
#pragma once

#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// Adds those of the batch's margins and sums of reference and old policy.
void add_input_weights(RowFacts& facts, const WrongSubject& subject, const Linearised& linear);

}  // namespace streambp::verify
