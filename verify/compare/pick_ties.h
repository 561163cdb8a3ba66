// Which rows an indexer picks is a matter of rounding where the scores of two of them are nearly the same.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// Other picks of one row, or what one head of a layer's indexer picks for it.
struct OtherPicks {
  int64_t layer = 0, row = 0;
  at::Tensor picks;  // [width] int32
};

struct PickTies {
  std::vector<OtherPicks> others;                // the most frequent first
  std::vector<std::vector<OtherPicks>> of_runs;  // those of one run together, of `low` first
  int64_t rows = 0;                              // that have others in some layer
  std::vector<int64_t> layers;                   // where
};

/// The picks that rounding in `dtype` may change: a row is near a tie if its indexer picks others where every
/// weight is off by a few units in the last place of `dtype`, or in a pass of `low`, the same model in it,
/// while all layers' rows see what they see without that. Nothing for a model without indexers, and where
/// picks are given.
PickTies find_pick_ties(const WrongSubject& subject, Model& low, at::ScalarType dtype);

/// How many rows of each layer leave out one with the very score of one that their indexer picks: which noise
/// does not show, since what a ReLU makes 0 stays 0. Of such rows torch.topk on a CPU, which transformers
/// asks, takes others than the library does. Nothing where picks are given.
std::map<int64_t, int64_t> tied_rows(const WrongSubject& subject);

/// Passes for other picks, at most.
inline constexpr size_t kMostPickPasses = 32;

/// The gradients where rows see these in place of what their indexers pick.
Tensors with_picks(const WrongSubject& subject, const std::vector<OtherPicks>& others);

}  // namespace streambp::verify
