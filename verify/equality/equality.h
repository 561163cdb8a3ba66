// `streambp-verify sweep`: that every method computes the same gradients, on random small models and awkward
// batches, for every objective.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "streambp/backprop/settings.h"
#include "verify/equality/inputs.h"

namespace streambp::verify {

/// How far gradients, loss, log-probabilities and values may be from standard back-propagation's and from the
/// reference's, in float64.
inline constexpr double kStandardLimit = 1e-12;
inline constexpr double kReferenceLimit = 1e-10;

struct EqualityOptions {
  std::vector<std::string> models;      // presets and folders
  std::vector<std::string> methods;     // of method_names(): those to check
  std::vector<std::string> objectives;  // registered ones
  std::map<std::string, std::string>
      settings;                      // options of a single objective; empty: a choice of them in turn
  std::vector<std::string> tunings;  // of equality_tuning_names()
  std::vector<std::string> batches;  // of equality_batch_names()
  std::vector<int64_t> lengths;      // of a batch's longest sequence
  int64_t padded_length = 13;        // the same, of batches left, right and none
  int64_t window_length = 0;         // of one more sequence for models with windows; 0: none
  std::vector<int64_t> chunks;       // of methods by chunks; empty: 1 and those around the batch's boundaries
  std::vector<int64_t> head_chunks;  // empty: 1, 3 and all scored tokens at once
  std::string config;                // keys of config.json in place of the presets': equality_config
  std::vector<RowLengths> rows;      // of padded batches and documents, in place of lengths
  /// These settings and no variants of them, and of chunks and head chunks those that are named (or auto):
  /// one run each, against standard and against the reference. Made for random models and rows: where these
  /// magnify rounding errors, so that standard itself is more than 1e-13 from the reference, the limit to
  /// standard is ten times that, up to kReferenceLimit; and a gradient that is smaller than a thousandth of
  /// the model's largest is measured as if it were that large, since its terms may cancel, and a loss below a
  /// thousandth likewise.
  std::optional<Settings> alone;
  int64_t micro_batches = 1;  // with `alone`: as many parts of the batch, against the whole, as well
  size_t part_index = 1;      // of the rows, every part_count-th from the part_index-th on
  size_t part_count = 1;
  int jobs = 1;  // rows at the same time
  uint64_t seed = 0;
  bool quick = false;  // fewer chunks, and of objectives, tunings and paddings one combination for each model
  bool json = false;
};

/// The batches, by name. Of sft with all weights trained: single, three, short, masked, unscored, packed,
/// frozen. Of every objective, by their padding: left, right, none. Of those whose rows documents may stand
/// for: documents.
std::vector<std::string> equality_batch_names();

/// full, lora.
std::vector<std::string> equality_tuning_names();

/// Prints a row (or, with json, an object) for each model, objective, tuning, batch and length as it is done.
/// Returns 0 if all is equal, 1 if not, each failure with a command line that repeats it. Throws InputError
/// for bad input.
int run_equality(const EqualityOptions& options);

}  // namespace streambp::verify
