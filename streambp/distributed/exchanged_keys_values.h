// The keys and values of one layer where ranks divide sequences.
#pragma once

#include <functional>
#include <vector>

#include "streambp/backprop/carry_stream.h"
#include "streambp/distributed/communicator.h"
#include "streambp/distributed/row_routes.h"

namespace streambp {

class RowsOfRank;

/// Those of all rows that this rank has or looks at, as far as windows and sequences reach: every rank stores
/// its own, begin() exchanges them. A chunk's prefix is then the earlier rows of its sequence, on whatever
/// rank they are computed. Backward each chunk leaves gradients for all rows that it looks at; end() sends
/// those of other ranks' rows to them, half-precision ones in float32, and received() then gives what has
/// come back.
class ExchangedKeysValues final : public CarryStream {
 public:
  ExchangedKeysValues(Communicator& communicator, const RowsOfRank& rows, const RowRoutes& routes,
                      const Model& model, int64_t layer);

  int64_t first_seen_by(int64_t /*index*/) const override { return 0; }
  void allocate_gradients() override;
  void move_to(int64_t /*first*/) override {}
  void store(const Rows& rows, const Carry& own) override;
  Before before(const Rows& rows) override;
  Carry received(const Rows& rows) const override;
  bool needs_all() const override { return true; }
  void begin() override;
  bool end() override;

 private:
  /// A tensor's rows of the whole, `range` within what the rank has or looks at; a view.
  at::Tensor view(const at::Tensor& all, const RowRange& range) const;
  /// A chunk's rows of a tensor, [n, K, E].
  at::Tensor rows_of(const at::Tensor& all, const Rows& rows) const;

  /// What a rank sends to another and receives from it, by ranks.
  using Ranges = std::function<const RowRanges&(int64_t other)>;
  /// Exchanges rows of `buffers` with all other ranks; `arrived` takes what has come for rows of a buffer, in
  /// the order of steps. Without it they go to the buffer itself.
  void exchange(const KeysValues& buffers, const Ranges& sent, const Ranges& received,
                const std::function<void(const at::Tensor& rows, const at::Tensor& arrived)>& arrived = {});

  Communicator& communicator_;
  const RowsOfRank& rows_;
  const RowRoutes& routes_;
  int64_t window_;
  bool is_exchanged_ = false;
  bool has_ended_ = false;
  KeysValues all_;        // [R, K, E], R the rows that the rank has or looks at
  KeysValues gradients_;  // the same, summed wide; undefined in a forward pass
};

}  // namespace streambp
