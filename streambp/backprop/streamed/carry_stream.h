// What one layer's chunks hand to later ones, inside the library only.
#pragma once

#include <cstdint>
#include <memory>

#include "streambp/backprop/streamed/chunks.h"
#include "streambp/model/model.h"

namespace streambp {

/// The carries of one layer's chunks, and the gradients that come back to them.
///
/// A pass forward asks before() for a chunk, runs it and gives its carry to store(). A pass backward has
/// the carries stored first, then takes the chunks from last to first: before() hands out where a chunk's run
/// adds the gradients of what it has looked at, received() is the sum that all later chunks have left.
class CarryStream {
 public:
  /// What is held at a time.
  enum class Holds {
    kForward,   // what the next chunk looks at
    kBackward,  // what a layer's backward pass needs that computes keys and values again as it goes
    kAll        // of every chunk: for passes that come back to it
  };

  virtual ~CarryStream() = default;

  /// The first chunk whose carry chunk `index` needs. Whoever computes carries again computes those from
  /// there on.
  virtual int64_t first_seen_by(int64_t index) const = 0;

  /// Memory for gradients, which before() hands out from then on.
  virtual void allocate_gradients() = 0;

  /// Makes room for the carries from chunk `first` on; those that were there and still fit are kept, the
  /// gradients of the others become zero.
  virtual void move_to(int64_t first) = 0;

  /// The carry of a chunk within the room.
  virtual void store(const Rows& rows, const Carry& own) = 0;

  /// What a chunk's rows continue. The carries that it needs are there.
  virtual Before before(const Rows& rows) = 0;

  /// The gradient that later chunks have left for a chunk's carry; undefined tensors: none looked at it.
  virtual Carry received(const Rows& rows) const = 0;

  // Of a stream whose sequences have rows elsewhere (StreamPart), once a pass over the layer's chunks:

  /// Whether every chunk's carry is to be stored before begin(): somebody elsewhere waits for it.
  virtual bool needs_all() const { return false; }

  /// Before the first chunk is run: gets what lies elsewhere.
  virtual void begin() {}

  /// After the last chunk: hands on what lies here. Returns whether received() now gives, of a pass backward,
  /// what chunks elsewhere have left, which no chunk's run has taken.
  virtual bool end() { return false; }
};

/// Of a layer whose tokens know nothing of each other.
std::unique_ptr<CarryStream> no_carry_stream();

/// Of a layer that hands on both: what each of the two knows of.
std::unique_ptr<CarryStream> both_carries(std::unique_ptr<CarryStream> keys_values,
                                          std::unique_ptr<CarryStream> states);

/// An empty one for `layer`: keys and values, the layer's own or another's, or the state of a recurrent
/// layer.
std::unique_ptr<CarryStream> carry_stream(const Model& model, const Stream& stream, int64_t layer,
                                          const Chunks& chunks,
                                          CarryStream::Holds holds = CarryStream::Holds::kForward);

}  // namespace streambp
