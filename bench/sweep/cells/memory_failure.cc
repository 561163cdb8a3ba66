#include "bench/sweep/cells/memory_failure.h"

#include "bench/records/json_members.h"
#include "bench/sweep/choice.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

std::optional<int64_t> bytes_of(const json& object, const char* member) {
  if (!object.is_object()) return std::nullopt;
  const json value = object.value(member, json());
  return value.is_number_integer() ? std::optional(value.get<int64_t>()) : std::nullopt;
}

}  // namespace

MemoryFailure failure_of(const std::exception& error) {
  const MemoryShortage shortage = shortage_of(error);
  return {error.what(), shortage, shortage.needed()};
}

MemoryFailure not_run_beyond(int64_t length, const json& record) {
  const json known = record.value("out_of_memory", json());
  return {fmt::format("not run: length {} already ran out of memory", length),
          {std::nullopt, std::nullopt, bytes_of(known, "limit_bytes")},
          bytes_of(known, "needed_bytes")};
}

std::optional<MemoryFailure> nothing_fits(const plan::Choice& choice) {
  const plan::Considered* const leanest = choice.leanest();
  if (choice.chosen || leanest == nullptr) return std::nullopt;
  return MemoryFailure{choice_reason(choice),
                       {std::nullopt, std::nullopt, choice.budget.device},
                       leanest->predicted->peak_bytes};
}

json out_of_memory_member(const MemoryFailure& failure) {
  return {{"asked_bytes", or_null(failure.shortage.asked)},
          {"alive_bytes", or_null(failure.shortage.alive)},
          {"limit_bytes", or_null(failure.shortage.limit)},
          {"needed_bytes", or_null(failure.needed)}};
}

}  // namespace streambp::bench
