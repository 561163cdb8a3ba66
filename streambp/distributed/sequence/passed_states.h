// The states of one recurrent layer where ranks divide sequences.
#pragma once

#include "streambp/backprop/streamed/states.h"
#include "streambp/distributed/transport/communicator.h"

namespace streambp {

class RowsOfRank;

/// Rank by rank: a pass forward waits for the state that the rank's first row continues and sends on the one
/// that its last row leaves; a pass backward waits for the gradient of the latter and sends back that of the
/// former. Of the layer's rows nothing else is exchanged, and what is sent does not depend on their number.
class PassedStates final : public CarryStream {
 public:
  /// `arrived`: the state that the first row continues, which a pass forward leaves there for one backward.
  PassedStates(Communicator& communicator, const RowsOfRank& rows, const Model& model, const Chunks& chunks,
               Holds holds, DeltaCarry& arrived);

  int64_t first_seen_by(int64_t index) const override { return within_.first_seen_by(index); }
  void allocate_gradients() override;
  void move_to(int64_t first) override { within_.move_to(first); }
  void store(const Rows& rows, const Carry& own) override;
  Before before(const Rows& rows) override;
  Carry received(const Rows& rows) const override;
  void begin() override;
  bool end() override;

 private:
  /// Uninitialised.
  DeltaCarry empty() const;
  void send(const DeltaCarry& carry, int64_t to);
  DeltaCarry receive(int64_t from);

  Communicator& communicator_;
  bool continues_;
  bool is_continued_;
  bool goes_back_;
  const Model& model_;
  int64_t last_end_;    // the end of the rank's rows
  StateStream within_;  // from chunk to chunk
  DeltaCarry& arrived_;
  DeltaCarry left_;      // by the last row
  DeltaCarry of_left_;   // its gradient, the next rank's
  DeltaCarry of_first_;  // the gradient of what has arrived
};

}  // namespace streambp
