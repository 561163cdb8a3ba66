#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <regex>

#include "bench/report_pages/assets.h"
#include "bench/report_pages/document.h"
#include "bench/report_pages/svg.h"
#include "streambp/printable.h"

namespace streambp::bench {
namespace {

/// Text of others of any length: what a page needs of it.
constexpr size_t kShownText = 8000;

/// What a table shows without breaking its line.
constexpr size_t kShortText = 34;

const char* mark_class(Mark mark) {
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

/// Whether report.js reads from `text` what it is sorted by: "1,024", "1.203 GB", "3.04 s", "7.2 %", "-".
/// Most cells are of this kind, and a page of a thousand cells is the smaller for it.
bool shows_its_value(const std::string& text) {
  static const std::regex kNumber(R"([-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ([KMGT]?B|s|%))?|-)");
  return std::regex_match(text, kNumber);
}

/// The columns that hold numbers, as classes of the table: "n3 n7".
std::string number_columns(const ReportTable& table) {
  std::vector<std::string> classes;
  for (size_t i = 0; i < table.header.size(); ++i) {
    const auto numbers = std::count_if(table.rows.begin(), table.rows.end(), [i](const TableRow& row) {
      return i < row.cells.size() && row.cells[i].has_sort;
    });
    if (2 * static_cast<size_t>(numbers) > table.rows.size()) classes.push_back(fmt::format("n{}", i + 1));
  }
  return fmt::format("{}", fmt::join(classes, " "));
}

class HtmlWriter {
 public:
  explicit HtmlWriter(std::string folder) : folder_(std::move(folder)) {}

  std::string page(const Document& document) {
    out_ = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
        "<style>\n{}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n",
        html_text(document.title), kReportStyle, html_text(document.title));
    out_ += "<ul class=\"verdict\">\n";
    for (const Entry& line : document.verdict) marked("li", line);
    out_ += "</ul>\n<nav>";
    for (const ReportSection& section : document.sections)
      out_ += fmt::format("<a href=\"#{}\">{}</a> ", section.id, html_text(section.title));
    out_ +=
        "</nav>\n<p class=\"controls\" hidden>Axes: <button type=\"button\" "
        "id=\"axes\">logarithmic</button></p>\n"
        "</header>\n<main>\n";
    for (const ReportSection& section : document.sections) {
      out_ += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", section.id, html_text(section.title));
      for (const Block& block : section.blocks) std::visit([this](const auto& one) { write(one); }, block);
      out_ += "</section>\n";
    }
    out_ += fmt::format(
        "</main>\n<footer>{}</footer>\n<div id=\"tip\" role=\"status\" hidden></div>\n"
        "<script>\n{}</script>\n</body>\n</html>\n",
        html_text(document.made), kReportScript);
    return out_;
  }

 private:
  void marked(const char* element, const Entry& entry) {
    const std::string name = mark_class(entry.mark);
    out_ += fmt::format("<{}{}>{}{}</{}>\n", element, name.empty() ? "" : fmt::format(" class=\"{}\"", name),
                        html_text(entry.text), links(entry), element);
  }

  std::string links(const Entry& entry) const {
    std::string text;
    for (const FileLink& link : entry.links)
      text += fmt::format(" <a href=\"{}\">{}</a>", html_text(relative_link(link.path, folder_)),
                          html_text(link.text));
    return text;
  }

  void write(const std::string& paragraph) { out_ += fmt::format("<p>{}</p>\n", html_text(paragraph)); }

  void write(const MarkedLines& lines) {
    out_ += "<ul>\n";
    for (const Entry& line : lines.lines) marked("li", line);
    out_ += "</ul>\n";
  }

  void write(const ReportTable& table) {
    if (table.filtered) {
      out_ +=
          "<p class=\"filter\" hidden><label>Filter rows: <input type=\"search\" "
          "placeholder=\"streambp 8192\"></label> <output></output></p>\n";
    }
    // The end tags of rows and cells are optional in HTML: left out, they are a tenth of a page.
    out_ += fmt::format("<div class=\"scroll\" tabindex=\"0\"><table class=\"{}\">\n", number_columns(table));
    if (!table.caption.empty()) out_ += fmt::format("<caption>{}</caption>\n", html_text(table.caption));
    out_ += "<thead><tr>";
    for (const std::string& name : table.header)
      out_ += fmt::format("<th scope=\"col\">{}</th>", html_text(name));
    out_ += "</tr></thead>\n<tbody>\n";
    for (const TableRow& row : table.rows) {
      out_ += row.id.empty() ? "<tr>" : fmt::format("<tr id=\"{}\">", row.id);
      for (const Entry& entry : row.cells) cell(entry);
      out_ += '\n';
    }
    out_ += "</tbody></table></div>\n";
  }

  void cell(const Entry& entry) {
    std::vector<std::string> classes;
    if (entry.mark != Mark::kNone) classes.push_back(mark_class(entry.mark));
    if (entry.text.size() > kShortText) classes.push_back("w");
    out_ += "<td";
    if (!classes.empty()) out_ += fmt::format(" class=\"{}\"", fmt::join(classes, " "));
    if (entry.has_sort && !shows_its_value(entry.text)) out_ += fmt::format(" data-v=\"{:.6g}\"", entry.sort);
    out_ += ">" + html_text(entry.text) + links(entry);
    if (!entry.command.empty())
      out_ += fmt::format("<details><summary>command</summary><code>{}</code></details>",
                          html_text(entry.command));
  }

  void write(const Chart& chart) {
    out_ += fmt::format("<figure>\n<figcaption>{}</figcaption>\n<div class=\"charts\">\n",
                        html_text(chart.caption));
    for (const std::string& svg : chart.svgs) out_ += "<div class=\"chart\">" + svg + "</div>\n";
    out_ += "</div>\n<p class=\"legend\">";
    for (const LegendEntry& entry : chart.legend) out_ += legend_item(entry);
    out_ += "</p>\n<details><summary>The figures as a table</summary>\n";
    write(chart.figures);
    out_ += "</details>\n</figure>\n";
  }

  std::string folder_;
  std::string out_;
};

}  // namespace

std::string html_text(const std::string& text) {
  std::string escaped;
  for (const char c : printable(text, kShownText)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
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

std::string html_page(const Document& document, const std::string& folder) {
  return HtmlWriter(folder).page(document);
}

}  // namespace streambp::bench
