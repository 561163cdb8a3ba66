// Linear maps that one program holds in one tensor and another in several: qkv_proj and gate_up_proj.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "verify/error_measure.h"

namespace streambp::verify {

/// The names of the maps whose rows `name` holds one below the other, as
/// model.layers.0.self_attn.q_proj.weight, k_proj and v_proj for qkv_proj; empty for the name of no such
/// weight or bias.
std::vector<std::string> maps_of(const std::string& name);

/// `fused` cut into the rows of `maps`; empty where they don't add up to its own. rows: of a map, 0 where
/// there is none of the name.
std::vector<at::Tensor> cut_rows(const at::Tensor& fused, const std::vector<std::string>& maps,
                                 const std::function<int64_t(const std::string&)>& rows);

}  // namespace streambp::verify
