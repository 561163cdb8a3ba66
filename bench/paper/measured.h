// Records of runs on a GPU, to compare with predictions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace streambp::bench {

/// The share of a budget from which a length counts as the longest that fits.
inline constexpr double kBudgetFilled = 0.95;

class Measured {
 public:
  Measured() = default;
  /// Every record that a CUDA device gave in a results.jsonl under `folder`; lines that are not records are
  /// passed over. None where there is no such folder.
  explicit Measured(const std::filesystem::path& folder);

  size_t size() const { return records_.size(); }

  /// The longest sequence measured within `budget` bytes of what `configuration` (cell_configuration) says,
  /// its length apart, where it fills that to kBudgetFilled: of what leaves more, longer ones were not tried.
  std::optional<int64_t> longest(const nlohmann::json& configuration, int64_t budget) const;

  /// The peak measured of `configuration`, length and all.
  std::optional<int64_t> peak(const nlohmann::json& configuration) const;

  /// A member of the linear example's record (`streambp-bench linear --json`) whose members are those of
  /// `wanted`.
  std::optional<double> linear(const nlohmann::json& wanted, const char* member) const;

 private:
  std::vector<nlohmann::json> records_;
};

}  // namespace streambp::bench
