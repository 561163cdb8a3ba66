// What a report says, before it is HTML or Markdown: sections of paragraphs, tables and charts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace streambp::bench {

/// How a cell of a table or the verdict is marked: in colour and by its words.
enum class Mark { kNone, kGood, kBad, kUnsure };

/// A file that a report points at: the record's results.jsonl.
struct FileLink {
  std::string path;  // empty: no link
  std::string text;
};

/// A cell of a table.
struct Entry {
  Entry() = default;
  Entry(std::string words) : text(std::move(words)) {}
  Entry(const char* words) : text(words) {}
  Entry(std::string words, double key) : text(std::move(words)), sort(key), has_sort(true) {}

  std::string text;
  double sort = 0.0;  // what a column is sorted by, where has_sort: bytes, seconds
  bool has_sort = false;
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

/// What a colour of a chart stands for.
struct LegendEntry {
  std::string name;
  size_t colour = 0;  // of a series (svg.h)
  std::string fill;   // of a purpose: its colour; empty for a series
};

/// A drawing in SVG, and the same figures as a table, which is all that Markdown has of it.
struct Chart {
  std::string caption;
  std::vector<std::string> svgs;  // each an element <svg> or two (logarithmic, linear), next to one another
  std::vector<LegendEntry> legend;
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

/// One HTML file with nothing outside it but links to records, relative to `folder` (absolute), where the
/// file will be. Text is escaped, whatever it holds.
std::string html_page(const Document& document, const std::string& folder);

/// The same as Markdown, with tables in the charts' stead.
std::string markdown_page(const Document& document, const std::string& folder);

/// `path` (absolute) as seen from `folder` (absolute), percent-encoded.
std::string relative_link(const std::string& path, const std::string& folder);

/// Text for HTML: & < > " ' as entities, control characters and bytes that are not UTF-8 as printable() has
/// them.
std::string html_text(const std::string& text);

}  // namespace streambp::bench
