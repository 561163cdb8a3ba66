#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/report_pages/document.h"
#include "streambp/printable.h"

namespace streambp::bench {
namespace {

/// Text in which Markdown finds no markup and a table no border.
std::string plain(const std::string& text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (std::string_view("\\`*_[]<>|#").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

const char* mark_text(Mark mark) {
  switch (mark) {
    case Mark::kGood:
      return "✔ ";
    case Mark::kBad:
      return "✘ ";
    case Mark::kUnsure:
      return "? ";
    case Mark::kNone:
      break;
  }
  return "";
}

class MarkdownWriter {
 public:
  explicit MarkdownWriter(std::string folder) : folder_(std::move(folder)) {}

  std::string page(const Document& document) {
    out_ = fmt::format("# {}\n\n", plain(document.title));
    for (const Entry& line : document.verdict) out_ += fmt::format("- {}\n", entry(line));
    for (const ReportSection& section : document.sections) {
      out_ += fmt::format("\n## {}\n", plain(section.title));
      for (const Block& block : section.blocks) std::visit([this](const auto& one) { write(one); }, block);
    }
    return out_ + fmt::format("\n{}\n", plain(document.made));
  }

 private:
  std::string entry(const Entry& one) const {
    std::string text = mark_text(one.mark) + plain(one.text);
    for (const FileLink& link : one.links) {
      if (!text.empty()) text += ' ';
      text += fmt::format("[{}]({})", plain(link.text), relative_link(link.path, folder_));
    }
    return text;
  }

  void write(const std::string& paragraph) { out_ += fmt::format("\n{}\n", plain(paragraph)); }

  void write(const MarkedLines& lines) {
    out_ += '\n';
    for (const Entry& line : lines.lines) out_ += fmt::format("- {}\n", entry(line));
  }

  void write(const ReportTable& table) {
    if (!table.caption.empty()) out_ += fmt::format("\n{}\n", plain(table.caption));
    std::vector<std::string> header, rule;
    for (size_t i = 0; i < table.header.size(); ++i) {
      header.push_back(plain(table.header[i]));
      const bool numbers =
          !table.rows.empty() && i < table.rows.front().cells.size() && table.rows.front().cells[i].has_sort;
      rule.push_back(numbers ? "---:" : "---");
    }
    out_ += fmt::format("\n| {} |\n|{}|\n", fmt::join(header, " | "), fmt::join(rule, "|"));
    for (const TableRow& row : table.rows) {
      std::vector<std::string> cells;
      for (const Entry& one : row.cells) cells.push_back(entry(one));
      out_ += fmt::format("| {} |\n", fmt::join(cells, " | "));
    }
  }

  void write(const Chart& chart) {
    out_ += fmt::format("\n**{}**\n", plain(chart.caption));
    write(chart.figures);
  }

  std::string folder_;
  std::string out_;
};

}  // namespace

std::string markdown_page(const Document& document, const std::string& folder) {
  return MarkdownWriter(folder).page(document);
}

}  // namespace streambp::bench
