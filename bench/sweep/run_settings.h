// What decides the figures of a record and is no setting of its method.
#pragma once

#include <nlohmann/json.hpp>

namespace streambp::bench {

/// Its model, dtype and device, and its settings but for those of its method and how often it was measured.
/// Two records are of one run where they agree in it.
nlohmann::json run_settings(const nlohmann::json& record);

}  // namespace streambp::bench
