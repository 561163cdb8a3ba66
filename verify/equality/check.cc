#include "verify/equality/check.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <set>

#include "bench/baseline/hugging_face.h"
#include "streambp/backprop/embeddings.h"
#include "streambp/model/model_ops.h"
#include "streambp/model/scored.h"
#include "streambp/ops/backend.h"
#include "verify/equality/batches.h"
#include "verify/equality/inputs.h"
#include "verify/equality/measure_alone.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

Settings make_settings(Method method, int64_t chunk, std::optional<int64_t> head_chunk) {
  Settings settings;
  settings.method = method;
  settings.chunk = chunk;
  settings.stream_head = head_chunk.has_value();
  settings.head_chunk = head_chunk.value_or(0);
  return settings;
}

enum class Judge { kStandard, kReference };

/// How much farther from standard than standard is from the reference a method may be by itself: see
/// limit_to_standard.
constexpr double kOfStandardsOwn = 10.0;

class RowCheck {
 public:
  RowCheck(const EqualityOptions& options, const RowName& name)
      : options_(options), subject_(make_subject(name, options.seed)) {
    bench::add_baselines();  // one of the settings that are run
    scored_ = scored_indices(subject_.batch).size(0);
    row_.name = name;
    const std::vector<int64_t>& offsets = subject_.batch.offsets;
    for (size_t i = 0; i + 1 < offsets.size(); ++i) row_.lengths.push_back(offsets[i + 1] - offsets[i]);
    standard_ = run(make_settings(Method::kStandard, 0, std::nullopt));
    for (const std::string& method : options.methods) methods_.push_back(parse_method(method));
  }

  EqualityRow row() && {
    if (row_.name.batch == "frozen") {
      check_frozen();
      return std::move(row_);
    }
    if (options_.alone) {
      check_alone();
      return std::move(row_);
    }
    check_results();
    for (size_t i = 0; i < methods_.size(); ++i) {
      if (is_turn(i, kIdentityTurns)) check_identities(methods_[i]);
      if (!is_turn(i + 1, kIdentityTurns)) continue;
      check_accumulation(methods_[i]);
      check_micro_batches(make_settings(methods_[i], is_chunked(methods_[i]) ? 5 : 0, 3), 3);
    }
    return std::move(row_);
  }

 private:
  Evaluation run(const Settings& settings) { return run_on(subject_.batch, settings); }

  Evaluation run_on(const Batch& batch, const Settings& settings) {
    Settings without_sizes = settings;
    without_sizes.chunk = without_sizes.head_chunk = 0;
    row_.settings.insert(configuration_text(without_sizes));
    return evaluate(subject_.model, batch, *subject_.objective, settings, subject_.teacher.get());
  }

  /// Whether the routers' loss stays where nothing is scored.
  bool balances() const { return subject_.objective->router_loss.of(subject_.model.config().mixture) != 0.0; }
  bool embeds() const { return subject_.objective->request().pooling != Pooling::kNone; }

  bool is_padded() const { return is_padded_batch(row_.name.batch); }

