#include "streambp/ops/attention/attention_fused.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include <ATen/record_function.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_blocks.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// x [n, heads, E] with its heads next to each other.
at::Tensor with_near_heads(const at::Tensor& x) {
  const bool near = x.stride(2) == 1 && (x.stride(1) == x.size(2) || x.size(1) == 1);
  return near ? x : x.contiguous();
}

/// Work for body(task, workspace): threads take one task after another, each with a workspace of its own.
template <typename T, typename Body>
void for_each_task(int64_t tasks, int64_t workspace_size, const at::Tensor& like, Body body) {
  const MemoryScope scope("kernel workspace");
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), tasks);
  const at::Tensor workspaces =
      at::empty({threads, workspace_size}, like.options().dtype(c10::CppTypeToScalarType<T>()));
  if (!has_values(like)) return;
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      T* const workspace = workspaces.data_ptr<T>() + thread * workspace_size;
      for (int64_t task = next++; task < tasks; task = next++) body(task, workspace);
    }
  });
}

/// Returns once *done >= key: see cpu::KeyTurn.
void wait_for_key(const int64_t* done, int64_t key) {
  while (__atomic_load_n(done, __ATOMIC_ACQUIRE) < key) std::this_thread::yield();
}

/// The order in which tiles of queries are taken: from the last, which sees the most keys, to the first, and
/// as many key heads side by side as there are threads. So a thread keeps to the keys of one head while there
/// are enough, and no tile comes before one that it waits for.
struct TileOrder {
  int64_t key_heads, tiles;  // of a head
  int64_t side_by_side = std::min<int64_t>(at::get_num_threads(), key_heads);

  struct Tile {
    int64_t key_head, number;
  };
  int64_t count() const { return key_heads * tiles; }
  Tile operator[](int64_t task) const {
    const int64_t first = task / (side_by_side * tiles) * side_by_side;
    const int64_t heads = std::min(side_by_side, key_heads - first);
    const int64_t rest = task - first * tiles;
    return {first + rest % heads, tiles - 1 - rest / heads};
  }
};

template <typename S>
class FusedCall {
 public:
  using T = cpu::Wide<S>;

  FusedCall(const FusedAttention& operands, const AttentionBlock& result)
      : kernels_(operands.kernels),
        q_(with_near_heads(operands.q)),
        k_(with_near_heads(operands.k)),
        v_(with_near_heads(operands.v)) {
    run_.queries = q_.size(0);
    run_.key_heads = k_.size(1);
    run_.groups = q_.size(1) / k_.size(1);
    run_.head_size = q_.size(2);
    run_.scale = operands.settings.scoring.scale;
    if (!has_values(q_)) return;
    run_.q = kernel_data<S>(q_);
    run_.q_row = q_.stride(0);
    run_.output = kernel_data<S>(result.output);
    run_.remainder = kernel_data<S>(result.remainder);
    run_.log_sum_exp = kernel_data<T>(result.log_sum_exp);
    const int64_t earlier = operands.prefix.size();
    for (const ScoreBlock& block : operands.blocks()) {
      const bool is_prefix = block.key < 0;
      const at::Tensor& keys = is_prefix ? operands.prefix.keys : k_;
      const at::Tensor& values = is_prefix ? operands.prefix.values : v_;
      const int64_t first = is_prefix ? earlier + block.key : block.key;
      blocks_.push_back({block, kernel_data<S>(keys) + first * keys.stride(0), keys.stride(0),
                         kernel_data<S>(values) + first * values.stride(0), values.stride(0)});
    }
    run_.blocks = blocks_.data();
    run_.block_count = static_cast<int64_t>(blocks_.size());
  }

  void forward() {
    const auto& kernels = kernels_.of<S>().attention;
    const TileOrder order = tile_order();
    for_each_task<T>(order.count(), kernels.workspace(run_.head_size, run_.groups), q_,
                     [&](int64_t task, T* workspace) {
                       const auto [key_head, tile] = order[task];
                       kernels.forward(run_, key_head, tile * kernels.query_tile(run_.groups), workspace);
                     });
  }

  void backward(const at::Tensor& d_output, const AttentionBlockGradients& gradients, const Prefix& prefix) {
    const at::Tensor d = with_near_heads(d_output);
    if (has_values(q_)) {
      run_.d_output = kernel_data<S>(d);
      run_.d_output_row = d.stride(0);
      run_.d_q = kernel_data<S>(gradients.d_queries);
      for (cpu::KeyBlock<S>& block : blocks_) {
        const bool is_prefix = block.block.key < 0;
        const at::Tensor& d_keys = is_prefix ? prefix.key_gradients : gradients.d_keys;
        const at::Tensor& d_values = is_prefix ? prefix.value_gradients : gradients.d_values;
        if (!d_keys.defined()) continue;
        const int64_t first = (is_prefix ? prefix.size() : 0) + block.block.key;
        block.d_keys = kernel_data<T>(d_keys) + first * d_keys.stride(0);
        block.d_values = kernel_data<T>(d_values) + first * d_values.stride(0);
      }
    }
    std::stable_sort(blocks_.begin(), blocks_.end(),
                     [](const auto& a, const auto& b) { return a.block.key < b.block.key; });
    const auto& kernels = kernels_.of<S>().attention;
    const TileOrder order = tile_order();
    std::vector<int64_t> done(static_cast<size_t>(order.count()), std::numeric_limits<int64_t>::min());
    for_each_task<T>(order.count(), kernels.workspace(run_.head_size, run_.groups), q_,
                     [&](int64_t task, T* workspace) {
                       const auto [key_head, tile] = order[task];
                       int64_t* const own = &done[static_cast<size_t>(key_head * order.tiles + tile)];
                       const int64_t* const next = tile + 1 < order.tiles ? own + 1 : nullptr;
                       kernels.backward(run_, key_head, tile * kernels.query_tile(run_.groups),
                                        {own, next, wait_for_key}, workspace);
                     });
  }

