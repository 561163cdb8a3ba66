#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "streambp/cli/print.h"
#include "streambp/cli/table.h"
#include "verify/diagnose/diagnose.h"

namespace streambp::verify {
namespace {

constexpr size_t kShown = 8;

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

std::string tried_text(const Diagnosis& diagnosis) {
  return diagnosis.pairs_tried == 0
             ? fmt::format("{} mistakes", diagnosis.tried)
             : fmt::format("{} mistakes and {} pairs of them", diagnosis.tried, diagnosis.pairs_tried);
}

std::string finding(const Diagnosis& diagnosis) {
  const Explanation& best = diagnosis.explanations.front();
  switch (diagnosis.kind) {
    case Diagnosis::Kind::kRight:
      return "diagnosis: the truth, as far as the gradients' precision shows\n";
    case Diagnosis::Kind::kUnknown:
      return fmt::format("diagnosis: none of {} fits to {:.2g}; nearest: {} (residual {})\n",
                         tried_text(diagnosis), diagnosis.limit, best.name, error_text(best.fit.residual));
    case Diagnosis::Kind::kExplained:
      break;
  }
  std::string text = fmt::format("diagnosis: {} (residual {})\n  {}\n", best.name,
                                 error_text(best.fit.residual), best.sentence);
  for (size_t i = 1; i < std::min(diagnosis.fitting, kShown); ++i) {
    text += fmt::format("this batch can't tell it from: {}\n  {}\n", diagnosis.explanations[i].name,
                        diagnosis.explanations[i].sentence);
  }
  return text;
}

}  // namespace

std::string diagnosis_text(const Diagnosis& diagnosis) {
  Table table({"what would give such gradients", "residual", "factor"});
  for (size_t i = 0; i < std::min(diagnosis.explanations.size(), kShown); ++i) {
    const Explanation& each = diagnosis.explanations[i];
    table.add({each.name, error_text(each.fit.residual), number(each.fit.factor)});
  }
  return finding(diagnosis) + "\n" + table.text();
}

std::string diagnosis_json(const Diagnosis& diagnosis) {
  nlohmann::json explanations = nlohmann::json::array();
  for (size_t i = 0; i < std::min(diagnosis.explanations.size(), kShown); ++i) {
    const Explanation& each = diagnosis.explanations[i];
    explanations.push_back({{"name", each.name},
                            {"sentence", each.sentence},
                            {"residual", each.fit.residual},
                            {"factor", each.fit.factor}});
  }
  const Explanation& best = diagnosis.explanations.front();
  const char* const finding = diagnosis.kind == Diagnosis::Kind::kRight       ? "right"
                              : diagnosis.kind == Diagnosis::Kind::kExplained ? "explained"
                                                                              : "unknown";
  const nlohmann::json line{{"kind", "diagnosis"},
                            {"finding", finding},
                            {"name", best.name},
                            {"sentence", best.sentence},
                            {"residual", best.fit.residual},
                            {"factor", best.fit.factor},
                            {"equally_good", diagnosis.fitting > 0 ? diagnosis.fitting - 1 : 0},
                            {"limit", diagnosis.limit},
                            {"mistakes_tried", diagnosis.tried},
                            {"pairs_tried", diagnosis.pairs_tried},
                            {"explanations", explanations}};
  return json_text(line);
}

}  // namespace streambp::verify
