#include "bench/cli/print.h"

#include <nlohmann/json.hpp>

namespace streambp {

std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace streambp
