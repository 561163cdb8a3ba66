// What is given to a pass in place of what its model chooses, experts or picked rows: gradients by every
// method at chunk sizes around the batch's, against standard back-propagation and the reference.
#pragma once

#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <vector>

#include "streambp/backprop/method.h"
#include "verify/equality/subject.h"
#include "verify/reference_evaluation.h"
#include "verify/reference_objective.h"

namespace streambp::verify {

constexpr int64_t kGivenLength = 13;  // tokens of the longest sequence

struct GivenCase {
  std::string model;
  std::string objective = "sft";
  std::string tuning = "full";
  std::string batch = "left";
};

inline std::ostream& operator<<(std::ostream& out, const GivenCase& of) {
  return out << of.model << ", " << of.objective << ", " << of.tuning << ", " << of.batch;
}

/// `give` puts into the subject's batch what is given, of all layers where `of_all`, else of those that
/// choose, and for some tokens nothing. `others`: methods beside checkpoint and streambp.
inline void expect_gradients_of_given(const GivenCase& of,
                                      const std::function<void(EqualitySubject& subject, bool of_all)>& give,
                                      const std::vector<Method>& others) {
  EqualitySubject subject = make_subject({of.model, of.objective, {}, of.tuning, of.batch, kGivenLength}, 7);
  Settings standard;
  standard.method = Method::kStandard;
  const auto run = [&](const Settings& settings) {
    return evaluate(subject.model, subject.batch, *subject.objective, settings);
  };
  const Evaluation chosen = run(standard);
  give(subject, of.batch == "left");
  const Evaluation expected = run(standard);
  EXPECT_GT(measure(chosen, expected).worst_gradient(), 1e-2) << "what is given changes nothing";
  const Evaluation reference = evaluate_reference(subject.model, subject.batch,
                                                  reference_objective(of.objective, subject.batch, {}, {}),
                                                  subject.lora ? &*subject.lora : nullptr);
  double worst = 0.0, worst_to_reference = 0.0;
  const auto check = [&](const Settings& settings, const std::string& what) {
    const Evaluation found = run(settings);
    const EvaluationErrors errors = measure(found, expected), to_reference = measure(found, reference);
    worst = worse(worst, errors.worst());
    worst_to_reference = worse(worst_to_reference, to_reference.worst());
    EXPECT_TRUE(errors.worst() <= 1e-12)
        << what << ": " << errors.worst() << " in " << errors.worst_parameter();
    EXPECT_TRUE(to_reference.worst() <= 1e-10)
        << what << ": " << to_reference.worst() << " in " << to_reference.worst_parameter() << ", reference";
  };
  check(standard, "standard");
  Settings settings;
  settings.method = Method::kCheckpoint;
  check(settings, "checkpoint");
  settings.method = Method::kStreambp;
  for (const int64_t chunk : {1, 4, 12, 13, 14, 17}) {
    settings.chunk = chunk;
    check(settings, fmt::format("streambp, chunk {}", chunk));
  }
  settings.chunk = 5;
  settings.every = 2;
  check(settings, "streambp, every second input");
  settings.every = 1;
  for (const Method method : others) {
    settings.method = method;
    check(settings, fmt::format("method {}", static_cast<int>(method)));
  }
  fmt::print("worst error to standard {:.1e}, to the reference {:.1e}\n", worst, worst_to_reference);
}

}  // namespace streambp::verify
