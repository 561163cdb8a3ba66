// The runs of tokens that training code may work on at a time, as far as a batch has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "streambp/model/batch.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// Every cut along one of `along`, into powers of two and even parts, and into chunks of the sizes `given`.
std::vector<Cut> cuts_of(const Batch& batch, const std::vector<Cut::Along>& along,
                         const std::vector<int64_t>& given);

/// "8-columns", for names.
std::string short_text(const Cut& cut);
/// "chunks of 8 columns of the padded rows".
std::string long_text(const Cut& cut);

}  // namespace streambp::verify
