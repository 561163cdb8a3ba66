// The keys and values of one layer where ranks divide sequences.
#pragma once

#include <functional>
#include <vector>

#include "streambp/backprop/streamed/carry_stream.h"
#include "streambp/distributed/sequence/row_routes.h"
#include "streambp/distributed/transport/communicator.h"
#include "streambp/model/layers/shared_keys_values.h"

namespace streambp {

class RowsOfRank;

/// How many rows of them are sent at once.
int64_t rows_of_message(const KeysValues& buffers);

/// Those of all rows that this rank has or looks at, as far as windows and sequences reach: every rank stores
/// its own, begin() exchanges them. A chunk's prefix is then the earlier rows of its sequence, on whatever
/// rank they are computed. Backward each chunk leaves gradients for all rows that it looks at; end() sends
/// those of other ranks' rows to them, half-precision ones in float32, and received() then gives what has
/// come back.
///
/// Where other layers read them too (Gemma 4) they are kept from the layer's forward pass on, with the
/// gradients that those layers leave, and neither computed nor exchanged again.
class ExchangedKeysValues final : public CarryStream {
 public:
  ExchangedKeysValues(Communicator& communicator, const RowsOfRank& rows, const RowRoutes& routes,
                      const Model& model, int64_t layer, const Chunks& chunks, SharedKeysValues* shared);

  int64_t first_seen_by(int64_t /*index*/) const override { return is_kept_ ? last_ : 0; }
  void allocate_gradients() override;
  void move_to(int64_t /*first*/) override {}
  void store(const Rows& rows, const Carry& own) override;
  Before before(const Rows& rows) override;
  Carry received(const Rows& rows) const override;
  bool needs_all() const override { return !is_kept_; }
  void begin() override;
  bool end() override;

 private:
  /// A tensor's rows of the whole, `range` within what the rank has or looks at; a view.
  at::Tensor view(const at::Tensor& all, const RowRange& range) const;
  /// A chunk's rows of a tensor, [n, K, E].
  at::Tensor rows_of(const at::Tensor& all, const Rows& rows) const;

  /// Exchanges rows of `buffers` with all other ranks, by ranks; `arrived` takes what has come for rows of a
  /// buffer, in the order of steps. Without it they go to the buffer itself.
  void exchange(const KeysValues& buffers, const std::vector<RowRanges>& sent,
                const std::vector<RowRanges>& received,
                const std::function<void(const at::Tensor& rows, const at::Tensor& arrived)>& arrived = {});

  Communicator& communicator_;
  const RowsOfRank& rows_;
  const RowRoutes& routes_;
  int64_t layer_;
  int64_t window_;
  int64_t last_;              // index of the last chunk
  SharedKeysValues* shared_;  // null where no other layer reads them
  bool is_kept_ = false;      // by the layer's forward pass
  bool is_exchanged_ = false;
  bool has_ended_ = false;
  KeysValues all_;        // [R, K, E], R the rows that the rank has or looks at
  KeysValues gradients_;  // the same, summed wide; undefined in a forward pass
};

/// Of a layer that reads another's, which ExchangedKeysValues has kept.
class SharedOnRanks final : public CarryStream {
 public:
  SharedOnRanks(const RowsOfRank& rows, const RowRoutes& routes, SharedKeysValues& shared,
                const Config& config, int64_t layer, const Chunks& chunks);

  /// Nothing is computed again.
  int64_t first_seen_by(int64_t /*index*/) const override { return last_; }
  void allocate_gradients() override {}
  void move_to(int64_t /*first*/) override {}
  void store(const Rows& /*rows*/, const Carry& /*own*/) override {}
  Before before(const Rows& rows) override;
  Carry received(const Rows& /*rows*/) const override { return {}; }

 private:
  const RowsOfRank& rows_;
  const RowRoutes& routes_;
  SharedKeysValues& shared_;
  int64_t layer_, producer_;
  int64_t window_;
  int64_t last_;  // index of the last chunk
};

}  // namespace streambp
