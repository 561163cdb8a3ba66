#include "verify/compare/fused_maps.h"

#include <array>
#include <string_view>

namespace streambp::verify {

std::vector<std::string> maps_of(const std::string& name) {
  static const std::array<std::pair<std::string_view, std::vector<std::string>>, 3> kFused{
      {{".qkv_proj.", {"q_proj", "k_proj", "v_proj"}},
       {".gate_up_proj.", {"gate_proj", "up_proj"}},
       {".self_attn.conv1d.", {"self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"}}}};
  for (const auto& [fused, maps] : kFused) {
    const size_t at = name.rfind(fused);
    if (at == std::string::npos) continue;
    const std::string last = name.substr(at + fused.size());
    if (last != "weight" && last != "bias")
      continue;  // an adapter of such a map is none of its parts' adapters
    std::vector<std::string> names;
    for (const std::string& map : maps) names.push_back(name.substr(0, at + 1) + map + "." + last);
    return names;
  }
  return {};
}

std::vector<at::Tensor> cut_rows(const at::Tensor& fused, const std::vector<std::string>& maps,
                                 const std::function<int64_t(const std::string&)>& rows) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const std::string& map : maps) {
    const int64_t count = rows(map);
    if (count == 0 || fused.dim() == 0 || begin + count > fused.size(0)) return {};
    parts.push_back(fused.narrow(0, begin, count));
    begin += count;
  }
  if (parts.empty() || begin != fused.size(0)) return {};
  return parts;
}

}  // namespace streambp::verify
