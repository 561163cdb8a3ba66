// Tokens that have gradients and are not in the batch.
#pragma once

#include <optional>
#include <string>

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

struct Strangers {
  std::string name, sentence;
  bool padding = false;  // all of them stand under the padding
};

/// Nothing where there are none, and where all tokens have gradients: then it may be anything.
std::optional<Strangers> find_strangers(const WrongSubject& subject, const Tensors& gradients);

}  // namespace streambp::verify
