#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

#include "bench/paper/paper.h"

namespace streambp::bench {
namespace {

template <typename T>
void add_once(std::vector<T>& all, const T& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

/// Three digits: 0.43, 2.35, 36.0, 172.
std::string number(const std::optional<double>& value) {
  if (!value) return "-";
  return *value < 10.0     ? fmt::format("{:.2f}", *value)
         : *value < 1000.0 ? fmt::format("{:.1f}", *value)
                           : fmt::format("{:.0f}", *value);
}

std::string line(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

/// A section of a table: columns as the paper has them, for each row its figures above ours.
std::string section_text(const std::vector<const PaperCell*>& cells) {
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::string>> rows;  // and configurations
  for (const PaperCell* cell : cells) {
    add_once(columns, cell->column);
    add_once(rows, {cell->row, cell->configuration});
  }
  const auto find = [&](const std::string& row, const std::string& configuration, const std::string& column) {
    const auto found = std::find_if(cells.begin(), cells.end(), [&](const PaperCell* cell) {
      return cell->row == row && cell->column == column &&
             (configuration.empty() || cell->configuration == configuration);
    });
    return found == cells.end() ? nullptr : *found;
  };
  std::vector<std::string> header{"", "run as"}, rule{"---", "---"};
  for (const std::string& column : columns) {
    header.push_back(column);
    rule.push_back("---");
  }
  std::string text = line(header) + line(rule);
  std::string above;
  for (const auto& [row, configuration] : rows) {
    if (row != above) {
      std::vector<std::string> published{row, "paper"};
      for (const std::string& column : columns) {
        const PaperCell* const cell = find(row, "", column);
        published.push_back(cell == nullptr ? "" : number(cell->published));
      }
      text += line(published);
      above = row;
    }
    std::vector<std::string> predicted{"", configuration}, measured{"", "measured"};
    bool any_measured = false;
    for (const std::string& column : columns) {
      const PaperCell* const cell = find(row, configuration, column);
      predicted.push_back(
          cell == nullptr ? "" : fmt::format("{} {}", number(cell->predicted), paper_verdict(*cell)));
      measured.push_back(cell == nullptr ? "" : number(cell->measured));
      any_measured = any_measured || (cell != nullptr && cell->measured);
    }
    text += line(predicted);
    if (any_measured) text += line(measured);
  }
  return text;
}

std::string table_text(const PaperTable& table) {
  std::string text = fmt::format("\n## {}\n", table.title);
  std::vector<std::string> sections;
  for (const PaperCell& cell : table.cells) add_once(sections, cell.section);
  for (const std::string& section : sections) {
    if (!section.empty()) text += fmt::format("\n### {}\n", section);
    std::vector<const PaperCell*> cells;
    for (const PaperCell& cell : table.cells) {
      if (cell.section == section) cells.push_back(&cell);
    }
    text += fmt::format("\n{}", section_text(cells));
  }
  text += "\nAssumed:\n\n";
  for (const std::string& assumption : table.assumptions) text += fmt::format("- {}.\n", assumption);
  return text;
}

std::string summary(const std::vector<PaperTable>& tables) {
  const std::vector<std::string> verdicts{"reproduced", "less memory", "contradicted", "not testable here"};
  std::string text = line({"table", "method", "run as", verdicts[0], verdicts[1], verdicts[2], verdicts[3]}) +
                     line({"---", "---", "---", "---", "---", "---", "---"});
  for (const PaperTable& table : tables) {
    using Row = std::array<std::string, 3>;
    std::vector<Row> rows;
    std::map<Row, std::map<std::string, int>> counts;
    for (const PaperCell& cell : table.cells) {
      const std::string row = cell.table == "8" && cell.row != "standard" ? "D chunks" : cell.row;
      add_once(rows, Row{cell.table, row, cell.configuration});
      ++counts[{cell.table, row, cell.configuration}][paper_verdict(cell)];
    }
    for (const Row& row : rows) {
      std::vector<std::string> cells(row.begin(), row.end());
      for (const std::string& verdict : verdicts) cells.push_back(fmt::format("{}", counts[row][verdict]));
      text += line(cells);
    }
  }
  return text;
}

std::string quoted(const std::string& text) {
  std::string doubled;
  for (const char c : text) doubled += c == '"' ? std::string("\"\"") : std::string(1, c);
  return "\"" + doubled + "\"";
}

}  // namespace

std::string paper_verdict(const PaperCell& cell) {
  if (!cell.testable) return "not testable here";
  const std::optional<double> ours = cell.measured ? cell.measured : cell.predicted;
  if (!cell.published || !ours)
    return cell.published == ours ? "reproduced" : ours ? "less memory" : "contradicted";
  const double ratio = *ours / *cell.published;
  if (ratio >= 1.0 - kPaperTolerance && ratio <= 1.0 + kPaperTolerance) return "reproduced";
  return (ratio > 1.0) == cell.more_is_better ? "less memory" : "contradicted";
}

std::string paper_markdown(const std::vector<PaperTable>& tables, int64_t budget) {
  std::string text = fmt::format(
      "# The paper's tables, predicted\n\n"
      "StreamBP (arXiv 2506.03077) next to this project's engine on the meta device, where every allocation "
      "of the real pass "
      "is counted and nothing is computed, and next to records of a GPU where results/ has some. Written by "
      "`streambp-bench paper`.\n\n"
      "Reproduced: within {:.0f} % of the published figure; less memory: this engine needs less for the "
      "same, "
      "or reaches further with the same, beyond that; contradicted: the reverse. \"-\": no length fits. "
      "Of the 80 GiB of the paper's card {:.4g} GiB are taken for tensors, as far as the paper's own curves "
      "go.\n\n",
      100.0 * kPaperTolerance, static_cast<double>(budget) / (1024.0 * 1024.0 * 1024.0));
  text += summary(tables);
  for (const PaperTable& table : tables) text += table_text(table);
  return text;
}

std::string paper_csv(const std::vector<PaperTable>& tables) {
  std::string text = "table,section,row,column,run_as,unit,published,predicted,measured,verdict\n";
  const auto value = [](const std::optional<double>& figure) {
    return figure ? fmt::format("{:.6g}", *figure) : "";
  };
  for (const PaperTable& table : tables) {
    for (const PaperCell& cell : table.cells) {
      text += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", quoted(cell.table), quoted(cell.section),
                          quoted(cell.row), quoted(cell.column), quoted(cell.configuration),
                          quoted(cell.unit), value(cell.published), value(cell.predicted),
                          value(cell.measured), quoted(paper_verdict(cell)));
    }
  }
  return text;
}

}  // namespace streambp::bench
