#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

#include "bench/paper/times.h"
#include "bench/report_pages/statistics.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

std::string times_line(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

bool ran(const TimesCell& cell) {
  return cell.record.value("status", "") == "ok";
}

std::vector<double> seconds_of(const TimesCell& cell) {
  return cell.record.at("seconds").get<std::vector<double>>();
}

/// The cells of one table: columns are lengths, or batches.
class Sheet {
 public:
  Sheet(std::string table, const std::vector<TimesCell>& all) : table_(std::move(table)) {
    for (const TimesCell& cell : all) {
      if (cell.table != table_) continue;
      cells_.push_back(&cell);
      if (const std::pair at{cell.cell.seq_len, cell.cell.batch};
          std::find(columns_.begin(), columns_.end(), at) == columns_.end())
        columns_.push_back(at);
      if (const std::pair row{cell.method, cell.configuration};
          std::find(rows_.begin(), rows_.end(), row) == rows_.end())
        rows_.push_back(row);
    }
  }

  bool empty() const { return cells_.empty(); }
  size_t columns() const { return columns_.size(); }

  const TimesCell* find(const std::string& method, const std::string& configuration, size_t column) const {
    for (const TimesCell* cell : cells_) {
      if (cell->method == method && cell->configuration == configuration &&
          std::pair{cell->cell.seq_len, cell->cell.batch} == columns_[column])
        return cell;
    }
    return nullptr;
  }

  const TimesCell* checkpoint(size_t column) const { return find("checkpoint", "as here", column); }

  std::string header() const {
    std::vector<std::string> names{"", "run as"}, rule{"---", "---"};
    for (const auto& [seq_len, batch] : columns_) {
      const std::string length = fmt::format("{} ({:g}K)", seq_len, thousands_of(seq_len));
      names.push_back(table_ == "1" ? length : fmt::format("batch {} of {}", batch, length));
      rule.push_back("---");
    }
    return times_line(names) + times_line(rule);
  }

  /// A times_line for each configuration: `text` of its cells, "-" where it did not fit.
  std::string lines(const std::function<std::string(const TimesCell&, size_t column)>& text) const {
    std::string all;
    for (const auto& [method, configuration] : rows_) {
      std::vector<std::string> words{method, configuration};
      for (size_t i = 0; i < columns(); ++i) {
        const TimesCell* const cell = find(method, configuration, i);
        words.push_back(cell == nullptr ? "" : ran(*cell) ? text(*cell, i) : "-");
      }
      all += times_line(words);
    }
    return all;
  }

  /// The paper's ratios to its checkpoint.
  std::string published_lines() const {
    std::string all, before;
    for (const auto& [method, configuration] : rows_) {
      if (method == before) continue;
      before = method;
      std::vector<std::string> words{method, "paper"};
      bool any = false;
      for (size_t i = 0; i < columns(); ++i) {
        const auto ratio = published_ratio(method, i);
        any = any || ratio;
        words.push_back(ratio ? fmt::format("{:.3f}", *ratio) : "-");
      }
      if (any) all += times_line(words);
    }
    return all;
  }

  std::optional<double> published_ratio(const std::string& method, size_t column) const {
    const auto seconds = [&](const std::string& name) -> std::optional<double> {
      for (const PublishedTime& row : published_times()) {
        if (row.table == table_ && row.method == name && row.batch == columns_[column].second &&
            row.thousands == thousands_of(columns_[column].first))
          return row.seconds;
      }
      return std::nullopt;
    };
    const auto own = seconds(method), base = seconds("checkpoint");
    return own && base ? std::optional(*own / *base) : std::nullopt;
  }

  std::optional<MedianInterval> ratio(const TimesCell& cell, size_t column) const {
    const TimesCell* const base = checkpoint(column);
    if (base == nullptr || !ran(*base) || !ran(cell)) return std::nullopt;
    return paired_interval(seconds_of(cell), seconds_of(*base));
  }

 private:
  double thousands_of(int64_t seq_len) const {
    for (const TimesCell* cell : cells_) {
      if (cell->cell.seq_len == seq_len) return cell->thousands;
    }
    return 0.0;
  }

  std::string table_;
  std::vector<const TimesCell*> cells_;
  std::vector<std::pair<int64_t, int64_t>> columns_;  // length and batch
  std::vector<std::pair<std::string, std::string>> rows_;
};

std::string sheet_text(const Sheet& sheet) {
  std::string text =
      "Time relative to `checkpoint`, round by round: median, lowest and highest that the rounds permit.\n\n";
  text += sheet.header() + sheet.published_lines() + sheet.lines([&](const TimesCell& cell, size_t column) {
    const auto ratio = sheet.ratio(cell, column);
    return ratio ? fmt::format("{:.3f} ({:.3f} to {:.3f})", ratio->median, ratio->low, ratio->high) : "-";
  });
  text += "\nSeconds, medians.\n\n" + sheet.header() + sheet.lines([](const TimesCell& cell, size_t) {
    return fmt::format("{:.3g}", median(seconds_of(cell)));
  });
  text += "\nPeak memory beyond weights and gradients, MB.\n\n" + sheet.header() +
          sheet.lines([](const TimesCell& cell, size_t) {
            return fmt::format("{:.0f}", cell.record.at("peak_beyond_resident_bytes").get<double>() / 1e6);
          });
  return text;
}

/// "0.872 to 1.040".
std::string range(const std::vector<double>& values) {
  if (values.empty()) return "-";
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return fmt::format("{:.3f} to {:.3f}", *least, *most);
}

std::string referee(const Sheet& sheet, const std::vector<TimesWork>& work) {
  std::string text = "\n## What decides the ratio of streambp's time to checkpoint's\n\n";
  text +=
      times_line({"", "paper, seconds", "operations, causal baseline", "operations, baseline of all scores",
                  "here, seconds, chunk T/3", "here, seconds, as here"});
  text += times_line(std::vector<std::string>(6, "---"));
  std::vector<double> published, causal, full, here, own;
  for (size_t i = 0; i < std::min(sheet.columns(), work.size()); ++i) {
    const auto paper = sheet.published_ratio("streambp", i);
    const auto ratio = [&](const char* configuration) -> std::optional<double> {
      const TimesCell* const cell = sheet.find("streambp", configuration, i);
      if (cell == nullptr) return std::nullopt;
      const auto interval = sheet.ratio(*cell, i);
      return interval ? std::optional(interval->median) : std::nullopt;
    };
    const auto third = ratio("chunk T/3, head chunk 100"), chosen = ratio("as here");
    const auto cell = [](const std::optional<double>& value) {
      return value ? fmt::format("{:.3f}", *value) : "-";
    };
    text += times_line({fmt::format("{:g}K", work[i].thousands), cell(paper), cell(work[i].causal),
                        cell(work[i].full), cell(third), cell(chosen)});
    if (paper) published.push_back(*paper);
    if (third) here.push_back(*third);
    if (chosen) own.push_back(*chosen);
    causal.push_back(work[i].causal);
    full.push_back(work[i].full);
  }
  text += fmt::format(
      "\nOperations are those of matrix products, of Qwen3-4B at the paper's lengths with chunk T/3. Against "
      "a "
      "baseline whose attention is causal streambp executes {} of checkpoint's, against one that computes "
      "all T x T "
      "scores {}. The paper's seconds are {} of its checkpoint's",
      range(causal), range(full), range(published));
  if (!published.empty() && published.back() < published.front() && !full.empty() &&
      full.back() < full.front()) {
    text +=
        ", the less the longer the sequence, as the operations against the second kind are: the saving that "
        "it "
        "claims (section 3.2.2, half the operations of attention) is one against a baseline of all scores";
  }
  text += fmt::format(
      ".\n\nMeasured here, where checkpoint's attention is causal as well: {} with the paper's chunk, {} "
      "with "
      "streambp's own. What differs from the first column of operations is not arithmetic.\n",
      range(here), range(own));
  return text;
}

}  // namespace

std::string times_markdown(const TimesScale& scale, const std::vector<TimesCell>& cells,
                           const std::vector<TimesWork>& work) {
  std::string text = fmt::format(
      "# The paper's tables 1 and 2, measured: {}\n\n"
      "Times of one back-propagation (StreamBP, arXiv 2506.03077) of `{}` on {}, {} tokens for each thousand "
      "of the paper's; its "
      "model is Qwen3-4B on an A800-80GB. The rows take turns, round by round. `checkpoint` is gradient "
      "checkpointing with "
      "causal attention; `tiled` (the paper's MsT) adds tiles of MLP and head. Written by `streambp-bench "
      "paper --table 1,2 "
      "--scale {}`; records in results.jsonl.\n",
      scale.name, scale.model, scale.device, scale.thousand, scale.name);
  const Sheet lengths("1", cells), batches("2", cells);
  if (!lengths.empty()) text += "\n## Table 1: by length, one sequence\n\n" + sheet_text(lengths);
  if (!batches.empty()) {
    text += "\n## Table 2: by batch\n\nThe paper gives seconds of a sample; of the whole batch here.\n\n" +
            sheet_text(batches);
  }
  if (!lengths.empty()) text += referee(lengths, work);
  return text;
}

}  // namespace streambp::bench
