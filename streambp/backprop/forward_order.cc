// StreamBP in the order of its published code (arXiv 2506.03077), for comparison.
//
// A layer's chunks are taken first to last. What a chunk's rows look at is then no finished sum but a part of
// the chunk's own graph: the keys and values of the whole prefix are computed again for every chunk, and the
// gradient that reaches them goes at once through their projections into the prefix's rows. With k chunks
// that is (k - 1) / 2 times the work of a layer's key and value projections, forward and backward, and a
// second stream of gradients, since a row's gradient is complete only after the last chunk.
//
// Layers with keys and values in common are taken last to first as well. A recurrent layer has no such order:
// what reaches a state would have to go through all earlier rows at once for every chunk, so its chunks are
// taken last to first here too.
#include <optional>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/key_values.h"
#include "streambp/backprop/streamed/layer_chunk.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {
namespace {

/// The rows that a chunk looks at, computed again under autograd.
class PrefixRun {
 public:
  PrefixRun(const DecoderLayer& layer, const at::Tensor& input, const Rows& rows,
            const KeysValues& projected) {
    const at::AutoGradMode with_grad(true);
    leaf_ = input.detach().requires_grad_();
    computed_ = layer.keys_values(leaf_, rows, projected);
    seen_ = {computed_.keys.detach(), computed_.values.detach(), at::zeros_like(computed_.keys),
             at::zeros_like(computed_.values)};
  }

  const Prefix& seen() const { return seen_; }

  /// The gradient of the input, when the chunk has left those of keys and values.
  at::Tensor backward() const {
    return torch::autograd::grad({computed_.keys, computed_.values}, {leaf_},
                                 {seen_.key_gradients, seen_.value_gradients})
        .front();
  }

 private:
  at::Tensor leaf_;
  KeysValues computed_;
  Prefix seen_;
};

}  // namespace

void backward_in_order(const Pass& pass, const StreamedForward& forward, int64_t layer,
                       at::Tensor& gradient) {
  const DecoderLayer& decoder = pass.model.layers()[layer];
  const int64_t window = pass.model.config().windows[static_cast<size_t>(layer)];
  const Chunks& chunks = forward.chunks();
  at::Tensor sum;  // [N, D], of the input
  {
    const MemoryScope scope("layer inputs");
    sum = at::zeros_like(gradient);
  }
  const MemoryScope scope("chunk");
  for (const int64_t i : chunks.to_run()) {
    const Span span("chunk {}", i);
    const Rows rows = chunks.rows(i);
    const auto rows_of = [](const at::Tensor& stream, const Rows& of) {
      return stream.narrow(0, of.begin, of.size());
    };
    std::optional<PrefixRun> prefix;
    Rows earlier;
    if (const int64_t first = first_seen(rows, window); first < rows.begin) {
      earlier = pass.stream.rows(first, rows.begin);
      prefix.emplace(decoder, forward.input(layer, earlier), earlier, forward.kept(layer).projected(earlier));
    }
    LayerChunk run(decoder, forward.input(layer, rows), rows,
                   {.attention = prefix ? prefix->seen() : Prefix{}, .recurrent = {}}, pass.layer_run(),
                   forward.kept(layer).rows(rows));
    rows_of(sum, rows).add_(run.backward(rows_of(gradient, rows), {}));
    if (prefix) rows_of(sum, earlier).add_(prefix->backward());
  }
  gradient = sum;
}

}  // namespace streambp
