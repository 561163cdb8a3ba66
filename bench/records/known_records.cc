#include "bench/records/known_records.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <sys/stat.h>
#include <utility>

#include "bench/cli/environment.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

enum class Type { kText, kNumber, kObject, kNumbers };

/// Members that are read again when a record is shown. Each may be missing or null.
constexpr std::array<std::pair<const char*, Type>, 27> kMembers{
    {{"status", Type::kText},
     {"model", Type::kText},
     {"objective", Type::kText},
     {"method", Type::kText},
     {"dtype", Type::kText},
     {"device", Type::kText},
     {"kind", Type::kText},
     {"error", Type::kText},
     {"settings", Type::kObject},
     {"choice", Type::kObject},
     {"environment", Type::kObject},
     {"breakdown_at_peak", Type::kObject},
     {"relative_time", Type::kObject},
     {"out_of_memory", Type::kObject},
     {"seconds", Type::kNumbers},
     {"seq_len", Type::kNumber},
     {"batch", Type::kNumber},
     {"tokens", Type::kNumber},
     {"chunk", Type::kNumber},
     {"peak_bytes", Type::kNumber},
     {"resident_bytes", Type::kNumber},
     {"peak_beyond_resident_bytes", Type::kNumber},
     {"seconds_median", Type::kNumber},
     {"cpu_seconds_median", Type::kNumber},
     {"tokens_per_second", Type::kNumber},
     {"percent_of_gemm", Type::kNumber},
     {"loss", Type::kNumber}}};

constexpr const char* kContent = "content";

/// What `value` should be and is not; empty if it is.
const char* wrong_type(const json& value, Type type) {
  switch (type) {
    case Type::kText:
      return value.is_string() ? "" : "text";
    case Type::kNumber:
      return value.is_number() ? "" : "a number";
    case Type::kObject:
      return value.is_object() ? "" : "an object";
    case Type::kNumbers:
      return value.is_array() || value.is_number() ? "" : "a number or a list of them";
  }
  return "";
}

void check_member(const json& object, const char* name, Type type, const std::string& where) {
  const auto member = object.find(name);
  if (member == object.end() || member->is_null()) return;
  const std::string_view expected = wrong_type(*member, type);
  if (!expected.empty()) throw InputError("{}: {}: expected {}", where, name, expected);
}

/// An empty one where there is none.
json member_object(const json& record, const char* name) {
  const json value = record.value(name, json());
  return value.is_object() ? value : json::object();
}

/// When the last of the files changed, by the clock that nobody sets (st_ctime) or their own.
std::string last_change(const InputFiles& inputs) {
  std::time_t last = 0;
  for (const NamedFile& file : inputs.files) {
    struct stat status {};
    if (::stat(file.path.c_str(), &status) == 0) last = std::max({last, status.st_ctime, status.st_mtime});
  }
  return utc_text(last);
}

}  // namespace

void check_record(const json& record, const std::string& where) {
  for (const auto& [name, type] : kMembers) check_member(record, name, type, where);
  if (const json choice = member_object(record, "choice"); !choice.value("reason", json("")).is_string())
    throw InputError("{}: choice: reason: expected text", where);
}

void require_resume(const std::filesystem::path& results, size_t count, bool resumes) {
  if (resumes || count == 0) return;
  throw InputError("{}: holds {} records already; expected --resume to add to them, or another --out",
                   results.string(), count);
}

KnownRecords::KnownRecords(const RecordFile& file, const InputFiles& inputs)
    : file_(file), last_change_(last_change(inputs)) {
  for (size_t i = 0; i < file.records().size(); ++i) {
    const json& record = file.records()[i];
    const json status = record.value("status", json()), key = record.value("key", json());
    if (key.is_string() && (status == "ok" || status == "oom")) by_key_[key.get<std::string>()] = i;
  }
}

const json* KnownRecords::with_key(const std::string& key) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  const json& record = file_.records()[found->second];
  check_record(record, fmt::format("{} line {}", file_.path().string(), found->second + 1));
  return &record;
}

const json* KnownRecords::find(const json& configuration) const {
  if (const json* const record = with_key(record_key(configuration))) return record;
  json older = configuration;
  if (older["settings"].erase(kContent) == 0) return nullptr;
  const json* const record = with_key(record_key(older));
  if (record == nullptr || member_object(*record, "settings").contains(kContent)) return nullptr;
  const json date = member_object(*record, "environment").value("date", json());
  return date.is_string() && date.get<std::string>() > last_change_ ? record : nullptr;
}

}  // namespace streambp::bench
