#include "bench/report_pages/document.h"

#include <cctype>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>

#include "streambp/printable.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// Bytes that a page shows of a text of others, which may have any length.
constexpr size_t kShownText = 8000;

const char* mark_name(Mark mark) {
  switch (mark) {
    case Mark::kGood:
      return "good";
    case Mark::kBad:
      return "bad";
    case Mark::kUnsure:
      return "unsure";
    case Mark::kNone:
      break;
  }
  return "";
}

/// `value` with all its texts printable.
json in_print(const json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>(), kShownText);
  if (!value.is_structured()) return value;
  json all = value.is_array() ? json::array() : json::object();
  for (const auto& [name, one] : value.items()) {
    if (value.is_array())
      all.push_back(in_print(one));
    else
      all[printable(name, kShownText)] = in_print(one);
  }
  return all;
}

class Writer {
 public:
  explicit Writer(std::string folder) : folder_(std::move(folder)) {}

  json entries(const std::vector<Entry>& lines) const {
    json all = json::array();
    for (const Entry& one : lines) {
      json& written = all.emplace_back(json{{"text", one.text}});
      if (one.is_number) written["number"] = true;
      if (one.mark != Mark::kNone) written["mark"] = mark_name(one.mark);
      if (!one.command.empty()) written["command"] = one.command;
      for (const FileLink& link : one.links)
        written["links"].push_back({{"href", relative_link(link.path, folder_)}, {"text", link.text}});
    }
    return all;
  }

  json block(const std::string& paragraph) const { return {{"kind", "paragraph"}, {"text", paragraph}}; }
  json block(const MarkedLines& lines) const { return {{"kind", "lines"}, {"lines", entries(lines.lines)}}; }
  json block(const ReportTable& table) const {
    json rows = json::array();
    for (const TableRow& row : table.rows) rows.push_back({{"id", row.id}, {"cells", entries(row.cells)}});
    return {{"kind", "table"},
            {"caption", table.caption},
            {"header", table.header},
            {"rows", rows},
            {"filtered", table.filtered}};
  }
  json block(const Chart& chart) const {
    return {{"kind", "chart"},
            {"caption", chart.caption},
            {"plots", chart.plots},
            {"figures", block(chart.figures)}};
  }

 private:
  std::string folder_;
};

}  // namespace

json document_json(const Document& document, const std::string& folder) {
  const Writer writer(folder);
  json sections = json::array();
  for (const ReportSection& section : document.sections) {
    json blocks = json::array();
    for (const Block& one : section.blocks)
      blocks.push_back(std::visit([&](const auto& block) { return writer.block(block); }, one));
    sections.push_back({{"id", section.id}, {"title", section.title}, {"blocks", blocks}});
  }
  return in_print({{"title", document.title},
                   {"made", document.made},
                   {"verdict", writer.entries(document.verdict)},
                   {"sections", sections}});
}

std::string relative_link(const std::string& path, const std::string& folder) {
  const std::string relative = std::filesystem::path(path).lexically_relative(folder).generic_string();
  std::string encoded;
  for (const char c : relative) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || c == '/' || c == '.' || c == '-' || c == '_' || c == '~';
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return encoded;
}

std::string length_text(double length) {
  const auto whole = static_cast<long long>(length);
  if (whole >= 100000 && whole % 1024 == 0) return fmt::format("{}K", whole / 1024);
  std::string text = fmt::format("{}", whole);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

std::string bytes_text(const std::optional<double>& bytes) {
  if (!bytes) return "-";
  constexpr std::pair<const char*, double> kUnits[] = {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
  for (const auto& [unit, size] : kUnits) {
    if (std::abs(*bytes) >= size) return fmt::format("{:.4g} {}", *bytes / size, unit);
  }
  return fmt::format("{:.4g} B", *bytes);
}

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.3g} s", *seconds) : "-";
}

}  // namespace streambp::bench
