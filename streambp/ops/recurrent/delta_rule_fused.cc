#include "streambp/ops/recurrent/delta_rule_fused.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <ATen/record_function.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

static_assert(kDeltaRuleBlock == cpu::kDeltaBlock);

/// Null in a dry run as well.
template <typename T>
T* data_of(const at::Tensor& x) {
  return x.defined() && has_values(x) ? kernel_data<T>(x) : nullptr;
}

/// The inputs as the kernels read them: rows without gaps, numbers in the dtype of the arithmetic.
struct Operands {
  cpu::DeltaRuleHeads heads;
  at::Tensor mixed, log_decay, beta, state_before;
  std::vector<cpu::DeltaRuleSequence> sequences;

  explicit Operands(const DeltaRuleInputs& in)
      : heads{in.sizes.key_heads, in.sizes.value_heads / in.sizes.key_heads,
              in.sizes.key_dim,   in.sizes.value_dim,
              in.sizes.exchanges, in.sizes.channel_gates},
        mixed(in.mixed.contiguous()),
        log_decay(in.log_decay.to(sum_dtype(in.mixed)).contiguous()),
        beta(in.beta.to(sum_dtype(in.mixed)).contiguous()) {
    if (in.state_before.defined()) state_before = in.state_before.contiguous();
    int64_t block = 0;
    for (size_t i = 0; i + 1 < in.offsets.size(); ++i) {
      const int64_t begin = in.offsets[i], end = in.offsets[i + 1];
      sequences.push_back({begin, end, block, i == 0, i + 2 == in.offsets.size()});
      block += (end - begin + kDeltaRuleBlock - 1) / kDeltaRuleBlock;
    }
  }

  template <typename S>
  cpu::DeltaRuleRun<S> run() const {
    using T = cpu::Wide<S>;
    cpu::DeltaRuleRun<S> run;
    run.heads = heads;
    run.mixed = data_of<const S>(mixed);
    run.log_decay = data_of<const T>(log_decay);
    run.beta = data_of<const T>(beta);
    run.state_before = data_of<const T>(state_before);
    return run;
  }

  /// The heads' kernels.
  template <typename S>
  const cpu::DeltaRuleKernels<S>& kernels() const {
    const auto& all = cpu::kernels().of<S>();
    if (heads.channel_gates) return all.channel_delta_rule;
    return heads.exchanges ? all.delta_rule : all.state_space;
  }

  /// Calls body(sequence, task, workspace) for all tasks of the heads: threads take one after another, each
  /// with a workspace of its own of `size` numbers.
  template <typename T, typename Body>
  void for_each_task(int64_t size, Body body) const {
    const MemoryScope scope("kernel workspace");
    const int64_t tasks = static_cast<int64_t>(sequences.size()) * heads.tasks();
    const int64_t threads = std::min<int64_t>(at::get_num_threads(), tasks);
    const at::Tensor workspaces =
        at::empty({threads, size}, mixed.options().dtype(c10::CppTypeToScalarType<T>()));
    if (!has_values(mixed)) return;
    std::atomic<int64_t> next = 0;
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) {
        T* const workspace = workspaces.data_ptr<T>() + thread * size;
        for (int64_t task = next++; task < tasks; task = next++)
          body(sequences[static_cast<size_t>(task / heads.tasks())], task % heads.tasks(), workspace);
      }
    });
  }
};

/// For who records the functions that run: its rows, sizes of its heads and what of it runs.
std::vector<c10::IValue> recorded(const DeltaRuleInputs& in, bool outputs) {
  const DeltaRuleSizes& sizes = in.sizes;
  return {in.mixed,        sizes.key_heads, sizes.value_heads, sizes.key_dim,
          sizes.value_dim, outputs,         sizes.exchanges,   sizes.channel_gates};
}

}  // namespace

bool has_fused_delta_rule(const DeltaRuleInputs& in) {
  const DeltaRuleSizes& sizes = in.sizes;
  const bool has_kernels = !sizes.channel_gates || (sizes.exchanges && sizes.key_heads == sizes.value_heads);
  return has_kernels && is_for_cpu(in.mixed) && has_fused_kernels({in.mixed});
}

