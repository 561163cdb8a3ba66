// The first lines of a report.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>

#include "bench/report_pages/report_sections.h"
#include "bench/report_pages/statistics.h"

namespace streambp::bench {
namespace {

/// The cells of one length of a group.
struct Contest {
  const ReportGroup* group = nullptr;
  std::vector<const ReportCell*> cells;
  const ReportCell* base = nullptr;
};

/// At the longest length at which a base and a cell that is divided by it are both there.
Contest contest_of(const ReportGroup& group, bool timed) {
  std::map<const ReportCell*, Contest> contests;  // by base
  for (const ReportSeries& series : group.series) {
    for (const ReportCell* cell : series.cells) {
      const ReportCell* const base = group.base_of(*cell);
      if (base == nullptr || !cell->good() || (timed && !(cell->seconds_median && base->seconds_median)))
        continue;
      Contest& contest = contests.try_emplace(base, Contest{&group, {}, base}).first->second;
      contest.cells.push_back(cell);
    }
  }
  Contest best;
  for (const ReportSeries& series : group.series) {
    for (const ReportCell* base : series.cells) {
      const auto found = contests.find(base);
      if (found == contests.end() || found->second.cells.size() < 2) continue;
      if (best.base == nullptr || base->seq_len > best.base->seq_len) best = found->second;
    }
  }
  return best;
}

std::string where_of(const Contest& contest) {
  return fmt::format("at {} tokens ({})", length_text(static_cast<double>(contest.base->seq_len)),
                     contest.group->title);
}

Entry smallest(const Contest& contest) {
  const auto bytes = [](const ReportCell* cell) {
    return cell->memory.value_or(std::numeric_limits<double>::infinity());
  };
  const ReportCell* const least =
      *std::min_element(contest.cells.begin(), contest.cells.end(),
                        [&](const ReportCell* a, const ReportCell* b) { return bytes(a) < bytes(b); });
  Entry line;
  const double ratio = bytes(contest.base) / bytes(least);
  if (least == contest.base || !(ratio > 1.0)) {
    line.text = fmt::format("Smallest {}: {}, {}; nothing is smaller", where_of(contest), contest.base->label,
                            bytes_text(contest.base->memory));
    line.mark = Mark::kUnsure;
    return line;
  }
  line.text = fmt::format("Smallest {}: {}, {} beyond weights and gradients{}, {:.3g} x less than {} with {}",
                          where_of(contest), least->label, bytes_text(least->memory),
                          least->measured() ? "" : " (predicted)", ratio, contest.base->label,
                          bytes_text(contest.base->memory));
  if (least->seconds_median && contest.base->seconds_median) {
    const RatioInterval time = ratio_interval(least->seconds, contest.base->seconds);
    line.text += fmt::format(", in {:.3f} x its time [{:.3f}, {:.3f}]", time.ratio, time.low, time.high);
  }
  line.mark = Mark::kGood;
  return line;
}

Entry fastest(const Contest& contest) {
  const ReportCell* const least = *std::min_element(
      contest.cells.begin(), contest.cells.end(),
      [](const ReportCell* a, const ReportCell* b) { return *a->seconds_median < *b->seconds_median; });
  Entry line;
  if (least == contest.base) {
    line.text = fmt::format("Fastest {}: {}, {}; nothing is faster", where_of(contest), least->label,
                            seconds_text(least->seconds_median));
    line.mark = Mark::kUnsure;
    return line;
  }
  const RatioInterval ratio = ratio_interval(least->seconds, contest.base->seconds);
  line.text = fmt::format("Fastest {}: {}, {}, {:.3f} x the time of {} [{:.3f}, {:.3f}]", where_of(contest),
                          least->label, seconds_text(least->seconds_median), ratio.ratio, contest.base->label,
                          ratio.low, ratio.high);
  const bool enough = std::min(least->seconds.size(), contest.base->seconds.size()) >= kFewestJudged;
  line.mark = enough && ratio.high < 1.0 ? Mark::kGood : Mark::kUnsure;
  if (!enough)
    line.text += fmt::format("; {} repeats say little", least->seconds.size());
  else if (ratio.high >= 1.0)
    line.text += "; the intervals of the repeats overlap";
  return line;
}

/// What the records say of exactness.
Entry exactness(const ReportCells& cells, const std::vector<ReportGroup>& groups) {
  const ReportCell *worst = nullptr, *theirs = nullptr;  // theirs: Hugging Face's own
  for (const ReportCell& cell : cells.cells) {
    if (!cell.gradient_error) continue;
    const ReportCell*& most = cell.method.starts_with("hf-") ? theirs : worst;
    if (most == nullptr || !(*cell.gradient_error <= *most->gradient_error)) most = &cell;
  }
  Entry line;
  const LossDifference losses = loss_difference(groups);
  if (worst != nullptr) {
    line.text =
        fmt::format("Gradients against the float64 truth: worst relative error {:.1e} in {} ({}, {}, {})",
                    *worst->gradient_error, worst->worst_parameter, worst->label,
                    length_text(static_cast<double>(worst->seq_len)), worst->dtype);
    const bool comparable = theirs != nullptr && theirs->dtype == worst->dtype;
    const bool no_worse = comparable && *worst->gradient_error <= *theirs->gradient_error;
    if (comparable) line.text += fmt::format("; Hugging Face's own: {:.1e}", *theirs->gradient_error);
    line.mark = !losses.within ? Mark::kBad : no_worse ? Mark::kGood : Mark::kUnsure;
  } else {
    line.text = "Gradients: these records hold none (streambp-verify sweep --quick compares them)";
    line.mark = losses.within ? Mark::kUnsure : Mark::kBad;
  }
  if (losses.cell != nullptr) {
    line.text += fmt::format(". Losses of {} cells: at most {:.1e} from checkpointing's, relatively: {}",
                             losses.compared, losses.difference,
                             losses.within ? "within the limits of their dtypes" : "more than rounding");
  }
  return line;
}

}  // namespace

std::vector<Entry> report_verdict(const ReportCells& cells, const std::vector<ReportGroup>& groups) {
  std::vector<Entry> lines{exactness(cells, groups)};
  // The run with the most cells stands for all; measured ones come first.
  for (const bool timed : {false, true}) {
    Contest best;
    for (const ReportGroup& group : groups) {
      const Contest one = contest_of(group, timed);
      if (one.group == nullptr) continue;
      const auto rank = [](const Contest& contest) {
        return std::pair(contest.base->measured(), contest.group->cell_count());
      };
      if (best.group == nullptr || rank(one) > rank(best)) best = one;
    }
    if (best.group != nullptr) lines.push_back(timed ? fastest(best) : smallest(best));
  }
  return lines;
}

}  // namespace streambp::bench
