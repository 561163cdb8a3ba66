#include "bench/report_pages/groups.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

#include "bench/cli/print.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// Those with a colour of their own, and what ratios are to, in this order.
constexpr std::array<const char*, 3> kFirstColours{"standard", "checkpoint", "streambp"};
constexpr std::array<const char*, 4> kBases{"checkpoint", "hf-checkpoint", "standard", "hf-standard"};

using Members = std::vector<const ReportCell*>;

/// The members of `object_of` each cell in which they differ.
template <typename ObjectOf>
std::set<std::string> differing_members(const Members& cells, const ObjectOf& object_of) {
  std::set<std::string> all;
  std::map<std::string, std::set<std::string>> values;
  for (const ReportCell* cell : cells) {
    const json object = object_of(*cell);
    for (const auto& [name, value] : object.items()) all.insert(name);
  }
  for (const ReportCell* cell : cells) {
    const json object = object_of(*cell);
    for (const std::string& name : all) values[name].insert(json_text(object.value(name, json())));
  }
  std::set<std::string> names;
  for (const auto& [name, distinct] : values) {
    if (distinct.size() > 1) names.insert(name);
  }
  return names;
}

std::string words_of(const json& object, const std::set<std::string>& names) {
  std::vector<std::string> words;
  for (const std::string& name : names) {
    if (const std::string one = in_words(name, object.value(name, json())); !one.empty())
      words.push_back(one);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

void append(std::string& text, const std::string& more) {
  if (!more.empty()) text += ", " + more;
}

/// By label; labels that would hold two cells of one length get what tells them apart: folder or settings.
std::map<std::string, Members> by_label(const Members& cells) {
  std::map<std::string, Members> series;
  for (const ReportCell* cell : cells) series[cell->label].push_back(cell);
  std::map<std::string, Members> distinct;
  for (const auto& [label, members] : series) {
    std::set<int64_t> lengths;
    std::set<std::string> files;
    for (const ReportCell* cell : members) {
      lengths.insert(cell->seq_len);
      files.insert(cell->records.back()->file);
    }
    const bool clash = lengths.size() < members.size();
    const auto settings_of = [](const ReportCell& cell) {
      return cell.identity.value("settings", json::object());
    };
    const std::set<std::string> names =
        clash ? differing_members(members, settings_of) : std::set<std::string>();
    for (const ReportCell* cell : members) {
      std::string name = label;
      append(name, words_of(settings_of(*cell), names));
      if (clash && files.size() > 1) append(name, folder_name(cell->records.back()->file));
      distinct[name].push_back(cell);
    }
  }
  return distinct;
}

size_t order_of(const std::string& label) {
  const auto found = std::find(kFirstColours.begin(), kFirstColours.end(), label);
  return static_cast<size_t>(found - kFirstColours.begin());
}

std::vector<ReportSeries> series_of(const Members& cells) {
  std::vector<ReportSeries> series;
  for (auto& [label, members] : by_label(cells)) series.push_back({label, 0, members});
  std::stable_sort(series.begin(), series.end(), [](const ReportSeries& a, const ReportSeries& b) {
    return order_of(a.label) < order_of(b.label);
  });
  size_t next = kFirstColours.size();
  for (ReportSeries& one : series) {
    std::stable_sort(one.cells.begin(), one.cells.end(),
                     [](const ReportCell* a, const ReportCell* b) { return a->seq_len < b->seq_len; });
    one.colour = order_of(one.label);
    if (one.colour == kFirstColours.size()) one.colour = next++;
  }
  return series;
}

const ReportSeries* base_series(const std::vector<ReportSeries>& series) {
  for (const char* method : kBases) {
    const ReportSeries* found = nullptr;
    for (const ReportSeries& one : series) {
      if (one.cells.front()->method != method) continue;
      if (found == nullptr || one.label.size() < found->label.size()) found = &one;
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

std::string plain_title(const ReportCell& cell) {
  std::string title = cell.model.empty() ? "no model" : cell.model;
  for (const std::string* word : {&cell.objective, &cell.dtype, &cell.device, &cell.kind})
    append(title, *word);
  if (cell.batch != 1) append(title, fmt::format("batch {}", cell.batch));
  return title;
}

/// The commit whose sources measured a cell; "" where that is not known, or they were modified.
std::string commit_of(const ReportCell& cell) {
  const json environment = cell.records.back()->record.value("environment", json::object());
  if (!environment.is_object() || environment.value("modified", json(false)) == json(true)) return "";
  return text_of(environment, "commit");
}

}  // namespace

const ReportCell* ReportGroup::base_of(const ReportCell& cell) const {
  if (base == nullptr) return nullptr;
  const std::string commit = commit_of(cell), label = base->cells.front()->label;
  const ReportCell* found = nullptr;
  for (const ReportSeries& one : series) {
    for (const ReportCell* other : one.cells) {
      if (other->label != label || other->seq_len != cell.seq_len || !other->good()) continue;
      if (other->records.back()->file == cell.records.back()->file) return other;
      if (commit.empty() || commit_of(*other) != commit) continue;
      if (found == nullptr || &one == base) found = other;
    }
  }
  return found;
}

std::string ReportGroup::label_of(const ReportCell& cell) const {
  for (const ReportSeries& one : series) {
    if (std::find(one.cells.begin(), one.cells.end(), &cell) != one.cells.end()) return one.label;
  }
  return cell.label;
}

size_t ReportGroup::cell_count() const {
  size_t count = 0;
  for (const ReportSeries& one : series) count += one.cells.size();
  return count;
}

std::vector<ReportGroup> report_groups(const ReportCells& cells) {
  std::vector<Members> runs;
  std::map<std::string, size_t> index;
  for (const ReportCell& cell : cells.cells) {
    const auto [at, is_new] = index.emplace(cell.run, runs.size());
    if (is_new) runs.emplace_back();
    runs[at->second].push_back(&cell);
  }
  std::map<std::string, Members> of_title;  // the first cells of the runs of one title
  for (const Members& run : runs) of_title[plain_title(*run.front())].push_back(run.front());
  std::vector<ReportGroup> groups;
  const auto run_of = [](const ReportCell& cell) { return json::parse(cell.run); };
  for (const Members& run : runs) {
    ReportGroup group;
    group.title = plain_title(*run.front());
    append(group.title, words_of(run_of(*run.front()), differing_members(of_title.at(group.title), run_of)));
    group.series = series_of(run);
    groups.push_back(std::move(group));
  }
  for (ReportGroup& group : groups) group.base = base_series(group.series);
  return groups;
}

}  // namespace streambp::bench
