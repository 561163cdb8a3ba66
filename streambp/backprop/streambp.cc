// StreamBP (arXiv 2506.03077): each layer's chain rule streamed over chunks of the sequence, here from last
// to first.
//
// A chunk's rows reach later rows only through their keys and values. Taken last to first, a chunk's keys and
// values have received all the gradient they will get before the chunk itself is run, so one backward call
// with three roots (output, keys, values) finishes it, and nothing is computed twice but one layer's key and
// value projections.
#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

/// Keys and values that later chunks look at. The last chunk's never are.
struct KeyValueStream {
  at::Tensor keys;  // [rows, K, E]
  at::Tensor values;
  at::Tensor key_gradients;
  at::Tensor value_gradients;

  static KeyValueStream allocate(const Model& model, int64_t rows) {
    const MemoryScope scope("keys and values");
    const Config& config = model.config();
    const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
    const std::vector<int64_t> shape{rows, config.num_key_value_heads, config.head_dim};
    return {at::empty(shape, options), at::empty(shape, options), {}, {}};
  }

  /// Half-precision gradients are summed over chunks in float32: the sum has as many terms as there are
  /// chunks.
  void allocate_gradients() {
    const MemoryScope scope("key and value gradients");
    const auto dtype = keys.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    key_gradients = at::zeros(keys.sizes(), keys.options().dtype(dtype));
    value_gradients = at::zeros(values.sizes(), values.options().dtype(dtype));
  }

  void store(const Rows& rows, const KeysValues& own) {
    if (rows.end > keys.size(0)) return;
    keys.narrow(0, rows.begin, rows.size()).copy_(own.keys);
    values.narrow(0, rows.begin, rows.size()).copy_(own.values);
  }

  Prefix before(const Rows& rows) const {
    const auto earlier = [&](const at::Tensor& stream) {
      return stream.defined() ? stream.narrow(0, rows.sequence_begin, rows.begin - rows.sequence_begin)
                              : at::Tensor();
    };
    if (rows.begin == rows.sequence_begin) return {};
    return {earlier(keys), earlier(values), earlier(key_gradients), earlier(value_gradients)};
  }
};

class StreambpRun {
 public:
  explicit StreambpRun(const Pass& pass)
      : pass_(pass),
        model_(pass.model),
        layers_(static_cast<int64_t>(model_.layers().size())),
        chunks_((pass.stream.size() + pass.chunk - 1) / pass.chunk),
        lowest_(model_.lowest_trainable_layer()),
        inputs_(static_cast<size_t>(layers_) + 1) {}

  HeadOutcome run() {
    for (int64_t layer = 0; layer < layers_; ++layer) forward(layer);
    if (layers_ == 0) return {};
    HeadOutcome outcome;
    at::Tensor& hidden = inputs_[layers_];
    gradient_ = head_gradient(pass_, std::move(hidden), outcome);
    for (int64_t layer = layers_ - 1; layer >= std::max<int64_t>(lowest_, 0); --layer) backward(layer);
    return outcome;
  }

 private:
  Rows chunk(int64_t index) const {
    const int64_t begin = index * pass_.chunk;
    return pass_.stream.rows(begin, std::min(begin + pass_.chunk, pass_.stream.size()));
  }

  at::Tensor tokens(const Rows& rows) const {
    return pass_.stream.batch.tokens.narrow(0, rows.begin, rows.size());
  }

  /// The first layer's input is looked up again rather than kept: it costs a copy of the rows.
  at::Tensor input(int64_t layer, const Rows& rows) const {
    return layer == 0 ? model_.embed(tokens(rows)) : inputs_[layer].narrow(0, rows.begin, rows.size());
  }

  int64_t rows_seen_later() const { return (chunks_ - 1) * pass_.chunk; }

  void forward(int64_t layer) {
    at::Tensor& output = inputs_[layer + 1];
    if (layer > 0 && layer < lowest_) {
      output = std::move(inputs_[layer]);  // frozen from here down: written in place, chunk by chunk
    } else {
      const MemoryScope scope("layer inputs");
      output = at::empty({pass_.stream.size(), model_.config().hidden_size},
                         at::TensorOptions().device(model_.device()).dtype(model_.dtype()));
    }
    KeyValueStream seen = KeyValueStream::allocate(model_, rows_seen_later());
    const MemoryScope scope("chunk");
    for (int64_t i = 0; i < chunks_; ++i) {
      const Rows rows = chunk(i);
      const at::Tensor x =
          layer > 0 && layer < lowest_ ? output.narrow(0, rows.begin, rows.size()) : input(layer, rows);
      const LayerOutput result = model_.layers()[layer].forward(x, rows, seen.before(rows));
      output.narrow(0, rows.begin, rows.size()).copy_(result.hidden);
      seen.store(rows, result.own);
    }
  }

  void backward(int64_t layer) {
    const DecoderLayer& decoder = model_.layers()[layer];
    KeyValueStream seen = KeyValueStream::allocate(model_, rows_seen_later());
    const MemoryScope scope("chunk");
    for (int64_t i = 0; i + 1 < chunks_; ++i) {
      const Rows rows = chunk(i);
      seen.store(rows, decoder.keys_values(input(layer, rows), rows));
    }
    seen.allocate_gradients();
    for (int64_t i = chunks_ - 1; i >= 0; --i) {
      const Rows rows = chunk(i);
      const at::Tensor dx = backward_chunk(decoder, input(layer, rows), rows, seen, i + 1 < chunks_);
      if (layer > 0) {
        gradient_.narrow(0, rows.begin, rows.size()).copy_(dx);
      } else if (lowest_ < 0) {
        model_.accumulate_embedding(tokens(rows), dx);
      }
    }
    inputs_[layer].reset();
  }

  at::Tensor backward_chunk(const DecoderLayer& decoder, const at::Tensor& x, const Rows& rows,
                            const KeyValueStream& seen, bool seen_later) {
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = x.detach().requires_grad_();
    LayerOutput output = decoder.forward(leaf, rows, seen.before(rows));
    std::vector<at::Tensor> roots{output.hidden};
    std::vector<at::Tensor> gradients{gradient_.narrow(0, rows.begin, rows.size())};
    if (seen_later) {
      const auto received = [&](const at::Tensor& sums) {
        return sums.narrow(0, rows.begin, rows.size()).to(model_.dtype());
      };
      roots.insert(roots.end(), {output.own.keys, output.own.values});
      gradients.insert(gradients.end(), {received(seen.key_gradients), received(seen.value_gradients)});
    }
    output = {};
    return torch::autograd::grad(roots, {leaf}, gradients).front();
  }

  const Pass& pass_;
  Model& model_;
  int64_t layers_;
  int64_t chunks_;
  int64_t lowest_;
  std::vector<at::Tensor>
      inputs_;           // of each layer, [N, D]; the last one is the head's. The first is never held.
  at::Tensor gradient_;  // [N, D]: of the current layer's output; each chunk replaces its rows by its input's
};

}  // namespace

HeadOutcome run_streambp(const Pass& pass) {
  return StreambpRun(pass).run();
}

}  // namespace streambp
