#include "verify/equality/equality.h"

#include <algorithm>
#include <mutex>

#include "bench/cli/command_line.h"
#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "verify/equality/batches.h"
#include "verify/equality/check.h"
#include "verify/jobs.h"

namespace streambp::verify {
namespace {

/// The rows of a sweep, in order.
class RowNames {
 public:
  explicit RowNames(const EqualityOptions& options) : options_(options) {}

  std::vector<RowName> all() && {
    for (const std::string& model : options_.models) {
      for (const int64_t length : options_.lengths) {
        for (const std::string& batch : batches_of(model)) {
          if (!is_padded_batch(batch) && options_.rows.empty() && wants(options_.objectives, "sft") &&
              wants(options_.tunings, "full"))
            names_.push_back(plain(model, batch, length));
        }
      }
      if (options_.window_length > 0 && has_windows(model) && wants(options_.batches, "single") &&
          wants(options_.objectives, "sft") && wants(options_.tunings, "full"))
        names_.push_back(plain(model, "single", options_.window_length));
      for (const std::string& objective : objectives_of(model)) add_padded(model, objective);
    }
    for (size_t i = 0; i < names_.size(); ++i) names_[i].turn = i;
    return std::move(names_);
  }

 private:
  static bool wants(const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  }

  RowName plain(const std::string& model, const std::string& batch, int64_t length) const {
    return {model, "sft", options_.settings, "full", batch, length, {}, options_.config};
  }

  bool has_windows(const std::string& model) const {
    if (!is_preset(model)) return false;
    const std::vector<int64_t> windows = equality_config(model, options_.config).windows;
    return std::any_of(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
  }

  /// So many models have each batch and each objective in a quick sweep: one for every kind of layer, and
  /// more.
  static constexpr size_t kModelsOfBatch = 18, kModelsOfObjective = 8;

  /// A quick sweep of many models gives each of them one in so many, the next model the next ones, so that at
  /// least `models` have each.
  size_t turns(size_t models) const {
    return options_.quick ? std::max<size_t>(1, options_.models.size() / models) : 1;
  }

  size_t turn_of(const std::string& model) const {
    const auto& models = options_.models;
    return static_cast<size_t>(std::find(models.begin(), models.end(), model) - models.begin());
  }

  /// All models have three sequences.
  std::vector<std::string> batches_of(const std::string& model) const {
    std::vector<std::string> some;
    for (size_t i = 0; i < options_.batches.size(); ++i) {
      if (options_.batches[i] == "three" || (i + turn_of(model)) % turns(kModelsOfBatch) == 0)
        some.push_back(options_.batches[i]);
    }
    return some;
  }

  /// All models have sft: an objective sees no more of a model than its log-probabilities.
  std::vector<std::string> objectives_of(const std::string& model) const {
    std::vector<std::string> some;
    for (size_t i = 0; i < options_.objectives.size(); ++i) {
      const std::string& objective = options_.objectives[i];
      if (objective == "sft" || (i + turn_of(model)) % turns(kModelsOfObjective) == 0)
        some.push_back(objective);
    }
    return some;
  }

  /// The rows that every objective has. Their options take turns, and in a quick sweep
  /// tunings and paddings do too.
  void add_padded(const std::string& model, const std::string& objective) {
    std::vector<std::string> paddings;
    std::copy_if(
        options_.batches.begin(), options_.batches.end(), std::back_inserter(paddings),
        [&](const std::string& batch) { return is_padded_batch(batch) && has_batch(objective, batch); });
    if (paddings.empty()) return;
    const int64_t length = options_.padded_length;
    if (options_.rows.empty() && length < 4)
      throw InputError("--seq-len {}: expected at least 4 for batches left, right, none and documents",
                       length);
    if (options_.quick) {
      // One combination for each model and objective, another one for the next.
      const size_t turn = turns_[model]++ + turns_[objective];
      add(model, objective, options_.tunings[turn % options_.tunings.size()],
          paddings[turn % paddings.size()], length);
      return;
    }
    for (const std::string& tuning : options_.tunings) {
      for (const std::string& padding : paddings) add(model, objective, tuning, padding, length);
    }
  }

  void add(const std::string& model, const std::string& objective, const std::string& tuning,
           const std::string& padding, int64_t length) {
    RowName name{model,   objective, options_.settings, tuning,
                 padding, length,    options_.rows,     options_.config};
    if (name.settings.empty()) {
      const auto variants = objective_variants(objective);
      name.settings = variants[turns_[objective]++ % variants.size()];
    }
    names_.push_back(name);
  }

  const EqualityOptions& options_;
  std::map<std::string, size_t> turns_;
  std::vector<RowName> names_;
};

}  // namespace

std::vector<std::string> equality_batch_names() {
  return {"single", "three", "short", "masked", "unscored", "packed",
          "frozen", "left",  "right", "none",   "documents"};
}

std::vector<std::string> equality_tuning_names() {
  return {"full", "lora"};
}

int run_equality(const EqualityOptions& options) {
  const std::vector<RowName> names = RowNames(options).all();
  if (names.empty()) {
    throw InputError(
        "sweep: nothing to check: batches left, right and none are for every objective and tuning, documents "
        "for those whose rows they may stand for, the others for sft with tuning full");
  }
  StreamingTable table = equality_table(names);
  std::vector<EqualityRow> rows;
  std::vector<size_t> indices;
  for (size_t i = options.part_index - 1; i < names.size(); i += options.part_count) indices.push_back(i);
  std::mutex output;
  run_jobs(indices, options.jobs, [&](size_t i) {
    EqualityRow row = check_row(options, names[i]);
    const std::lock_guard lock(output);
    rows.push_back(std::move(row));
    if (options.json) {
      print_json(rows.back());
    } else {
      table.add(table_row(rows.back()));
    }
  });
  if (!options.json) print_summary(rows);
  const bool good =
      std::all_of(rows.begin(), rows.end(), [](const EqualityRow& row) { return row.failures.empty(); });
  return good ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp::verify
