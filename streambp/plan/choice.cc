#include "streambp/plan/choice.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <limits>

#include "streambp/error.h"
#include "streambp/plan/flops/cost_model.h"
#include "streambp/plan/offload.h"
#include "streambp/runtime/bytes.h"

namespace streambp::plan {
namespace {

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

/// "standard needs 412 GB, checkpoint 98 GB": the leanest configurations of the methods of which none fits.
std::vector<std::string> methods_that_do_not_fit(const Choice& choice) {
  std::vector<std::string> texts;
  for (const std::string& name : method_names()) {
    const Considered* leanest = nullptr;
    bool any_fits = false;
    for (const Considered& one : choice.considered) {
      if (method_name(one.settings.method) != name || !one.predicted) continue;
      any_fits = any_fits || one.fits;
      if (leanest == nullptr ||
          choice.budget.share(*one.predicted) < choice.budget.share(*leanest->predicted))
        leanest = &one;
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
    return fmt::format("no configuration can be dry-run: {}",
                       choice.considered.empty() ? "there is none" : choice.considered.front().why_not);
  }
  return fmt::format("nothing fits {}: the leanest of {} configurations, {}, needs {}",
                     budget_text(choice.budget), choice.considered.size(),
                     configuration_text(leanest->settings), need_text(*leanest->predicted));
}

}  // namespace

const Considered* Choice::leanest() const {
  const Considered* least = nullptr;
  for (const Considered& one : considered) {
    if (!one.predicted) continue;
    if (least == nullptr || budget.share(*one.predicted) < budget.share(*least->predicted)) least = &one;
  }
  return least;
}

Choice choose(Predictor& predictor, const TrainingStep& step, const SearchSpace& space,
              const Budget& budget) {
  const Models& models = predictor.models();
  const CostModel costs(models, step, predictor.device());
  Choice choice{budget, {}, {}};
  for (const Settings& settings :
       list_configurations(space, predictor.device(), models.policy->config().num_hidden_layers,
                           costs.tokens(), budget.host > 0)) {
    Considered one;
    one.settings = settings;
    try {
      const OffloadFit fit = fit_offload(predictor, step, settings, budget, OffloadGoal::kFewest);
      one.settings = fit.settings;
      one.predicted = fit.prediction;
      one.fits = budget.holds(*one.predicted);
      if (!one.fits) one.why_not = fmt::format("needs {}", need_text(*one.predicted));
    } catch (const InputError& error) {
      one.why_not = error.what();
    }
    one.cost = costs.relative(one.settings);
    choice.considered.push_back(std::move(one));
  }
  const auto rank = [](const Considered& one) {
    const int64_t peak = one.predicted ? one.predicted->peak_bytes : std::numeric_limits<int64_t>::max();
    return std::pair(one.cost, peak);
  };
  std::stable_sort(choice.considered.begin(), choice.considered.end(),
                   [&](const Considered& a, const Considered& b) { return rank(a) < rank(b); });
  for (size_t i = 0; i < choice.considered.size(); ++i) {
    Considered& one = choice.considered[i];
    if (!one.fits) continue;
    if (choice.chosen) {
      one.why_not = "costs no less than the chosen one";
    } else {
      choice.chosen = i;
    }
  }
  return choice;
}

Choice choose(const Workload& workload, const SearchSpace& space, const Budget& budget) {
  Predictor predictor(complete_setup(workload), workload.device);
  SearchSpace runnable = space;
  if (workload.setup.fused_optimizer)
    std::erase_if(runnable.methods, [](Method method) { return !method_kind(method).fuses_optimizer; });
  return choose(predictor, workload.step, runnable, budget);
}

std::string describe(const Choice& choice) {
  if (!choice.chosen) return describe_nothing(choice);
  const Considered& one = choice.considered[*choice.chosen];
  const auto fitting = std::count_if(choice.considered.begin(), choice.considered.end(),
                                     [](const Considered& other) { return other.fits; });
  const std::string rank =
      fitting == 1 ? fmt::format("the only one of {} configurations that fits", choice.considered.size())
                   : fmt::format("the cheapest of {} configurations that fit", fitting);
  std::string text = fmt::format("{}: {} {} (predicted {})", configuration_text(one.settings), rank,
                                 budget_text(choice.budget), need_text(*one.predicted));
  if (const auto others = methods_that_do_not_fit(choice); !others.empty())
    text += fmt::format("; {}", fmt::join(others, ", "));
  return text;
}

}  // namespace streambp::plan
