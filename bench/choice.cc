#include "bench/choice.h"

#include <algorithm>
#include <limits>

#include "bench/cost_model.h"
#include "bench/ways.h"
#include "streambp/cli/command_line.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

std::string budget_text(const Budget& budget) {
  return format_bytes(budget.device) +
         (budget.host > 0 ? fmt::format(" and {} of the host", format_bytes(budget.host)) : "");
}

std::string need_text(const Prediction& prediction) {
  return format_bytes(prediction.peak_bytes) +
         (prediction.host_peak_bytes > 0
              ? fmt::format(" and {} of the host", format_bytes(prediction.host_peak_bytes))
              : "");
}

/// "standard needs 412 GB, checkpoint 98 GB": the leanest ways of the methods that don't fit in any.
std::vector<std::string> methods_that_do_not_fit(const Choice& choice) {
  std::vector<std::string> texts;
  for (const std::string& name : method_names()) {
    const Considered* leanest = nullptr;
    bool any_fits = false;
    for (const Considered& way : choice.considered) {
      if (method_name(way.settings.method) != name || !way.predicted) continue;
      any_fits = any_fits || way.fits;
      if (leanest == nullptr ||
          choice.budget.share(*way.predicted) < choice.budget.share(*leanest->predicted))
        leanest = &way;
    }
    if (leanest == nullptr || any_fits) continue;
    texts.push_back(
        fmt::format("{}{} {}", name, texts.empty() ? " needs" : "", need_text(*leanest->predicted)));
  }
  return texts;
}

std::string describe_nothing(const Choice& choice) {
  const Considered* const leanest = choice.leanest();
  if (leanest == nullptr) {
    return fmt::format("no way can be dry-run: {}",
                       choice.considered.empty() ? "there is none" : choice.considered.front().why_not);
  }
  return fmt::format(
      "nothing fits {}: the leanest of {} ways, {}, needs {}; expected a larger --budget, {}or a shorter "
      "--seq-len, of which streambp-bench max-length finds the longest",
      budget_text(choice.budget), choice.considered.size(), describe_way(leanest->settings),
      need_text(*leanest->predicted),
      choice.budget.host > 0 ? "" : "a --host-budget with which --offload host is tried, ");
}

/// What a way's settings say, as in the settings of a record.
json settings_member(const Settings& settings) {
  const bool streambp = takes(settings.method, "keep_attention");
  const auto of_streambp = [&](const json& value) { return streambp ? value : json(nullptr); };
  return {{"keep_attention", of_streambp(settings.keep_attention)},
          {"every", of_streambp(settings.every)},
          {"offload", of_streambp(settings.offload == Offload::kHost ? "host" : "none")},
          {"head", settings.streams_head() ? "streamed" : "full"}};
}

}  // namespace

const Considered* Choice::leanest() const {
  const Considered* least = nullptr;
  for (const Considered& way : considered) {
    if (!way.predicted) continue;
    if (least == nullptr || budget.share(*way.predicted) < budget.share(*least->predicted)) least = &way;
  }
  return least;
}

Choice choose(const Bench& bench, Predictor& predictor, const Cell& asked, const Budget& budget) {
  const CostModel costs(bench, predictor.models(), asked);
  Choice choice{budget, {}, {}};
  for (const Settings& settings : list_ways(bench.options, bench.device, bench.config.num_hidden_layers,
                                            costs.tokens(), budget.host > 0)) {
    Considered way{settings, costs.relative(settings), {}, false, {}};
    try {
      way.predicted = predictor.predict({asked.objective, settings, asked.seq_len, asked.batch});
      way.fits = budget.holds(*way.predicted);
      if (!way.fits) way.why_not = fmt::format("needs {}", need_text(*way.predicted));
    } catch (const InputError& error) {
      way.why_not = error.what();
    }
    choice.considered.push_back(std::move(way));
  }
  const auto rank = [](const Considered& way) {
    const int64_t peak = way.predicted ? way.predicted->peak_bytes : std::numeric_limits<int64_t>::max();
    return std::pair(way.cost, peak);
  };
  std::stable_sort(choice.considered.begin(), choice.considered.end(),
                   [&](const Considered& a, const Considered& b) { return rank(a) < rank(b); });
  for (size_t i = 0; i < choice.considered.size(); ++i) {
    Considered& way = choice.considered[i];
    if (!way.fits) continue;
    if (choice.chosen) {
      way.why_not = "costs no less than the chosen one";
    } else {
      choice.chosen = i;
    }
  }
  return choice;
}

std::string describe_choice(const Choice& choice) {
  if (!choice.chosen) return describe_nothing(choice);
  const Considered& way = choice.considered[*choice.chosen];
  const auto fitting = std::count_if(choice.considered.begin(), choice.considered.end(),
                                     [](const Considered& other) { return other.fits; });
  const std::string rank = fitting == 1
                               ? fmt::format("the only one of {} ways that fits", choice.considered.size())
                               : fmt::format("the cheapest of {} ways that fit", fitting);
  std::string text = fmt::format("{}: {} {} (predicted {})", describe_way(way.settings), rank,
                                 budget_text(choice.budget), need_text(*way.predicted));
  if (const auto others = methods_that_do_not_fit(choice); !others.empty())
    text += fmt::format("; {}", fmt::join(others, ", "));
  return text;
}

json choice_member(const Choice& choice) {
  json considered = json::array();
  for (const Considered& way : choice.considered) {
    considered.push_back(
        {{"method", method_name(way.settings.method)},
         {"settings", settings_member(way.settings)},
         {"chunk", way.settings.chunk > 0 ? json(way.settings.chunk) : json(nullptr)},
         {"predicted_peak_bytes", way.predicted ? json(way.predicted->peak_bytes) : json(nullptr)},
         {"relative_cost", way.cost},
         {"fits", way.fits},
         {"why_not", way.why_not.empty() ? json(nullptr) : json(way.why_not)}});
  }
  json member{{"asked", "auto"},
              {"budget_bytes", choice.budget.device},
              {"host_budget_bytes", choice.budget.host > 0 ? json(choice.budget.host) : json(nullptr)},
              {"predicted_peak_bytes", nullptr},
              {"relative_cost", nullptr},
              {"reason", describe_choice(choice)},
              {"considered", considered}};
  if (choice.chosen) {
    const Considered& way = choice.considered[*choice.chosen];
    member["predicted_peak_bytes"] = way.predicted->peak_bytes;
    member["relative_cost"] = way.cost;
  }
  return member;
}

}  // namespace streambp::bench
