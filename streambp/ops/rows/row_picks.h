// The earlier rows that indexers have picked for each row of a stream, for layers that run more than once or
// see another layer's picks; or those that are given in their place.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/rows/pick_kind.h"

namespace streambp {

/// What the indexers of a stream have picked, layer by layer. A layer that runs again takes the picks of its
/// first run, whose last bits another product need not repeat: a nearly tied row would change places, and the
/// gradient would be that of another function. So nothing an indexer holds outlives its layer's forward pass
/// but the picks, 4 topk bytes a row and head that picks by itself.
/// The forward pass takes a layer's rows from first to last.
class RowPicks {
 public:
  /// For a stream whose sequences begin at `offsets`, its end last.
  RowPicks(const PickKind& kind, const std::vector<int64_t>& offsets);

  const PickKind& kind() const { return kind_; }

  /// Has `picks` [N, k] int32 of all rows of `layer` stand for those that its indexer would pick, but for
  /// rows where `open` [N] bool, on the CPU, for which it picks after all; where there are any, k is topk. To
  /// be done before any layer runs, of all that have an indexer.
  void give(int64_t layer, const at::Tensor& picks, const at::Tensor& open);

  /// Whether picks were given: they are then to be read of every row.
  bool are_given() const { return given_; }

  /// Whether any sequence is longer than what a row may see, or picks were given: else nothing is ever
  /// picked.
  bool are_needed() const { return needed_ || given_; }

  /// Whether the layer's rows before `end` have run, or all of their picks were given.
  bool are_known(int64_t layer, int64_t end) const;

  /// The picks [n, width] int32 of rows [begin, begin + n), which have run, as numbers of rows, or blocks, in
  /// their own sequences; of rows that see no more than topk rows anything, unless they were given.
  at::Tensor find(int64_t layer, int64_t begin, int64_t n) const;

  /// The first of rows [begin, end) whose picks were not given; `end`: there is none.
  int64_t first_open(int64_t layer, int64_t begin, int64_t end) const;

  /// Takes over what the layer's indexer has picked [n, width] for rows from `begin` on; of rows whose picks
  /// were given nothing.
  void keep(int64_t layer, int64_t begin, const at::Tensor& picks);

  /// Takes over the indexer's keys [n, E] of rows from `begin` on; returns those of [first, begin + n).
  at::Tensor add_keys(int64_t layer, int64_t first, int64_t begin, const at::Tensor& keys);

  /// The layer's rows before `end` have their picks.
  void finish(int64_t layer, int64_t end);

  /// Takes over how many rows of `layer` leave out one with the very score of one they pick. Throws
  /// InputError if there are any where that is refused.
  void count_tied(int64_t layer, int64_t rows);

  /// The same of all layers that have such rows.
  const std::map<int64_t, int64_t>& tied_rows() const { return tied_rows_; }

  /// Picks have to be those of somebody who breaks ties otherwise.
  void refuse_ties() { refuses_ties_ = true; }

  /// No backward pass follows: a layer's picks are let go of once a layer above has its own.
  void keep_none() { keeps_ = false; }

  /// A layer's picks are not asked for again.
  void drop(int64_t layer) { layers_.erase(layer); }

 private:
  struct OfLayer {
    at::Tensor picks;  // [N, width] int32, undefined until a row picks
    at::Tensor keys;   // [N, E], until the last row has run
    int64_t end = 0;   // of the rows that have run
    at::Tensor open;   // [N] bool on the CPU: of given picks those of the indexer; undefined: none
  };

  PickKind kind_;
  int64_t tokens_;
  bool needed_ = false;
  bool given_ = false;
  bool keeps_ = true;
  bool refuses_ties_ = false;
  std::map<int64_t, int64_t> tied_rows_;
  std::map<int64_t, OfLayer> layers_;
};

}  // namespace streambp
