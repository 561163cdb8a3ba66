#include "bench/ranks/ranks_published.h"

#include <cmath>

#include "streambp/model/config/config.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

bool is_of_the_paper(const Bench& bench, const Cell& cell, const RanksRun& run) {
  const plan::ModelSetup& setup = bench.options.setup;
  return parameter_count(bench.config) == parameter_count(preset("qwen3-8b")) &&
         setup.dtype == at::kBFloat16 && !setup.head_dtype && !setup.lora && !setup.adapter &&
         setup.freeze.empty() && cell.objective == "sft" && cell.batch == 1 &&
         run.sharing.stage == ZeroStage::kGradients && run.sharing.division == Division::kSequences;
}

int64_t tokens_of(const PublishedOnRanks& row) {
  return std::llround(1000.0 * row.thousands);
}

const PublishedOnRanks* row_of(const Cell& cell, int64_t ranks, bool is_longest, bool has_time) {
  for (const PublishedOnRanks& row : published_on_ranks()) {
    if (row.method != method_name(cell.settings.method)) continue;
    if (is_longest && !row.seconds && row.ranks == ranks) return &row;
    if (!is_longest && has_time && row.seconds && tokens_of(row) == cell.seq_len) return &row;
  }
  return nullptr;
}

}  // namespace

json PublishedRows::add(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks,
                        bool is_longest, const std::optional<StepOnPaper>& step) {
  if (!is_of_the_paper(bench, cell, run)) return nullptr;
  const PublishedOnRanks* const row = row_of(cell, ranks, is_longest, step.has_value());
  if (row == nullptr) return nullptr;
  if (!row->seconds) {
    rows_.push_back(fmt::format("paper, table 4, {} ranks, {}: {:.1f}K tokens, here {:.1f}K", ranks,
                                row->method, row->thousands, 1e-3 * static_cast<double>(cell.seq_len)));
    return {{"table", 4}, {"seq_len", tokens_of(*row)}};
  }
  rows_.push_back(
      fmt::format("paper, table 5, {}, {:g}K tokens, ranks and batch not known: {:.1f} s; on paper here, {} "
                  "ranks: {:.2f} s; products in {:.1f} s would be {:.0f} teraflops",
                  row->method, row->thousands, *row->seconds, ranks, step->all, *row->seconds,
                  1e-12 * run.operations / *row->seconds));
  times_[{ranks, cell.seq_len}][row->method] = {*row->seconds, step->all};
  return {{"table", 5}, {"seq_len", tokens_of(*row)}, {"seconds", *row->seconds}};
}

std::vector<std::string> PublishedRows::lines() const {
  std::vector<std::string> lines = rows_;
  for (const auto& [of, methods] : times_) {
    const auto own = methods.find("streambp"), base = methods.find("checkpoint");
    if (own == methods.end() || base == methods.end()) continue;
    lines.push_back(
        fmt::format("paper, table 5, {} tokens: streambp takes {:.3f} of checkpoint's time; on paper here, "
                    "{} ranks: {:.3f}",
                    of.second, own->second.published / base->second.published, of.first,
                    own->second.on_paper / base->second.on_paper));
  }
  return lines;
}

}  // namespace streambp::bench
