// What the tests of the diagnosis share: models, batches and objectives with their truth, and mistakes
// planted in them.
#pragma once

#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verify/diagnose/diagnose.h"
#include "verify/equality/subject.h"

namespace streambp::verify {

using OptionMap = std::map<std::string, std::string>;

/// Runs of the wrong engine, each once.
class RememberedRuns {
 public:
  Tensors operator()(const WrongSubject& subject, const WrongSettings& settings) {
    for (const auto& [known, gradients] : *runs_) {
      if (known == settings) return gradients;
    }
    return runs_->emplace_back(settings, run_mistake(subject, settings)).second;
  }

 private:
  using Runs = std::vector<std::pair<WrongSettings, Tensors>>;
  std::shared_ptr<Runs> runs_ = std::make_shared<Runs>();
};

/// A model, a batch and an objective with what the diagnosis asks of them.
struct DiagnoseCase {
  mutable EqualitySubject owned;  // passes write gradients into the model
  std::string objective;
  OptionMap options;
  at::Tensor input_ids;
  Tensors truth;  // by the library's own standard back-propagation
  DiagnoseOptions diagnosing;

  WrongSubject subject() const {
    return {owned.model, owned.batch, objective, options, input_ids, {}, owned.teacher.get()};
  }
  Tensors wrong(const WrongSettings& settings) const { return diagnosing.run(subject(), settings); }
};

inline void find_truth(DiagnoseCase& made) {
  made.owned.objective = make_objective(made.objective, made.owned.batch, made.options);
  Settings standard;
  standard.method = Method::kStandard;
  made.truth =
      evaluate(made.owned.model, made.owned.batch, *made.owned.objective, standard, made.owned.teacher.get())
          .gradients;
  made.input_ids = unpack(made.owned.batch, made.owned.batch.tokens);
  made.diagnosing.run = RememberedRuns();
}

inline DiagnoseCase diagnose_case(const RowName& name) {
  DiagnoseCase made{make_subject(name, 5), name.objective, name.settings, {}, {}, {}};
  find_truth(made);
  return made;
}

inline DiagnoseCase diagnose_case(const RowName& name, const Batch& batch) {
  DiagnoseCase made = diagnose_case(name);
  made.owned.batch = batch;
  find_truth(made);
  return made;
}

/// A float64 model of `config` with the weight that `weight_of` gives for each parameter's name.
inline Model model_of(const Config& config, const std::function<at::Tensor(const std::string&)>& weight_of) {
  Model::Placement wide;
  wide.dtype = wide.gradient_dtype = at::kDouble;
  Model made = Model::random(config, wide, 1);
  for (const auto& parameter : made.parameters()) parameter->value.copy_(weight_of(parameter->name));
  return made;
}

/// The same with the case's own weights.
inline Model model_of(const Config& config, const DiagnoseCase& right) {
  return model_of(config, [&](const std::string& name) { return right.owned.model.parameter(name).value; });
}

/// The library's gradients of the model with another config, and the same weights.
inline Tensors under_config(const DiagnoseCase& right, const std::function<void(Config&)>& change) {
  Config config = right.owned.model.config();
  change(config);
  Model other = model_of(config, right);
  return evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
}

/// The library's gradients of another batch or under other options.
inline Tensors under(const DiagnoseCase& right, const Batch& batch, const OptionMap& options) {
  return evaluate(right.owned.model, batch, *make_objective(right.objective, batch, options), {}).gradients;
}

/// Documents of the given lengths in rows of `columns` tokens.
inline Batch packed_rows(const std::vector<int64_t>& lengths, int64_t columns, int64_t vocab_size) {
  Batch batch = random_batch(lengths, vocab_size, 9);
  batch.padded_rows = batch.size() / columns;
  batch.padded_columns = columns;
  batch.packed = true;
  batch.padded_indices = at::arange(batch.size(), at::kLong);
  return batch;
}

inline Tensors cast(const Tensors& gradients, at::ScalarType dtype) {
  Tensors narrow;
  for (const auto& [name, gradient] : gradients) narrow[name] = gradient.to(dtype);
  return narrow;
}

inline Tensors times(const Tensors& gradients, double factor) {
  Tensors scaled;
  for (const auto& [name, gradient] : gradients) scaled[name] = gradient * factor;
  return scaled;
}

inline Diagnosis diagnose(const DiagnoseCase& planted, const Tensors& gradients, double noise = 0.0) {
  return diagnose(planted.subject(), gradients, planted.truth, noise, planted.diagnosing);
}

/// The diagnosis names `name`: first, or among those that give the same gradients on this batch.
inline void expect_named(const DiagnoseCase& planted, const Tensors& gradients, const std::string& name,
                         double noise = 0.0) {
  const Diagnosis diagnosis = diagnose(planted, gradients, noise);
  bool named = false;
  for (size_t i = 0; i < diagnosis.fitting; ++i) named = named || diagnosis.explanations[i].name == name;
  EXPECT_TRUE(diagnosis.kind == Diagnosis::Kind::kExplained && named)
      << planted.owned.model.config().family << " " << planted.objective << ", planted " << name << ":\n"
      << diagnosis_text(diagnosis);
}

/// Eight rows of unequal lengths under `model`.
inline DiagnoseCase eight_rows(const std::string& model, const OptionMap& options = {},
                               const std::vector<int64_t>& lengths = {9, 5, 7, 11, 4, 8, 6, 10}) {
  return diagnose_case({model, "sft", options, "full", "three", 9}, random_batch(lengths, 101, 4));
}

inline Tensors weighted(const Tensors& a, double by, const Tensors& b) {
  Tensors sum = a;
  for (auto& [name, gradient] : sum) gradient = gradient + b.at(name) * by;
  return sum;
}

/// The diagnosis says `words`, in the first sentence, or in one that fits alike.
inline void expect_said(const DiagnoseCase& planted, const Tensors& gradients, const std::string& words,
                        double noise = 0.0) {
  const Diagnosis found = diagnose(planted, gradients, noise);
  const std::string text = diagnosis_text(found);
  bool said =
      found.kind == Diagnosis::Kind::kLocated && found.location->sentence.find(words) != std::string::npos;
  for (size_t i = 0; i < found.fitting; ++i)
    said = said || found.explanations[i].sentence.find(words) != std::string::npos;
  EXPECT_TRUE(said) << "expected: " << words << "\n" << text;
}

}  // namespace streambp::verify
