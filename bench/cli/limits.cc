#include "bench/cli/limits.h"

#include <fmt/format.h>

#include "streambp/model/batch.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {

std::string describe_limits() {
  return fmt::format(
      "Limits (beyond them: exit code 2):\n"
      "  a batch: {} tokens, padding included; a chunk may be longer, and ends with the batch\n"
      "  a model: {} layers, vocabulary {}, hidden size {}, MLP width {}, {} heads of {}, {} experts in all "
      "layers\n",
      kMaxTokens, kMaxLayers, kMaxVocab, kMaxHidden, kMaxIntermediate, kMaxHeads, kMaxHeadDim,
      kMaxExpertsOfAllLayers);
}

}  // namespace streambp
