// Why a cell ran out of memory, with the bytes that are known of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "streambp/memory/shortage.h"
#include "streambp/plan/choice.h"

namespace streambp::bench {

struct MemoryFailure {
  std::string error;
  MemoryShortage shortage;
  std::optional<int64_t> needed;  // bytes, at least
};

/// Of an allocation that failed.
MemoryFailure failure_of(const std::exception& error);

/// Of a cell that is not run because the same configuration ran out at `length`, where `record` is that of
/// it: a longer one needs at least as much.
MemoryFailure not_run_beyond(int64_t length, const nlohmann::json& record);

/// Of a choice that found nothing that fits its budget: the leanest configuration needs so much. None where
/// no configuration could be dry-run.
std::optional<MemoryFailure> nothing_fits(const plan::Choice& choice);

/// The member `out_of_memory` of a record (bench/records.md).
nlohmann::json out_of_memory_member(const MemoryFailure& failure);

}  // namespace streambp::bench