  /// Those that cut sequences at their ends and next to them.
  std::vector<int64_t> chunks() const {
    if (!options_.chunks.empty()) return options_.chunks;
    if (is_padded()) return padded_chunks();
    const int64_t tokens = subject_.batch.size();
    const std::vector<int64_t>& offsets = subject_.batch.offsets;
    // A long sequence is there for the attention kernel's tiles, which fewer chunks cut as well.
    if (row_.name.length == options_.window_length) return {tokens * 2 / 5, tokens - 1};
    std::set<int64_t> chunks{1, tokens - 1, tokens, tokens + 7};
    for (size_t i = 1; i + 1 < offsets.size(); ++i) {
      for (const int64_t around : {-1, 0, 1}) {
        if (!options_.quick || (i == 1 && around >= 0)) chunks.insert(offsets[i] + around);
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

  /// Fewer, for more rows: those that end with the first prompt, within its completion, at a sequence's end.
  std::vector<int64_t> padded_chunks() const {
    const int64_t tokens = subject_.batch.size();
    // A completion begins after its first scored index.
    const int64_t sequence = subject_.batch.offsets[1];
    const at::Tensor scored = scored_indices(subject_.batch);
    const int64_t prompt = scored.size(0) > 0 ? scored[0].item<int64_t>() + 1 : sequence / 2 + 1;
    if (options_.quick) return {prompt, prompt + 1, tokens - 1};
    const std::set<int64_t> chunks{1, prompt, prompt + 1, sequence, tokens - 1};
    return {chunks.begin(), chunks.end()};
  }

  std::vector<int64_t> chunks_of(Method method) const {
    return is_chunked(method) ? chunks() : std::vector<int64_t>{0};
  }

  /// The head in full, where the method has one.
  static std::optional<int64_t> plain_head(Method method) {
    const bool streamed = method_kind(method).head == HeadDefault::kAlwaysStreamed;
    return streamed ? std::optional<int64_t>(3) : std::nullopt;
  }

  /// Chunks of the head; nullopt: in full.
  std::vector<std::optional<int64_t>> heads(Method method) const {
    std::set<int64_t> chunks(options_.head_chunks.begin(), options_.head_chunks.end());
    if (chunks.empty()) chunks.insert(3);
    if (options_.head_chunks.empty() && !is_padded()) chunks.insert({1, std::max<int64_t>(scored_, 1)});
    std::vector<std::optional<int64_t>> heads;
    if (!plain_head(method)) heads.emplace_back();
    heads.insert(heads.end(), chunks.begin(), chunks.end());
    return heads;
  }

  std::string repeat(const Settings& settings) const {
    return repeat_command(row_.name, options_.seed, settings, options_.alone.has_value(),
                          options_.micro_batches);
  }

  /// Loss, log-probabilities and gradients within the judge's limit of `truth`.
  void require_near(const Evaluation& value, const Evaluation& truth, Judge judge, const std::string& against,
                    const Settings& settings) {
    const EvaluationErrors errors = options_.alone ? measure_alone(value, truth) : measure(value, truth);
    const double limit = judge == Judge::kStandard ? limit_to_standard() : kReferenceLimit;
    double& worst_error = judge == Judge::kStandard ? row_.standard_error : row_.reference_error;
    worst_error = worse(worst_error, errors.worst());
    if (judge == Judge::kStandard && !errors.gradients.empty() &&
        (row_.worst.name.empty() || is_worse(errors.worst_gradient(), row_.worst.error))) {
      row_.worst = errors.gradients.front();
    }
    std::vector<ParameterError> all = errors.all();
    row_.comparisons += static_cast<int64_t>(all.size());
    std::stable_sort(all.begin(), all.end(), [](const ParameterError& a, const ParameterError& b) {
      return is_worse(a.error, b.error);
    });
    const auto failed =
        std::count_if(all.begin(), all.end(), [&](const ParameterError& of) { return !(of.error <= limit); });
    row_.failed += failed;
    if (failed == 0) return;
    const ParameterError& worst = all.front();
    const std::string problem = worst.problem.empty() ? "" : " (" + worst.problem + ")";
    row_.failures.push_back({fmt::format("{}, against {}", configuration_text(settings), against),
                             fmt::format("{} of {} beyond {}, worst {} {}{}", failed, all.size(),
                                         error_text(limit), worst.name, error_text(worst.error), problem),
                             repeat(settings)});
  }

  /// A model of random sizes may magnify rounding errors (a norm of next to nothing does): by how much, two
  /// programs that share no code say.
  double limit_to_standard() const {
    if (!options_.alone) return kStandardLimit;
    const double own = measure_alone(standard_, subject_.reference).worst();
    return std::clamp(kOfStandardsOwn * own, kStandardLimit, kReferenceLimit);
  }

  void require(bool holds, const std::string& what, const Settings& settings) {
    ++row_.comparisons;
    if (holds) return;
    ++row_.failed;
    row_.failures.push_back(
        {configuration_text(settings) + ", " + what, "not so to the last bit", repeat(settings)});
  }

  /// Every method and setting against standard and against the reference.
  void check_results() {
    require_near(standard_, subject_.reference, Judge::kReference, "the reference",
                 make_settings(Method::kStandard, 0, std::nullopt));
    for (const Method method : methods_) {
      const std::vector<std::optional<int64_t>> all = heads(method);
      const size_t step = options_.quick && is_chunked(method) ? kSettingTurns : 1;
      size_t turn = row_.name.turn;
      for (const int64_t chunk : chunks_of(method)) {
        const auto variants = same_gradients_variants(make_settings(method, chunk, 3));
        for (size_t i = turn % step; i < all.size(); i += step)
          check_result(make_settings(method, chunk, all[i]));
        for (size_t i = turn % step; i < variants.size(); i += step) check_result(variants[i]);
        ++turn;
      }
    }
  }

  void check_result(const Settings& settings) {
    const Evaluation value = run(settings);
    require_near(value, standard_, Judge::kStandard, "standard", settings);
    require_near(value, subject_.reference, Judge::kReference, "the reference", settings);
    if (scored_ == 0 && !embeds() && !balances()) require_zero(value, settings);
  }

  /// One run of each method, chunk and head chunk, and what its parts add up to.
  void check_alone() {
    for (const Method method : methods_) {
      Settings settings = *options_.alone;
      settings.method = method;
      for (const int64_t chunk : named_or_auto(is_chunked(method), options_.chunks)) {
        settings.chunk = chunk;
        for (const int64_t head_chunk : named_or_auto(settings.streams_head(), options_.head_chunks)) {
          settings.head_chunk = head_chunk;
          check_result(settings);
          if (options_.micro_batches > 1) check_micro_batches(settings, options_.micro_batches);
        }
      }
    }
  }

  /// 0 where none is named, or where there is nothing to cut.
  static std::vector<int64_t> named_or_auto(bool is_cut, const std::vector<int64_t>& named) {
    return is_cut && !named.empty() ? named : std::vector<int64_t>{0};
  }

  /// Without a target there is no loss, and not the smallest gradient.
  void require_zero(const Evaluation& value, const Settings& settings) {
    require(value.loss == 0.0 && is_zero(value.log_probabilities), "loss 0 without a target", settings);
    for (const auto& [name, gradient] : value.gradients) {
      require(is_zero(gradient), "gradient of " + name + " 0 without a target", settings);
    }
  }

  /// Whether the i-th of a list is for this row: in a quick sweep one in `step`, others in the next row, so
  /// that over some 400 rows each is checked with every family, objective and batch many times.
  bool is_turn(size_t i, size_t step) const { return !options_.quick || (i + row_.name.turn) % step == 0; }

  /// Where the arithmetic is the same, so is every bit.
  void check_identities(Method method) {
    const std::vector<int64_t> cuts = chunks_of(method);
    const Settings settings = make_settings(method, cuts[cuts.size() / 2], 3);
    const Evaluation value = run(settings);
    require(bit_equal(run(settings), value), "repeated", settings);
    for (const auto& [what, twin] : subject_.twins)
      require(bit_equal(run_on(twin, settings), value), what, settings);
    check_variants(settings, value, /*with_full_head=*/false);
    const Settings full_head = make_settings(method, settings.chunk, plain_head(method));
    check_variants(full_head, run(full_head), /*with_full_head=*/true);
    check_one_chunk(method);
  }

  /// Settings that change memory and time and no bit of `expected`, what `plain` gives.
  void check_variants(const Settings& plain, const Evaluation& expected, bool with_full_head) {
    const std::vector<Settings> variants = same_bits_variants(plain, with_full_head);
    const size_t step = options_.quick ? kVariantTurns : 1;
    for (size_t i = row_.name.turn / kIdentityTurns % step; i < variants.size(); i += step) {
      const Settings& variant = variants[i];
      // The baselines have other libraries' log-softmax, and ours the log-odds of the targets; on a GPU ours
      // has a kernel of its own in addition.
      const bool has_baseline = variant.baseline != plain.baseline;
      if (has_baseline && (is_for_cuda(subject_.model.parameters().front()->value) ||
                           !model_ops(variant.baseline).keeps_confident_targets())) {
        require_near(run(variant), expected, Judge::kStandard, configuration_text(plain), variant);
        continue;
      }
      require(bit_equal(run(variant), expected), "the same as " + configuration_text(plain), variant);
    }
  }

  /// A method by chunks, with one that holds the whole stream.
  void check_one_chunk(Method method) {
    const std::optional<Method>& twin = method_kind(method).equal_with_one_chunk;
    if (!twin) return;
    for (const std::optional<int64_t> head : heads(method)) {
      const Evaluation expected = run(make_settings(*twin, 0, head));
      for (const int64_t chunk : {subject_.batch.size(), subject_.batch.size() + 7}) {
        const Settings whole = make_settings(method, chunk, head);
        require(bit_equal(run(whole), expected), "the same as " + method_name(*twin), whole);
      }
    }
  }

  /// A second run without zeroing in between adds the same again.
  void check_accumulation(Method method) {
    const Settings settings = make_settings(method, chunks_of(method).front(), plain_head(method));
    Evaluation twice = run(settings);
    twice.log_probabilities.reset();
    twice.values.reset();
    for (auto& [name, gradient] : twice.gradients) gradient.mul_(2.0);
    require_near(added({subject_.batch}, settings), twice, Judge::kStandard, "twice the gradient of one run",
                 settings);
  }

  /// What runs over `parts` of the batch add to the gradients as they stand. The loss is the sum of theirs.
  Evaluation added(const std::vector<Batch>& parts, const Settings& settings) {
    Evaluation sum;
    const RowName& name = row_.name;
    const auto objectives =
        part_objectives(subject_.model, name.objective, subject_.batch, parts, name.settings);
    for (size_t i = 0; i < parts.size(); ++i) {
      sum.loss +=
          backpropagate(subject_.model, parts[i], *objectives[i], settings, subject_.teacher.get()).loss;
    }
    sum.gradients = gradients_of(subject_.model);
    return sum;
  }

  /// The whole batch's gradient from its parts, each normalised by the counts of all. Pairs stay together.
  void check_micro_batches(const Settings& settings, int64_t count) {
    const Layout layout = objective_kind(row_.name.objective).layout;
    // Rows of KTO's estimate enter every other row: such a batch has no parts.
    if (layout == Layout::kLabelled && row_.name.batch != "none") return;
    // Nor have sorted pairs, tokens of which those of highest entropy count, and the experts' balance.
    if (row_.name.settings.contains("top_entropy_quantile")) return;
    const auto loss_type = row_.name.settings.find("loss_type");
    if (loss_type != row_.name.settings.end() && loss_type->second.find("aot") != std::string::npos) return;
    if (subject_.objective->router_loss.of(subject_.model.config().mixture) != 0.0) return;
    const std::vector<Batch> parts = micro_batches(subject_.batch, count, has_pairs(layout));
    if (parts.size() < 2) return;
    Evaluation whole = run(settings);
    whole.log_probabilities.reset();
    whole.values.reset();
    subject_.model.zero_gradients();
    require_near(added(parts, settings), whole, Judge::kStandard, "the whole batch, from micro-batches",
                 settings);
  }

  /// Frozen parameters get no gradient, and the others get theirs.
  void check_frozen() {
    for (const Trainable& choice : trainable_choices(subject_.model.config())) {
      Evaluation truth = standard_;
      std::erase_if(truth.gradients, [&](const auto& gradient) { return !choice.chosen(gradient.first); });
      Evaluation reference_truth = subject_.reference;
      std::erase_if(reference_truth.gradients,
                    [&](const auto& gradient) { return !choice.chosen(gradient.first); });
      Model model = equality_model(row_.name.model, options_.seed, choice.chosen, 0, row_.name.config);
      size_t turn = 0;
      for (const Method method : methods_) {
        for (const int64_t chunk : chunks_of(method)) {
          for (const std::optional<int64_t> head : {plain_head(method), std::optional<int64_t>(3)}) {
            if (!is_turn(turn++, kSettingTurns)) continue;
            const Settings settings = make_settings(method, chunk, head);
            const Evaluation value = evaluate(model, subject_.batch, *subject_.objective, settings);
            const std::string against = fmt::format("standard with all but {} frozen", choice.name);
            require_near(value, truth, Judge::kStandard, against, settings);
            require_near(value, reference_truth, Judge::kReference, "the reference", settings);
          }
        }
      }
    }
  }

  static constexpr size_t kSettingTurns = 8, kIdentityTurns = 5, kVariantTurns = 3;  // of a quick sweep
  const EqualityOptions& options_;
  EqualitySubject subject_;
  int64_t scored_ = 0;
  std::vector<Method> methods_;
  Evaluation standard_;
  EqualityRow row_;
};

}  // namespace

EqualityRow check_row(const EqualityOptions& options, const RowName& name) {
  return RowCheck(options, name).row();
}

}  // namespace streambp::verify
