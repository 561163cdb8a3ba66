// A mistake, by the engine that can make it.
#pragma once

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// The gradients of `subject` with the mistakes of `settings`: by the wrong engine, or where that can't, or
/// does not know the mistake, by the library's layers. Throws InputError where neither does.
Tensors run_mistake(const WrongSubject& subject, const WrongSettings& settings);

}  // namespace streambp::verify
