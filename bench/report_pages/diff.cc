#include "bench/report_pages/diff.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

#include "bench/cli/print.h"
#include "bench/report_pages/report_sections.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

int rank(Change change) {
  switch (change) {
    case Change::kWorse:
      return 3;
    case Change::kAmbiguous:
      return 2;
    case Change::kBetter:
      return 1;
    case Change::kSame:
      break;
  }
  return 0;
}

/// Where a figure is on one side alone, nothing says that it is the same.
bool is_lost(const char* figure, bool before, bool after, Change& change, std::vector<std::string>& why) {
  if (before == after) return false;
  change = Change::kAmbiguous;
  why.push_back(fmt::format("{} in the {} folder alone", figure, before ? "first" : "second"));
  return true;
}

void judge_memory(CellChange& change, std::vector<std::string>& why) {
  const std::optional<double>&a = change.before->memory, &b = change.after->memory;
  if (is_lost("memory", a.has_value(), b.has_value(), change.memory_change, why)) return;
  if (!a || !b || !(*a > 0.0)) return;
  change.memory = *b / *a;
  change.memory_change = judge({*change.memory, *change.memory, *change.memory}, kSameMemory);
  if (change.memory_change != Change::kSame)
    why.push_back(fmt::format("memory {:.4f}, limit 1 {} {}", *change.memory,
                              *change.memory > 1.0 ? "+" : "-", kSameMemory));
}

void judge_time(CellChange& change, double threshold, std::vector<std::string>& why) {
  const std::vector<double>&a = change.before->seconds, &b = change.after->seconds;
  if (is_lost("time", !a.empty(), !b.empty(), change.time_change, why) || a.empty()) return;
  const size_t fewest = std::min(a.size(), b.size());
  const auto positive = [](double seconds) { return seconds > 0.0; };
  if (fewest < kFewestJudged || !std::all_of(a.begin(), a.end(), positive) ||
      !std::all_of(b.begin(), b.end(), positive)) {
    change.time_change = Change::kAmbiguous;
    why.push_back(fmt::format("{} timed pass{} on a side, {} are judged", fewest, fewest == 1 ? "" : "es",
                              kFewestJudged));
    return;
  }
  change.time = ratio_interval(b, a);
  change.time_change = judge(*change.time, threshold);
  if (change.time_change != Change::kSame)
    why.push_back(fmt::format("time [{:.3f}, {:.3f}], limits {:.3f} and {:.3f}", change.time->low,
                              change.time->high, 1.0 - threshold, 1.0 + threshold));
}

CellChange change_of(const ReportCell& before, const ReportCell& after, double threshold) {
  CellChange change;
  change.before = &before;
  change.after = &after;
  std::vector<std::string> why;
  if (before.good() && after.good()) {
    judge_memory(change, why);
    judge_time(change, threshold, why);
    change.change = std::max(change.memory_change, change.time_change,
                             [](Change a, Change b) { return rank(a) < rank(b); });
    if (before.loss && after.loss) {
      const double difference =
          std::abs(*after.loss - *before.loss) / std::max(std::abs(*before.loss), 1e-300);
      if (!(difference <= loss_limit(after.dtype))) {
        change.change = Change::kWorse;
        why.push_back(
            fmt::format("loss differs by {:.1e}, limit {:.0e}", difference, loss_limit(after.dtype)));
      }
    }
  } else if (before.good() != after.good()) {
    change.change = after.good() ? Change::kBetter : Change::kWorse;
    why.push_back(fmt::format("{} became {}", before.status, after.status));
  } else if (before.status != after.status) {
    change.change = Change::kAmbiguous;
    why.push_back(fmt::format("{} became {}", before.status, after.status));
  }
  change.why = fmt::format("{}", fmt::join(why, "; "));
  return change;
}

/// Members of both identities that differ, settings by their own names: "threads 2 / 1".
std::vector<std::string> differences(const json& a, const json& b) {
  std::vector<std::string> words;
  std::set<std::string> names;
  for (const json* one : {&a, &b}) {
    for (const auto& [name, value] : one->items()) names.insert(name);
  }
  for (const std::string& name : names) {
    const json left = a.value(name, json()), right = b.value(name, json());
    if (left == right) continue;
    if (left.is_object() && right.is_object()) {
      const std::vector<std::string> inner = differences(left, right);
      words.insert(words.end(), inner.begin(), inner.end());
    } else {
      words.push_back(fmt::format("{} {} / {}", name, json_text(left), json_text(right)));
    }
  }
  return words;
}

std::string nearest_of(const ReportCell& cell, const ReportCells& others) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> best;
  for (const ReportCell& other : others.cells) {
    if (other.model != cell.model) continue;
    std::vector<std::string> words = differences(cell.identity, other.identity);
    if (best.empty() || words.size() < best.size()) best = std::move(words);
  }
  if (best.empty()) return "no cell of this model";
  const size_t more = best.size() > kNamed ? best.size() - kNamed : 0;
  best.resize(std::min(best.size(), kNamed));
  return fmt::format("{}{}", fmt::join(best, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

size_t RecordDiff::count(Change change) const {
  return static_cast<size_t>(std::count_if(changes.begin(), changes.end(),
                                           [&](const CellChange& one) { return one.change == change; }));
}

RecordDiff diff_records(const DiffSide& before, const DiffSide& after, double threshold) {
  // Of several cells of one identity (two files of a side) the last one counts, as within a file.
  std::map<std::string, const ReportCell*> left, right;
  for (const ReportCell& cell : before.cells.cells) left[json_text(cell.identity)] = &cell;
  for (const ReportCell& cell : after.cells.cells) right[json_text(cell.identity)] = &cell;
  RecordDiff diff;
  for (const ReportCell& cell : before.cells.cells) {
    const std::string key = json_text(cell.identity);
    if (left.at(key) != &cell) {
      diff.only_before.push_back({&cell, "superseded by a later file of the same side"});
    } else if (const auto other = right.find(key); other != right.end()) {
      diff.changes.push_back(change_of(cell, *other->second, threshold));
    } else {
      diff.only_before.push_back({&cell, nearest_of(cell, after.cells)});
    }
  }
  for (const ReportCell& cell : after.cells.cells) {
    const std::string key = json_text(cell.identity);
    if (right.at(key) != &cell)
      diff.only_after.push_back({&cell, "superseded by a later file of the same side"});
    else if (!left.contains(key))
      diff.only_after.push_back({&cell, nearest_of(cell, before.cells)});
  }
  std::stable_sort(diff.changes.begin(), diff.changes.end(),
                   [](const CellChange& a, const CellChange& b) { return rank(a.change) > rank(b.change); });
  return diff;
}

}  // namespace streambp::bench
