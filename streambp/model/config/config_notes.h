// What a config.json leaves in doubt between versions of transformers.
#pragma once

#include <string>
#include <vector>

#include "streambp/model/config/config.h"

namespace streambp {

/// One line for each setting that `config` takes as transformers 5 does and another version takes otherwise.
/// YaRN: with original_max_position_embeddings in the file, transformers 4.51 to 4.55 put
/// max_position_embeddings / original_max_position_embeddings where `factor` was (transformers#38224,
/// fixed by #40320, in 4.56); here, as before and since, `factor` holds. Where both are the same there is
/// nothing to say.
std::vector<std::string> config_notes(const Config& config);

}  // namespace streambp
