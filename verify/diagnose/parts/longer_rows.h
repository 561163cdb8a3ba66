// Rows that were run with one token more than the batch has, in front: a text's first token that both
// tokenizer and template write.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

/// Explanations by a token in front of each row, one that the batch does not have, or each row's first once
/// more, whose residual is within the limit: of objectives with labels. Takes a pass where `may_be` says so
/// of the longer batch. A token that the batch does not have gives itself away by a gradient of the
/// embedding, where that is no head as well; `notes` receives which ones do.
std::vector<Explanation> explain_by_longer_rows(const WrongSubject& subject, const Tensors& gradients,
                                                const FitGauge& gauge, const PartsLimits& limits,
                                                const std::function<bool(const WrongSubject&)>& may_be,
                                                std::vector<std::string>& notes);

/// Rows of which the last so many tokens are left, as the rows of the embedding's gradient allow: a pass for
/// each such number, of a few.
std::vector<Explanation> explain_by_ends_of_rows(const WrongSubject& subject, const Tensors& gradients,
                                                 const FitGauge& gauge, const PartsLimits& limits);

/// Tokens that the batch does not have and whose rows of an embedding that is not tied have gradients.
std::vector<int64_t> strangers(const WrongSubject& subject, const Tensors& gradients);

}  // namespace streambp::verify