DeltaRuleResult delta_rule_forward_fused(const DeltaRuleInputs& in, DeltaRuleWants wants) {
  RECORD_FUNCTION("streambp::delta_rule", recorded(in, wants != DeltaRuleWants::kState));
  const DeltaRuleSizes& sizes = in.sizes;
  const auto wide = in.mixed.options().dtype(sum_dtype(in.mixed));
  DeltaRuleResult result;
  result.state = at::empty({sizes.value_heads, sizes.key_dim, sizes.value_dim}, wide);
  if (wants != DeltaRuleWants::kState)
    result.hidden = at::empty({in.mixed.size(0), sizes.value_heads, sizes.value_dim}, in.mixed.options());
  if (wants == DeltaRuleWants::kForBackward)
    result.states =
        at::empty({delta_rule_blocks(in.offsets), sizes.value_heads, sizes.key_dim, sizes.value_dim}, wide);
  const Operands operands(in);
  with_kernel_dtype(in.mixed.scalar_type(), [&](auto number) {
    using S = decltype(number);
    using T = cpu::Wide<S>;
    const auto& kernels = operands.kernels<S>();
    auto run = operands.run<S>();
    run.hidden = data_of<S>(result.hidden);
    run.state = data_of<T>(result.state);
    run.states = data_of<T>(result.states);
    operands.for_each_task<T>(kernels.workspace(operands.heads, /*backward=*/false),
                              [&](const cpu::DeltaRuleSequence& sequence, int64_t task, T* workspace) {
                                kernels.forward(run, sequence, task, workspace);
                              });
  });
  return result;
}

DeltaRuleGradients delta_rule_backward_fused(const DeltaRuleInputs& in, const at::Tensor& states,
                                             const at::Tensor& d_hidden, const at::Tensor& d_state,
                                             const at::Tensor& d_state_before) {
  RECORD_FUNCTION("streambp::delta_rule_backward", recorded(in, /*outputs=*/true));
  const Operands operands(in);
  const auto contiguous = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const at::Tensor dy = contiguous(d_hidden), d_after = contiguous(d_state);
  const DeltaRuleGradients d{at::empty(in.mixed.sizes(), in.mixed.options()),
                             at::empty(in.log_decay.sizes(), operands.log_decay.options()),
                             at::empty(in.beta.sizes(), operands.beta.options())};
  const MemoryScope scope("kernel workspace");
  at::Tensor shared;
  if (!in.sizes.exchanges)
    shared = at::empty({operands.heads.slices(), in.mixed.size(0), 2 * in.sizes.keys()},
                       operands.log_decay.options());
  with_kernel_dtype(in.mixed.scalar_type(), [&](auto number) {
    using S = decltype(number);
    using T = cpu::Wide<S>;
    const auto& kernels = operands.kernels<S>();
    auto run = operands.run<S>();
    run.states = data_of<T>(states);
    run.d_hidden = data_of<const S>(dy);
    run.d_state = data_of<const T>(d_after);
    run.d_mixed = data_of<S>(d.mixed);
    run.d_log_decay = data_of<T>(d.log_decay);
    run.d_beta = data_of<T>(d.beta);
    run.d_state_before = data_of<T>(d_state_before);
    run.d_keys_queries = data_of<T>(shared);
    run.d_rows = in.mixed.size(0);
    operands.for_each_task<T>(kernels.workspace(operands.heads, /*backward=*/true),
                              [&](const cpu::DeltaRuleSequence& sequence, int64_t task, T* workspace) {
                                kernels.backward(run, sequence, task, workspace);
                              });
  });
  if (shared.defined()) {
    const at::Tensor sum = shared[0];
    for (int64_t slice = 1; slice < shared.size(0); ++slice) sum.add_(shared[slice]);  // in order
    d.mixed.narrow(1, in.sizes.first_key(), 2 * in.sizes.keys()).copy_(sum);
  }
  return {d.mixed, d.log_decay.to(in.log_decay.scalar_type()), d.beta.to(in.beta.scalar_type())};
}

}  // namespace streambp
