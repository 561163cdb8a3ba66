// What a report says, before it is HTML or Markdown: sections of paragraphs, tables and charts.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace streambp::bench {

/// How a cell of a table or the verdict is marked: in colour and by its words.
enum class Mark { kNone, kGood, kBad, kUnsure };

/// A file that a report points at: the record's results.jsonl.
struct FileLink {
  std::string path;  // absolute
  std::string text;
};

/// A cell of a table.
struct Entry {
  Entry() = default;
  Entry(std::string words) : text(std::move(words)) {}
  Entry(const char* words) : text(words) {}

  /// The text of a quantity: columns of them are aligned to the right.
  static Entry number(std::string words) {
    Entry entry(std::move(words));
    entry.is_number = true;
    return entry;
  }

  std::string text;
  bool is_number = false;
  Mark mark = Mark::kNone;
  std::string command;          // shown folded, to be copied
  std::vector<FileLink> links;  // after the text
};

struct TableRow {
  std::string id;  // an anchor that charts point at; empty: none
  std::vector<Entry> cells;
};

struct ReportTable {
  std::string caption;
  std::vector<std::string> header;
  std::vector<TableRow> rows;
  bool filtered = false;  // with a field that filters its rows
};

/// Drawings, and the same figures as a table, which is all that Markdown has of them.
struct Chart {
  std::string caption;
  nlohmann::json plots = nlohmann::json::array();  // what bench/pages/charts.py draws, and says how
  ReportTable figures;
};

/// Lines with a mark each.
struct MarkedLines {
  std::vector<Entry> lines;
};

using Block = std::variant<std::string, MarkedLines, ReportTable, Chart>;

struct ReportSection {
  std::string id, title;
  std::vector<Block> blocks;
};

struct Document {
  std::string title;
  std::string made;  // when, by what: the last line
  std::vector<Entry> verdict;
  std::vector<ReportSection> sections;
};

/// The document as bench/pages/render.py takes it, links relative to `folder` (absolute), where the page will
/// be. Every text is printable(): no control character and no byte that is not UTF-8 is left in it.
nlohmann::json document_json(const Document& document, const std::string& folder);

/// `path` (absolute) as seen from `folder` (absolute), percent-encoded.
std::string relative_link(const std::string& path, const std::string& folder);

/// "1,024", and "128K" of multiples of 1,024 from 100,000 on.
std::string length_text(double length);
/// "1.25 MB", "0.52 s" and "-" for what a cell lacks.
std::string bytes_text(const std::optional<double>& bytes);
std::string seconds_text(const std::optional<double>& seconds);

}  // namespace streambp::bench
