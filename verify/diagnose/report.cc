#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "verify/diagnose/diagnose.h"

namespace streambp::verify {
namespace {

constexpr size_t kShown = 8;
/// What leaves more than this unexplained is not near.
constexpr double kNear = 0.1;
constexpr double kMuchLess = 0.5;

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

std::string tried_text(const Diagnosis& diagnosis) {
  return diagnosis.pairs_tried == 0
             ? fmt::format("{} mistakes", diagnosis.tried)
             : fmt::format("{} mistakes and {} pairs of them", diagnosis.tried, diagnosis.pairs_tried);
}

/// Whether the best explanation, which does not fit, leaves little, and much less than the truth does.
bool is_near(const Diagnosis& diagnosis) {
  const double residual = diagnosis.explanations.front().fit.residual;
  return residual <= kNear && std::all_of(diagnosis.explanations.begin(), diagnosis.explanations.end(),
                                          [&](const Explanation& each) {
                                            return each.name != "truth" ||
                                                   residual <= kMuchLess * each.fit.residual;
                                          });
}

std::string finding(const Diagnosis& diagnosis) {
  const Explanation& best = diagnosis.explanations.front();
  const double residual = best.fit.residual;
  std::string text;
  switch (diagnosis.kind) {
    case Diagnosis::Kind::kRight:
      return fmt::format(
          "diagnosis: nothing is wrong, as far as the gradients' precision shows (residual {})\n",
          error_text(residual));
    case Diagnosis::Kind::kWithin:
      return fmt::format(
          "diagnosis: no mistake is named: taken together the errors (residual {}) are no larger than {}\n",
          error_text(residual), diagnosis.within);
    case Diagnosis::Kind::kUnknown:
      text = fmt::format("diagnosis: not named: no weights of rows or terms, and none of {}, fit to {:.2g}",
                         tried_text(diagnosis), diagnosis.limit);
      text += is_near(diagnosis)
                  ? fmt::format("; nearest: {} (residual {})\n", best.sentence, error_text(residual))
                  : ", nor come near\n";
      if (diagnosis.location) text += diagnosis.location->sentence + "\n";
      break;
    case Diagnosis::Kind::kLocated:
      text = fmt::format("diagnosis: {}\n", diagnosis.location->sentence);
      break;
    case Diagnosis::Kind::kExplained:
      text = diagnosis.leaves_rest
                 ? fmt::format(
                       "diagnosis: {}; this leaves {} of an error of {}, more than rounding does: it "
                       "explains a part, and something else is wrong as well, or it is only like "
                       "what is wrong\n",
                       best.sentence, error_text(residual), error_text(diagnosis.unexplained))
                 : fmt::format("diagnosis: {} (residual {})\n", best.sentence, error_text(residual));
      for (size_t i = 1; i < std::min(diagnosis.fitting, kShown); ++i)
        text += fmt::format("this batch can't tell it from: {}\n", diagnosis.explanations[i].sentence);
      break;
  }
  if (diagnosis.location)
    text += fmt::format("right: {}\nwrong: {}\n", diagnosis.location->right, diagnosis.location->wrong);
  for (const std::string& note : diagnosis.notes) text += fmt::format("note: {}\n", note);
  text +=
      fmt::format("tried: {}, in {:.3g} passes over the batch\n", tried_text(diagnosis), diagnosis.passes);
  return text;
}

}  // namespace

std::string diagnosis_text(const Diagnosis& diagnosis) {
  // What explains nothing is not worth a table.
  if (diagnosis.kind != Diagnosis::Kind::kExplained &&
      !(diagnosis.explanations.front().fit.residual <= kNear))
    return finding(diagnosis);
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
  const bool located = diagnosis.kind == Diagnosis::Kind::kLocated;
  const char* const finding = diagnosis.kind == Diagnosis::Kind::kRight       ? "right"
                              : diagnosis.kind == Diagnosis::Kind::kWithin    ? "within"
                              : diagnosis.leaves_rest                         ? "partly"
                              : diagnosis.kind == Diagnosis::Kind::kExplained ? "explained"
                              : located                                       ? "located"
                                                                              : "unknown";
  nlohmann::json line{{"kind", "diagnosis"},
                      {"finding", finding},
                      {"name", located ? diagnosis.location->name : best.name},
                      {"sentence", located ? diagnosis.location->sentence : best.sentence},
                      {"residual", best.fit.residual},
                      {"unexplained", diagnosis.unexplained},
                      {"factor", best.fit.factor},
                      {"equally_good", diagnosis.fitting > 0 ? diagnosis.fitting - 1 : 0},
                      {"limit", diagnosis.limit},
                      {"mistakes_tried", diagnosis.tried},
                      {"pairs_tried", diagnosis.pairs_tried},
                      {"passes", diagnosis.passes},
                      {"notes", diagnosis.notes},
                      {"explanations", explanations}};
  if (diagnosis.location) {
    const Location& location = *diagnosis.location;
    line["location"] = {{"name", location.name},
                        {"sentence", location.sentence},
                        {"right", location.right},
                        {"wrong", location.wrong}};
  }
  return json_text(line);
}

}  // namespace streambp::verify
