#include "streambp/model/config/config_notes.h"

#include <fmt/format.h>

namespace streambp {

std::vector<std::string> config_notes(const Config& config) {
  std::vector<std::string> notes;
  const RopeSettings& rope = config.rope;
  if (rope.type != RopeType::kYarn) return notes;
  const double implied = static_cast<double>(config.max_position_embeddings) /
                         static_cast<double>(rope.original_max_position_embeddings);
  if (implied != rope.factor) {
    notes.push_back(fmt::format(
        "YaRN by factor {}, as transformers 5 has it; transformers 4.51 to 4.55 take max_position_embeddings "
        "/ original_max_position_embeddings, {} / {} = {:.6g}",
        rope.factor, config.max_position_embeddings, rope.original_max_position_embeddings, implied));
  }
  return notes;
}

}  // namespace streambp
