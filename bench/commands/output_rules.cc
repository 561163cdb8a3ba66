#include "bench/commands/output_rules.h"

#include <algorithm>
#include <array>

#include "streambp/error.h"

namespace streambp::bench {
namespace {

using std::filesystem::path;

constexpr std::array kKept{"results.jsonl", "results.jsonl.torn", "state.safetensors"};

bool same_file(const path& a, const path& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto canonical = [&](const path& file) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file), error);
  };
  const path canonical_a = canonical(a);
  return !error && canonical_a == canonical(b) && !error;
}

}  // namespace

void check_distinct(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& output = outputs[i];
    const auto check = [&](const NamedFile& other, const char* what) {
      if (!same_file(output.path, other.path)) return;
      throw InputError("{} {}: would replace {} {}, {}; expected another name", output.flag,
                       output.path.string(), other.flag, other.path.string(), what);
    };
    for (const NamedFile& input : inputs) check(input, "which is read");
    for (size_t j = 0; j < i; ++j) check(outputs[j], "which is written too");
  }
}

void check_replaces_no_records(const std::vector<NamedFile>& outputs) {
  for (const NamedFile& output : outputs) {
    std::error_code error;
    const std::string name = std::filesystem::weakly_canonical(output.path, error).filename().string();
    if (std::find(kKept.begin(), kKept.end(), name) == kKept.end()) continue;
    if (!std::filesystem::exists(output.path, error)) continue;
    throw InputError("{} {}: holds what a run has recorded, which would be lost; expected another name",
                     output.flag, output.path.string());
  }
}

}  // namespace streambp::bench
