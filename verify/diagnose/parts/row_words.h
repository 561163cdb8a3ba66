// What weights of a batch's rows mean: which rows are missing, which are there twice, whose loss is divided
// by what, whose advantages they have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "streambp/objective/objective.h"

namespace streambp::verify {

/// How often each sequence of a batch is in a gradient, where 1 is right, and how well that is known.
struct RowWeights {
  std::vector<double> values;      // NaN: a sequence without a gradient
  std::vector<double> deviations;  // a standard deviation each
};

/// Advantages that rows may have been given instead of their own, by what was done.
struct OtherAdvantages {
  std::string name;
  std::string sentence;
  std::vector<double> of_sequences;
};

struct RowFacts {
  std::string unit = "row";        // or "document"
  std::vector<int64_t> rows;       // of the padded input, of each sequence
  std::vector<double> scored;      // tokens of each sequence
  bool pairs = false;              // whether sequences i and i + S/2 are chosen and rejected
  std::vector<double> advantages;  // one of each sequence; empty: there are none such
  bool advantages_alone =
      false;  // weights are of what advantages multiply, and nothing else of a row has them
  std::vector<OtherAdvantages> other_advantages;
  std::vector<OtherAdvantages> other_weights;  // means of chunks that come to weights of rows
};

/// Of a batch, whose objective has this layout.
RowFacts row_facts(const Batch& batch, Layout layout);

/// Adds the advantages and weights that rows of the batch have where advantages are normalised again, or the
/// loss is a mean of means of chunks.
void add_other_weights(RowFacts& facts, const Batch& batch, Layout layout);

struct RowWords {
  std::string name;
  std::string sentence;
  double factor = 1.0;               // that all rows have in addition to what the sentence says
  std::vector<double> weights = {};  // of the sequences, if it is just so; empty: as they were given
};

/// What gives such weights: everything that does, the simplest first; never nothing, but kRowsWeighted.
inline constexpr const char* kRowsWeighted = "rows-weighted";
std::vector<RowWords> words_for(const RowFacts& facts, const RowWeights& weights);

/// That rows, whose gradients have these `lengths` where they weigh 1, are clipped each by itself: all are as
/// long.
std::optional<RowWords> clipped_rows(const RowFacts& facts, const RowWeights& weights,
                                     const std::vector<double>& lengths);

/// Micro-batches, each a row, that are right but for what an accumulation does to them: each counts so many
/// times as much as the one before, or one of them another number of times than the others.
std::optional<RowWords> accumulated_rows(RowFacts facts, RowWeights weights);

/// Advantages that are those that are given less a number of each group of rows: held against another
/// baseline.
std::optional<RowWords> shifted_advantages(const RowFacts& facts, const RowWeights& weights);

/// Whose advantages each row has, in words.
std::string permutation_text(const std::vector<size_t>& from);

/// "row 3", "rows 0 to 5", "rows 0, 2 and 5".
std::string list_text(const std::string& unit, const std::vector<int64_t>& numbers);

}  // namespace streambp::verify
