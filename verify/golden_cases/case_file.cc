#include "verify/golden_cases/case_file.h"

#include <algorithm>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"

namespace streambp::verify {

using nlohmann::json;

CaseFile::CaseFile(const std::filesystem::path& folder)
    : where_((folder / "case.json").string()),
      json_(parse_strict_json(read_text_file(folder / "case.json"), where_)) {}

std::string CaseFile::text(const std::string& key) const {
  const json& value = at(json_, key);
  if (!value.is_string()) throw InputError("{}: {} is {}, expected a string", where_, key, shown(value));
  return value.get<std::string>();
}

std::string CaseFile::text(const std::string& object, const std::string& key) const {
  const json& value = at(at(json_, object), key);
  if (!value.is_string())
    throw InputError("{}: {}.{} is {}, expected a string", where_, object, key, shown(value));
  return value.get<std::string>();
}

std::filesystem::path CaseFile::path(const std::string& key) const {
  const std::filesystem::path given = text(key);
  const bool leaves = std::find(given.begin(), given.end(), "..") != given.end();
  if (given.empty() || given.is_absolute() || leaves) {
    throw InputError("{}: {} is {}, expected a path within the set, without ..", where_, key,
                     shown(given.string()));
  }
  return given;
}

double CaseFile::number(const std::string& object, const std::string& key) const {
  const json& value = at(at(json_, object), key);
  if (!value.is_number())
    throw InputError("{}: {}.{} is {}, expected a number", where_, object, key, shown(value));
  return value.get<double>();
}

bool CaseFile::has(const std::string& object, const std::string& key) const {
  return at(json_, object).contains(key);
}

const json& CaseFile::at(const json& parent, const std::string& key) const {
  const auto found = parent.is_object() ? parent.find(key) : parent.end();
  if (found == parent.end()) throw InputError("{}: no {} in it", where_, key);
  return *found;
}

}  // namespace streambp::verify
