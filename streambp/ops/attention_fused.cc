#include "streambp/ops/attention_fused.h"

#include <vector>

#include <ATen/record_function.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention_blocks.h"
#include "streambp/ops/attention_device.h"
#include "streambp/ops/fused.h"

namespace streambp {
namespace {

/// x [n, heads, E] with its heads next to each other.
at::Tensor with_near_heads(const at::Tensor& x) {
  const bool near = x.stride(2) == 1 && (x.stride(1) == x.size(2) || x.size(1) == 1);
  return near ? x : x.contiguous();
}

/// Work for body(task, workspace): the tasks go to the threads, and each thread has a workspace of its own.
template <typename T, typename Body>
void for_each_task(int64_t tasks, int64_t workspace_size, const at::Tensor& like, Body body) {
  const MemoryScope scope("kernel workspace");
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), tasks);
  const at::Tensor workspaces =
      at::empty({threads, workspace_size}, like.options().dtype(c10::CppTypeToScalarType<T>()));
  if (!has_values(like)) return;
  const int64_t share = (tasks + threads - 1) / threads;
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      T* const workspace = workspaces.data_ptr<T>() + thread * workspace_size;
      for (int64_t task = thread * share; task < std::min(tasks, (thread + 1) * share); ++task)
        body(task, workspace);
    }
  });
}

template <typename S>
class Call {
 public:
  using T = cpu::Wide<S>;

  Call(const FusedAttention& operands, const AttentionBlock& result)
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
    run_.log_sum_exp = kernel_data<T>(result.log_sum_exp);
    const int64_t earlier = operands.prefix.size();
    for (const ScoreBlock& block : score_blocks(run_.queries, earlier, operands.settings.window)) {
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
    const int64_t tile = kernels.query_tile(run_.groups);
    const int64_t tiles = (run_.queries + tile - 1) / tile;
    for_each_task<T>(run_.key_heads * tiles, kernels.workspace(run_.head_size, run_.groups), q_,
                     [&](int64_t task, T* workspace) {
                       kernels.forward(run_, task / tiles, task % tiles * tile, workspace);
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
    const auto& kernels = kernels_.of<S>().attention;
    // A key head's gradients are one thread's, so that they are summed in one order.
    for_each_task<T>(run_.key_heads, kernels.workspace(run_.head_size, run_.groups), q_,
                     [&](int64_t key_head, T* workspace) { kernels.backward(run_, key_head, workspace); });
  }

 private:
  const cpu::Kernels& kernels_;
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

int64_t FusedAttention::visible_pairs() const {
  int64_t pairs = 0;
  for (const ScoreBlock& block : score_blocks(q.size(0), prefix.size(), settings.window)) {
    pairs +=
        block.visible == Visible::kAll ? block.queries * block.keys : block.queries * (block.queries + 1) / 2;
  }
  return pairs;
}

void FusedAttention::forward(const AttentionBlock& result) const {
  RECORD_FUNCTION("streambp::attention", (std::vector<c10::IValue>{q, visible_pairs()}));
  with_kernel_dtype(q.scalar_type(), [&](auto stored) { Call<decltype(stored)>(*this, result).forward(); });
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
    Call<decltype(stored)>(*this, saved).backward(d_output, gradients, sums);
  });
  if (is_narrow) {
    prefix.key_gradients.add_(sums.key_gradients);
    prefix.value_gradients.add_(sums.value_gradients);
  }
}

}  // namespace streambp
