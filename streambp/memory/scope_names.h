// Names of scopes, each with a number that an allocation can carry.
#pragma once

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <string_view>

namespace streambp {

inline constexpr int kMaxScopes = 64;
inline constexpr std::string_view kUnnamed = "other";

/// Safe from any thread.
class ScopeNames {
 public:
  /// 0, that of kUnnamed, for a name that no more numbers are left for.
  int number(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(names_.begin(), names_.begin() + count_, name);
    if (found != names_.begin() + count_) return static_cast<int>(found - names_.begin());
    if (count_ == kMaxScopes) return 0;
    names_[count_] = name;
    return count_++;
  }

  std::string name(int number) {
    const std::lock_guard lock(mutex_);
    return names_[number];
  }

 private:
  std::mutex mutex_;
  std::array<std::string, kMaxScopes> names_{std::string(kUnnamed)};
  int count_ = 1;
};

}  // namespace streambp