 private:
  TileOrder tile_order() const {
    const int64_t tile = kernels_.of<S>().attention.query_tile(run_.groups);
    return {run_.key_heads, (run_.queries + tile - 1) / tile};
  }

  const cpu::KernelSet& kernels_;
  at::Tensor q_, k_, v_;
  cpu::AttentionRun<S> run_;
  std::vector<cpu::KeyBlock<S>> blocks_;
};

}  // namespace

bool has_fused_attention(const at::Tensor& q, const Scoring& scoring) {
  const auto dtype = q.scalar_type();
  return is_for_cpu(q) && !has_device_attention(q, scoring) &&
         (dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16) && scoring.softcap == 0.0 &&
         q.size(2) % cpu::kHeadSizeStep == 0 && cpu::has_fast_products();
}

std::vector<ScoreBlock> FusedAttention::blocks() const {
  if (only.has_value()) return {*only};
  return score_blocks(q.size(0), prefix.size(), settings.window);
}

int64_t FusedAttention::visible_pairs() const {
  int64_t pairs = 0;
  for (const ScoreBlock& block : blocks()) pairs += streambp::visible_pairs(block);
  return pairs;
}

void FusedAttention::forward(const AttentionBlock& result) const {
  RECORD_FUNCTION("streambp::attention", (std::vector<c10::IValue>{q, visible_pairs()}));
  with_kernel_dtype(q.scalar_type(),
                    [&](auto stored) { FusedCall<decltype(stored)>(*this, result).forward(); });
}

void FusedAttention::backward(const at::Tensor& d_output, const AttentionBlock& saved,
                              const AttentionBlockGradients& gradients) const {
  RECORD_FUNCTION("streambp::attention_backward", (std::vector<c10::IValue>{q, visible_pairs()}));
  // Gradients of the prefix are summed as wide as they are computed.
  const at::ScalarType wide = saved.log_sum_exp.scalar_type();
  Prefix sums = prefix;
  const bool is_narrow = prefix.key_gradients.defined() && prefix.key_gradients.scalar_type() != wide;
  if (is_narrow) {
    sums.key_gradients = at::zeros(prefix.keys.sizes(), prefix.keys.options().dtype(wide));
    sums.value_gradients = at::zeros_like(sums.key_gradients);
  }
  with_kernel_dtype(q.scalar_type(), [&](auto stored) {
    FusedCall<decltype(stored)>(*this, saved).backward(d_output, gradients, sums);
  });
  if (is_narrow) {
    prefix.key_gradients.add_(sums.key_gradients);
    prefix.value_gradients.add_(sums.value_gradients);
  }
}

namespace {

/// A call of one block.
struct OneBlock {
  Prefix none = {};
  AttentionSettings settings;
  FusedAttention call;

  OneBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
           const Scoring& scoring)
      : settings{.scoring = scoring},
        call{.q = q,
             .k = k,
             .v = v,
             .prefix = none,
             .settings = settings,
             .only = ScoreBlock{0, q.size(0), 0, k.size(0), visible}} {}
  OneBlock(const OneBlock&) = delete;
  OneBlock& operator=(const OneBlock&) = delete;
};

}  // namespace

AttentionBlock attend_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                            const Scoring& scoring) {
  const at::ScalarType wide = sum_dtype(q);
  AttentionBlock block{at::empty_like(q, at::MemoryFormat::Contiguous),
                       at::empty({q.size(0), q.size(1)}, q.options().dtype(wide))};
  if (q.scalar_type() != wide) block.remainder = at::empty_like(block.output);
  OneBlock(q, k, v, visible, scoring).call.forward(block);
  return {wide_output(block), block.log_sum_exp};
}

AttentionBlockGradients attend_backward_fused(const at::Tensor& d_output, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const at::Tensor& output, const at::Tensor& log_sum_exp,
                                              Visible visible, const Scoring& scoring) {
  const auto zeros = [](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(sum_dtype(like)));
  };
  AttentionBlock saved{output.contiguous(), log_sum_exp.contiguous()};
  round_output(saved, q.scalar_type(), /*with_remainder=*/true);
  const AttentionBlockGradients gradients{at::empty_like(q, at::MemoryFormat::Contiguous), zeros(k),
                                          zeros(v)};
  OneBlock(q, k, v, visible, scoring).call.backward(d_output, saved, gradients);
  return gradients;
}

}  // namespace streambp
