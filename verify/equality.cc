#include "verify/equality.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "reference/objectives.h"
#include "streambp/driver/command_line.h"
#include "streambp/error.h"
#include "verify/equality_batches.h"
#include "verify/equality_report.h"
#include "verify/evaluation.h"

namespace streambp {
namespace {

/// Settings as people read them.
std::string text_of(const Settings& settings) {
  std::string text = method_name(settings.method);
  if (settings.method == Method::kStreambp)
    text += settings.chunk == 0 ? " chunk auto" : fmt::format(" chunk {}", settings.chunk);
  if (!settings.streams_head()) return text + ", full head";
  return text + (settings.head_chunk == 0 ? ", head chunk auto"
                                          : fmt::format(", head chunk {}", settings.head_chunk));
}

Settings make_settings(Method method, int64_t chunk, std::optional<int64_t> head_chunk) {
  Settings settings;
  settings.method = method;
  settings.chunk = chunk;
  settings.stream_head = head_chunk.has_value();
  settings.head_chunk = head_chunk.value_or(0);
  return settings;
}

enum class Judge { kStandard, kReference };

/// All comparisons of one row.
class RowCheck {
 public:
  RowCheck(const EqualityOptions& options, const std::string& model, const std::string& batch, int64_t length)
      : options_(options), model_(equality_model(model, options.seed)) {
    const bool frozen = batch == "frozen";
    batch_ = equality_batch(frozen ? "three" : batch, length, model_.config().vocab_size, options.seed);
    objective_ = make_sft(batch_);
    scored_ = batch_.targets.ne(kNoTarget).sum().item<int64_t>();
    row_.model = model;
    row_.batch = batch;
    row_.length = length;
    for (size_t i = 0; i + 1 < batch_.offsets.size(); ++i)
      row_.lengths.push_back(batch_.offsets[i + 1] - batch_.offsets[i]);
    reference_ = evaluate_reference(model_, batch_,
                                    reference::sft(static_cast<double>(std::max<int64_t>(scored_, 1))));
    standard_ = run(make_settings(Method::kStandard, 0, std::nullopt));
    for (const std::string& name : options.methods) methods_.push_back(parse_method(name));
  }

  EqualityRow row() && {
    if (row_.batch == "frozen") {
      check_frozen();
      return std::move(row_);
    }
    check_results();
    check_identities();
    for (const Method method : methods_) check_accumulation(method);
    return std::move(row_);
  }

 private:
  Evaluation run(const Settings& settings) { return evaluate(model_, batch_, *objective_, settings); }

  std::vector<int64_t> chunks() const {
    if (!options_.chunks.empty()) return options_.chunks;
    const int64_t tokens = batch_.size();
    std::set<int64_t> chunks{1, tokens - 1, tokens, tokens + 7};
    for (size_t i = 1; i + 1 < batch_.offsets.size(); ++i) {
      for (const int64_t around : {-1, 0, 1}) {
        if (!options_.quick || (i == 1 && around >= 0)) chunks.insert(batch_.offsets[i] + around);
      }
    }
    // The smallest that leaves a last chunk of one token.
    for (int64_t chunk = 3; chunk < tokens; ++chunk) {
      if (tokens % chunk != 1) continue;
      chunks.insert(chunk);
      break;
    }
    chunks.erase(chunks.begin(), chunks.upper_bound(0));
    return {chunks.begin(), chunks.end()};
  }

  /// Chunks of the head; nullopt: in full.
  std::vector<std::optional<int64_t>> heads() const {
    std::set<int64_t> chunks(options_.head_chunks.begin(), options_.head_chunks.end());
    if (chunks.empty()) chunks = {1, 3, std::max<int64_t>(scored_, 1)};
    std::vector<std::optional<int64_t>> heads{std::nullopt};
    heads.insert(heads.end(), chunks.begin(), chunks.end());
    return heads;
  }

  std::string repeat(const Settings& settings) const {
    std::string command =
        fmt::format("streambp-verify sweep --model {} --batch {} --seq-len {} --seed {} --method {}",
                    row_.model, row_.batch, row_.length, options_.seed, method_name(settings.method));
    if (settings.chunk > 0) command += fmt::format(" --chunk {}", settings.chunk);
    if (settings.head_chunk > 0) command += fmt::format(" --head-chunk {}", settings.head_chunk);
    return command;
  }

  /// Loss, log-probabilities and gradients within the judge's limit of `truth`.
  void require_near(const Evaluation& value, const Evaluation& truth, Judge judge, const std::string& against,
                    const Settings& settings) {
    EvaluationErrors errors = measure(value, truth);
    const double limit = judge == Judge::kStandard ? kStandardLimit : kReferenceLimit;
    double& worst_error = judge == Judge::kStandard ? row_.standard_error : row_.reference_error;
    worst_error = worse(worst_error, errors.worst());
    if (judge == Judge::kStandard && !errors.gradients.empty() &&
        (row_.worst.name.empty() || is_worse(errors.worst_gradient(), row_.worst.error))) {
      row_.worst = errors.gradients.front();
    }
    errors.gradients.push_back({"loss", errors.loss, {}});
    errors.gradients.push_back({"log-probabilities", errors.log_probabilities, {}});
    row_.comparisons += static_cast<int64_t>(errors.gradients.size());
    std::stable_sort(
        errors.gradients.begin(), errors.gradients.end(),
        [](const ParameterError& a, const ParameterError& b) { return is_worse(a.error, b.error); });
    const auto failed = std::count_if(errors.gradients.begin(), errors.gradients.end(),
                                      [&](const ParameterError& of) { return !(of.error <= limit); });
    row_.failed += failed;
    if (failed == 0) return;
    const ParameterError& worst = errors.gradients.front();
    const std::string problem = worst.problem.empty() ? "" : " (" + worst.problem + ")";
    row_.failures.push_back({fmt::format("{}, against {}", text_of(settings), against),
                             fmt::format("{} of {} beyond {}, worst {} {}{}", failed, errors.gradients.size(),
                                         error_text(limit), worst.name, error_text(worst.error), problem),
                             repeat(settings)});
  }

