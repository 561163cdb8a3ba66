// case.json of a golden case, with getters that say what was expected where.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace streambp::verify {

/// A case that asks for something this build does not have. Neither a failure nor bad input.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class CaseFile {
 public:
  /// Throws InputError if the folder has no case.json or it is not JSON; the getters, if what they are asked
  /// for is missing or of another kind.
  explicit CaseFile(const std::filesystem::path& folder);

  std::string text(const std::string& key) const;
  std::string text(const std::string& object, const std::string& key) const;
  /// A path that does not leave the folder it is relative to.
  std::filesystem::path path(const std::string& key) const;
  double number(const std::string& object, const std::string& key) const;
  bool has(const std::string& object, const std::string& key) const;
  const nlohmann::json& hyperparameters() const { return at(json_, "hyperparameters"); }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& at(const nlohmann::json& parent, const std::string& key) const;

  std::string where_;
  nlohmann::json json_;
};

}  // namespace streambp::verify
