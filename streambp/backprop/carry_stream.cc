#include "streambp/backprop/carry_stream.h"

#include "streambp/backprop/key_values.h"
#include "streambp/backprop/states.h"

namespace streambp {

std::unique_ptr<CarryStream> carry_stream(const Model& model, int64_t layer, const Chunks& chunks,
                                          CarryStream::Holds holds) {
  if (model.config().is_recurrent(layer)) return std::make_unique<StateStream>(model, chunks, holds);
  return std::make_unique<KeyValueStream>(model, layer, chunks, holds);
}

}  // namespace streambp