  void require(bool holds, const std::string& what, const Settings& settings) {
    ++row_.comparisons;
    if (holds) return;
    ++row_.failed;
    row_.failures.push_back({text_of(settings) + ", " + what, "not so to the last bit", repeat(settings)});
  }

  /// Every method and setting against standard and against the reference.
  void check_results() {
    require_near(standard_, reference_, Judge::kReference, "the reference",
                 make_settings(Method::kStandard, 0, std::nullopt));
    for (const Method method : methods_) {
      for (const int64_t chunk : method == Method::kStreambp ? chunks() : std::vector<int64_t>{0}) {
        for (const std::optional<int64_t> head : heads()) {
          const Settings settings = make_settings(method, chunk, head);
          const Evaluation value = run(settings);
          require_near(value, standard_, Judge::kStandard, "standard", settings);
          require_near(value, reference_, Judge::kReference, "the reference", settings);
          if (scored_ == 0) require_zero(value, settings);
        }
      }
    }
  }

  /// Without a target there is no loss, and not the smallest gradient.
  void require_zero(const Evaluation& value, const Settings& settings) {
    require(value.loss == 0.0 && is_zero(value.log_probabilities), "loss 0 without a target", settings);
    for (const auto& [name, gradient] : value.gradients) {
      require(is_zero(gradient), "gradient of " + name + " 0 without a target", settings);
    }
  }

  /// Where the arithmetic is the same, so is every bit.
  void check_identities() {
    const Batch left = repack(batch_, Side::kLeft, model_.config().vocab_size);
    const Batch right = repack(batch_, Side::kRight, model_.config().vocab_size);
    for (const Method method : methods_) {
      const Settings settings =
          make_settings(method, method == Method::kStreambp ? chunks()[chunks().size() / 2] : 0, 3);
      const Evaluation value = run(settings);
      require(bit_equal(run(settings), value), "repeated", settings);
      require(bit_equal(evaluate(model_, left, *objective_, settings), value), "the batch padded on the left",
              settings);
      require(bit_equal(evaluate(model_, right, *objective_, settings), value),
              "the batch padded on the right", settings);
      if (method != Method::kStreambp) continue;
      for (const std::optional<int64_t> head : heads()) {
        const Evaluation checkpoint = run(make_settings(Method::kCheckpoint, 0, head));
        for (const int64_t chunk : {batch_.size(), batch_.size() + 7}) {
          const Settings whole = make_settings(Method::kStreambp, chunk, head);
          require(bit_equal(run(whole), checkpoint), "checkpoint and one chunk of the whole stream", whole);
        }
      }
    }
  }

  /// A second run without zeroing in between adds the same again.
  void check_accumulation(Method method) {
    const Settings settings =
        make_settings(method, method == Method::kStreambp ? chunks().front() : 0, std::nullopt);
    Evaluation twice = run(settings);
    for (auto& [name, gradient] : twice.gradients) gradient.mul_(2.0);
    const Outcome outcome = backpropagate(model_, batch_, *objective_, settings);
    Evaluation value{outcome.loss, outcome.log_probabilities, {}};
    for (const auto& parameter : model_.parameters())
      value.gradients.emplace(parameter->name, parameter->gradient.clone());
    require_near(value, twice, Judge::kStandard, "twice the gradient of one run", settings);
  }

  /// Frozen parameters get no gradient, and the others get theirs.
  void check_frozen() {
    for (const Trainable& choice : trainable_choices(model_.config())) {
      Evaluation truth = standard_;
      std::erase_if(truth.gradients, [&](const auto& gradient) { return !choice.chosen(gradient.first); });
      Evaluation reference_truth = reference_;
      std::erase_if(reference_truth.gradients,
                    [&](const auto& gradient) { return !choice.chosen(gradient.first); });
      Model model = equality_model(row_.model, options_.seed, choice.chosen);
      for (const Method method : methods_) {
        for (const int64_t chunk : method == Method::kStreambp ? chunks() : std::vector<int64_t>{0}) {
          for (const std::optional<int64_t> head : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
            const Settings settings = make_settings(method, chunk, head);
            const Evaluation value = evaluate(model, batch_, *objective_, settings);
            const std::string against = fmt::format("standard with all but {} frozen", choice.name);
            require_near(value, truth, Judge::kStandard, against, settings);
            require_near(value, reference_truth, Judge::kReference, "the reference", settings);
          }
        }
      }
    }
  }

  const EqualityOptions& options_;
  Model model_;
  Batch batch_;
  std::unique_ptr<Objective> objective_;
  int64_t scored_ = 0;
  std::vector<Method> methods_;
  Evaluation reference_;
  Evaluation standard_;
  EqualityRow row_;
};

}  // namespace

std::vector<std::string> equality_batch_names() {
  return {"single", "three", "short", "masked", "unscored", "frozen"};
}

int run_equality(const EqualityOptions& options) {
  std::vector<EqualityRow> rows;
  for (const std::string& model : options.models) {
    for (const int64_t length : options.lengths) {
      for (const std::string& batch : options.batches) {
        rows.push_back(RowCheck(options, model, batch, length).row());
        if (options.json) print_json(rows.back());
      }
    }
  }
  if (!options.json) print_table(rows);
  const bool good =
      std::all_of(rows.begin(), rows.end(), [](const EqualityRow& row) { return row.failures.empty(); });
  return good ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp
