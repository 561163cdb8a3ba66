// What weights of a loss's terms mean.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "verify/diagnose/parts/least_squares.h"
#include "verify/diagnose/parts/row_words.h"

namespace streambp::verify {

/// A loss's part that is the targets' logits alone, without the softmax's sum.
inline constexpr const char* kTargetLogits = "target-logits";

/// A term of a loss, or one that it might have had.
struct Term {
  std::string name, text;  // "the KL term"
  at::Tensor part;         // its gradient
  bool expected = true;
};

/// Name and sentence of the terms, whose weights begin at `first` where the loss itself has the weight
/// `base`.
std::pair<std::string, std::string> words_of_terms(const std::vector<Term>& terms, const Solution& solution,
                                                   size_t first, double base, double deviation);

/// Whether terms that nobody has asked for can stand for any weights of so many pairs.
bool stand_for_pairs(const std::vector<Term>& terms, size_t pairs);

/// Where the loss's first weight is none, and one of its terms is all that is there.
std::optional<RowWords> term_alone(const std::string& objective, const std::vector<Term>& terms,
                                   const Solution& solution);

}  // namespace streambp::verify
