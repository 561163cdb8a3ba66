#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "verify/rollout/rollout.h"

namespace streambp::verify {
namespace {

constexpr size_t kShownRows = 32;
/// Degrees that rounding in float64 makes.
constexpr double kRoundingDegrees = 1e-9;

std::string length_text(double length) {
  return std::isfinite(length) ? fmt::format("{:.4g}", length) : "-";
}

std::string degrees_text(double degrees) {
  if (degrees < kRoundingDegrees) return "0";
  return std::isfinite(degrees) ? fmt::format("{:.3g}", degrees) : "-";
}

/// "1.02 x as long and 3.4 degrees off".
std::string turn_text(const Turn& turn) {
  if (turn.length == 0.0) return "zero";
  return fmt::format("{} x as long as the unbiased one and {} degrees off", length_text(turn.length),
                     degrees_text(turn.degrees));
}

const RolloutGradient& named(const Rollout& rollout, const std::string& name) {
  return *std::find_if(rollout.gradients.begin(), rollout.gradients.end(),
                       [&](const RolloutGradient& each) { return each.name == name; });
}

nlohmann::json json_of(const Turn& turn) {
  return {{"length", turn.length}, {"degrees", turn.degrees}};
}

}  // namespace

std::string rollout_text(const Rollout& rollout) {
  const auto [least, most] =
      std::minmax_element(rollout.rows.begin(), rollout.rows.end(),
                          [](const RolloutRow& a, const RolloutRow& b) { return a.ratio < b.ratio; });
  std::string text = fmt::format(
      "Without a correction the gradient is {}; with TRL's default (sequence_mask, ratios up to {:.4g}) it "
      "is {}.\n",
      turn_text(rollout.gradients[1].of_unbiased), rollout.bounds.most,
      turn_text(named(rollout, "sequence_mask").of_unbiased));
  text += fmt::format("ratios of whole rows: {:.4g} to {:.4g}, as good as {:.3g} of {} rows\n", least->ratio,
                      most->ratio, rollout.effective_rows,
                      std::count_if(rollout.rows.begin(), rollout.rows.end(),
                                    [](const RolloutRow& row) { return row.tokens > 0; }));
  text +=
      fmt::format("log-probabilities, from the float64 truth of these weights: the sampling engine's {:.2g}",
                  rollout.sampling_error);
  if (rollout.trainer_error) text += fmt::format(", the trainer's {:.2g}", *rollout.trainer_error);
  text += fmt::format(" (root of the mean square of {} tokens)\n", rollout.tokens - rollout.unknown);
  if (rollout.unknown > 0)
    text += fmt::format("note: of {} tokens the engine reported nothing: their ratio is 1, as TRL has it\n",
                        rollout.unknown);
  Table gradients(
      {"gradient", "x unbiased", "degrees from it", "x uncorrected", "degrees from it", "bounded tokens"});
  for (const RolloutGradient& each : rollout.gradients) {
    gradients.add({each.name, length_text(each.of_unbiased.length), degrees_text(each.of_unbiased.degrees),
                   length_text(each.of_uncorrected.length), degrees_text(each.of_uncorrected.degrees),
                   std::to_string(each.bounded)});
  }
  std::vector<std::string> header{"row", "tokens", "mean difference", "largest", "share", "ratio"};
  for (size_t i = 2; i < rollout.gradients.size(); ++i) header.push_back(rollout.gradients[i].name);
  Table rows(header);
  for (size_t row = 0; row < std::min(rollout.rows.size(), kShownRows); ++row) {
    const RolloutRow& of = rollout.rows[row];
    std::vector<std::string> cells{std::to_string(row),
                                   std::to_string(of.tokens),
                                   fmt::format("{:.2g}", of.difference),
                                   fmt::format("{:.2g}", of.most),
                                   fmt::format("{:.2g}", of.share),
                                   length_text(of.ratio)};
    for (size_t i = 2; i < rollout.gradients.size(); ++i) {
      const Turn& turn = rollout.gradients[i].rows[row];
      cells.push_back(fmt::format("{} {}", length_text(turn.length), degrees_text(turn.degrees)));
    }
    rows.add(cells);
  }
  text += fmt::format("\n{}\n{}", gradients.text(), rows.text());
  if (rollout.rows.size() > kShownRows)
    text += fmt::format("and {} more rows (--json has all)\n", rollout.rows.size() - kShownRows);
  return text;
}

std::string rollout_json(const Rollout& rollout) {
  nlohmann::json gradients = nlohmann::json::array(), rows = nlohmann::json::array();
  for (const RolloutGradient& each : rollout.gradients) {
    nlohmann::json of_rows = nlohmann::json::array();
    for (const Turn& turn : each.rows) of_rows.push_back(json_of(turn));
    gradients.push_back({{"name", each.name},
                         {"of_unbiased", json_of(each.of_unbiased)},
                         {"of_uncorrected", json_of(each.of_uncorrected)},
                         {"bounded", each.bounded},
                         {"rows", of_rows}});
  }
  for (const RolloutRow& row : rollout.rows) {
    rows.push_back({{"tokens", row.tokens},
                    {"difference", row.difference},
                    {"most", row.most},
                    {"ratio", row.ratio},
                    {"share", row.share}});
  }
  return json_text({{"kind", "rollout"},
                    {"gradients", gradients},
                    {"rows", rows},
                    {"tokens", rollout.tokens},
                    {"unknown", rollout.unknown},
                    {"effective_rows", rollout.effective_rows},
                    {"sampling_error", rollout.sampling_error},
                    {"trainer_error", rollout.trainer_error ? nlohmann::json(*rollout.trainer_error)
                                                            : nlohmann::json(nullptr)},
                    {"least", rollout.bounds.least},
                    {"most", std::isfinite(rollout.bounds.most) ? nlohmann::json(rollout.bounds.most)
                                                                : nlohmann::json(nullptr)}});
}

}  // namespace streambp::verify
