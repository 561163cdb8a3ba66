#include "streambp/ops/attention/attention_device.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include <ATen/Context.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_chooser.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {
namespace {

/// Keys of the long rectangles that cuDNN takes forward, as far as there are so many: it prepares a plan for
/// every shape, so shapes have to come again.
constexpr int64_t kLongRectangle = 4 * kDeviceTile;

/// Queries from which rectangles are made of as many keys: a chunk's prefix is then whole ones, and nothing
/// is left for the library that is slower. With fewer queries the merging of such parts would cost more.
constexpr int64_t kManyQueries = 2048;

/// On Hopper cuDNN's kernels were the faster ones in every measurement of so many queries (results/cuda):
/// there, batches of ever new lengths do not wait for one.
int64_t cudnn_leads_from() {
  return cuda::card().capability == 90 ? kManyQueries : 0;
}

// FlashAttention: rows as they are, behind a batch of one, or several sequences one after another.

at::Tensor batch_of_one(const at::Tensor& rows) {
  return rows.unsqueeze(0);
}

/// FlashAttention's name for a window: how many keys before its own a query sees.
std::optional<int64_t> left_of(const AttentionOperands& operands) {
  return operands.window > 0 ? std::optional<int64_t>(operands.window - 1) : std::nullopt;
}
std::optional<int64_t> right_of(const AttentionOperands& operands) {
  return operands.window > 0 ? std::optional<int64_t>(0) : std::nullopt;
}

/// The cumulative lengths of several sequences, as FlashAttention takes them. The host does not wait for the
/// copy.
at::Tensor offsets_of(const AttentionOperands& x) {
  return at::tensor(x.offsets, at::kInt).to(x.q.device(), /*non_blocking=*/true);
}

torch_private::FlashBlock flash_block(const AttentionOperands& x) {
  if (!x.offsets.empty()) {
    return {x.q,         x.k,      x.v,     offsets_of(x), x.longest(),
            x.longest(), x.causal, x.scale, left_of(x),    right_of(x)};
  }
  return {batch_of_one(x.q), batch_of_one(x.k), batch_of_one(x.v), {},         x.q.size(0),
          x.k.size(0),       x.causal,          x.scale,           left_of(x), right_of(x)};
}

AttentionBlock flash_forward(const AttentionOperands& x) {
  const auto [output, log_sum_exp] = torch_private::flash_attention(flash_block(x));
  if (!x.offsets.empty()) return {output, log_sum_exp.t()};
  return {output.squeeze(0), log_sum_exp.squeeze(0).t()};
}

AttentionBlockGradients flash_backward(const AttentionOperands& x, const at::Tensor& d_output,
                                       const AttentionBlock& saved) {
  const auto run = [&](const at::Tensor& dy, const at::Tensor& output, const at::Tensor& log_sum_exp) {
    return torch_private::flash_attention_backward(flash_block(x), dy, output, log_sum_exp);
  };
  if (!x.offsets.empty()) {
    const auto [dq, dk, dv] = run(d_output, saved.output, saved.log_sum_exp);
    return {dq, dk, dv};
  }
  const auto [dq, dk, dv] =
      run(batch_of_one(d_output), batch_of_one(saved.output), batch_of_one(saved.log_sum_exp));
  return {dq.squeeze(0), dk.squeeze(0), dv.squeeze(0)};
}

// cuDNN: [1, heads, rows, E], without a copy.

at::Tensor by_heads(const at::Tensor& rows) {
  return rows.transpose(0, 1).unsqueeze(0);
}
at::Tensor by_rows(const at::Tensor& heads) {
  return heads.squeeze(0).transpose(0, 1);
}

AttentionBlock cudnn_forward(const AttentionOperands& x) {
  const auto [output, log_sum_exp] =
      torch_private::cudnn_attention(by_heads(x.q), by_heads(x.k), by_heads(x.v), x.causal, x.scale);
  return {by_rows(output), log_sum_exp.reshape({x.q.size(1), x.q.size(0)}).t()};
}

AttentionBlockGradients cudnn_backward(const AttentionOperands& x, const at::Tensor& d_output,
                                       const AttentionBlock& saved) {
  const auto [dq, dk, dv] = torch_private::cudnn_attention_backward(
      by_heads(d_output), by_heads(x.q), by_heads(x.k), by_heads(x.v), by_heads(saved.output),
      batch_of_one(saved.log_sum_exp).unsqueeze(-1), x.causal, x.scale);
  return {by_rows(dq), by_rows(dk), by_rows(dv)};
}

/// Those of GPUs, and by device type what set_device_attention has given instead.
AttentionChooser& library_chooser() {
  static AttentionChooser chooser(library_attention(), AttentionChooser::kPairsToChoose, Served::kAsOnGpus);
  return chooser;
}
std::map<c10::DeviceType, std::unique_ptr<AttentionChooser>>& given_choosers() {
  static std::map<c10::DeviceType, std::unique_ptr<AttentionChooser>> given;
  return given;
}

/// The caller's chooser for tensors like x; null: there is none.
AttentionChooser* find_given(const at::Tensor& x) {
  const auto given = given_choosers().find(x.device().type());
  return given != given_choosers().end() ? given->second.get() : nullptr;
}

bool is_half(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

struct TileNotes {
  std::mutex mutex;
  std::set<std::string> lines;
};
TileNotes& tile_notes() {
  static TileNotes notes;
  return notes;
}

AttentionChooser& chooser_of(const AttentionOperands& operands) {
  AttentionChooser* const given = find_given(operands.q);
  return given != nullptr ? *given : library_chooser();
}

/// Keys [begin, begin + count) of the operands.
AttentionOperands with_keys(const AttentionOperands& operands, int64_t begin, int64_t count) {
  AttentionOperands some = operands;
  some.k = operands.k.narrow(0, begin, count);
  some.v = operands.v.narrow(0, begin, count);
  return some;
}

/// Makes `all` the result of `part` as well; from the second part on its output is wide, so that it is
/// rounded once.
void add_part(AttentionBlock& all, AttentionBlock&& part) {
  if (!all.output.defined()) {
    all = std::move(part);
    return;
  }
  all.output = all.output.to(sum_dtype(all.output));
  merge(all, part);
}

/// The shapes of rectangles, the longer first, in which `queries` take many keys.
std::array<int64_t, 2> rectangles_of(int64_t queries) {
  if (queries < kManyQueries) return {kLongRectangle, kDeviceTile};
  return {queries * std::max<int64_t>(1, kLongRectangle / queries), queries};
}

/// All queries see all keys: in rectangles of shapes that come again where cuDNN's kernels are faster, else
/// in one.
AttentionBlock forward_rectangle(const AttentionOperands& operands) {
  const int64_t queries = operands.q.size(0), keys = operands.k.size(0);
  AttentionChooser& chooser = chooser_of(operands);
  AttentionBlock all;
  int64_t begin = 0;
  for (const int64_t rectangle : rectangles_of(queries)) {
    while (keys - begin >= rectangle) {
      const AttentionOperands some = with_keys(operands, begin, rectangle);
      const DeviceAttention& fastest =
          chooser.choose("forward", some, [&](const DeviceAttention& one) { one.forward(some); });
      if (&fastest == &chooser.first()) break;
      add_part(all, chooser.run_chosen(fastest, "forward", some,
                                       [&](const DeviceAttention& one) { return one.forward(some); }));
      begin += rectangle;
    }
  }
  if (begin < keys) add_part(all, chooser.first().forward(with_keys(operands, begin, keys - begin)));
  return all;
}

AttentionBlock dry_forward(const AttentionOperands& operands) {
  const at::Tensor& q = operands.q;
  const int64_t queries = q.size(0), heads = q.size(1), keys = operands.k.size(0);
  AttentionBlock block{at::empty(q.sizes(), q.options()),
                       at::empty({heads, queries}, q.options().dtype(sum_dtype(q))).t()};
  const MemoryScope scope("kernel workspace");
  const bool is_cut = !operands.causal && keys > rectangles_of(queries).back();
  // If cuDNN takes rectangles, the last part is alive together with the wide sum of the others. A prefix that
  // is one long rectangle has no other parts, but the shorter ones before it had: they are the peak.
  if (is_cut) {
    const at::Tensor part = block.output;
    block.output = at::empty(q.sizes(), q.options().dtype(sum_dtype(q)));
    return block;
  }
  const int64_t splits = operands.offsets.empty() ? cuda::flash_splits(heads, queries, keys, q.size(2)) : 1;
  if (splits > 1)
    at::empty({splits, heads, queries, cuda::flash_head_size(q.size(2)) + 1}, q.options().dtype(at::kFloat));
  return block;
}

AttentionBlockGradients dry_backward(const AttentionOperands& operands) {
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  AttentionBlockGradients gradients{like(operands.q), like(operands.k), like(operands.v)};
  const MemoryScope scope("kernel workspace");
  const at::Tensor& q = operands.q;
  const auto sequences = std::max<int64_t>(1, static_cast<int64_t>(operands.offsets.size()) - 1);
  const int64_t heads = q.size(1), size = cuda::flash_head_size(q.size(2));
  const int64_t rows =
      operands.offsets.empty() ? cuda::flash_rows(q.size(0)) : cuda::flash_packed_rows(q.size(0), sequences);
  const int64_t sums =
      at::globalContext().deterministicAlgorithms() ? cuda::flash_deterministic_sums(sequences * heads) : 1;
  const auto wide = q.options().dtype(at::kFloat);
  const at::Tensor products = at::empty({heads, rows}, wide),
                   d_queries = at::empty({sums, rows, heads, size}, wide);
  if (heads == operands.k.size(1)) return gradients;
  const at::Tensor d_keys = at::empty({operands.k.size(0), heads, q.size(2)}, q.options());
  const at::Tensor d_values = at::empty_like(d_keys);
  return gradients;
}

}  // namespace

std::string AttentionOperands::shape() const {
  return fmt::format("{} x {}, {}/{} heads of {}", q.size(0), k.size(0), q.size(1), k.size(1), q.size(2));
}

int64_t device_tile(int64_t queries) {
  return std::max(kDeviceTile, 2 * queries);
}

std::vector<DeviceAttention> library_attention() {
  return {{"flash", /*lower_right=*/true, flash_forward, flash_backward},
          {"cudnn", /*lower_right=*/false, cudnn_forward, cudnn_backward, cudnn_leads_from()}};
}

int64_t AttentionOperands::longest() const {
  int64_t rows = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) rows = std::max(rows, offsets[i + 1] - offsets[i]);
  return rows;
}

bool has_device_attention(const at::Tensor& q, const Scoring& scoring) {
  if (scoring.softcap != 0.0) return false;
  const AttentionChooser* const given = find_given(q);
  if (given != nullptr && given->served() == Served::kAll) return true;
  const bool is_of_gpu = given != nullptr || q.is_cuda() || (!has_values(q) && is_for_cuda(q));
  return is_of_gpu && is_half(q) && cuda::has_library_attention(q.size(2));
}

void note_tiles(const at::Tensor& q, const Scoring& scoring) {
  if (!q.is_cuda() && find_given(q) == nullptr) return;
  const std::string heads =
      fmt::format("{} heads of {}, {}", q.size(1), q.size(2), c10::toString(q.scalar_type()));
  const std::string why = scoring.softcap != 0.0 ? "scores are capped"
                          : !is_half(q)          ? "no half precision"
                                                 : fmt::format("heads of {}", q.size(2));
  const std::lock_guard lock(tile_notes().mutex);
  tile_notes().lines.insert(
      fmt::format("{}: tiles of matrix products, since no library's kernel takes them: {}", heads, why));
}

AttentionBlock device_attend(const AttentionOperands& operands) {
  if (!has_values(operands.q)) return dry_forward(operands);
  if (!operands.causal) return forward_rectangle(operands);
  if (!operands.is_square()) return chooser_of(operands).first().forward(operands);
  return chooser_of(operands).run("forward", operands,
                                  [&](const DeviceAttention& one) { return one.forward(operands); });
}

AttentionBlockGradients device_attend_backward(const AttentionOperands& operands, const at::Tensor& d_output,
                                               const AttentionBlock& saved) {
  // As the kernels leave them: no copy unless log-sum-exps were kept by rows, or rows are strided.
  const AttentionBlock whole{saved.output.contiguous(), saved.log_sum_exp.t().contiguous()};
  const at::Tensor dy = d_output.contiguous();
  if (!has_values(operands.q)) return dry_backward(operands);
  if (operands.causal && !operands.is_square())
    return chooser_of(operands).first().backward(operands, dy, whole);
  return chooser_of(operands).run(
      "backward", operands, [&](const DeviceAttention& one) { return one.backward(operands, dy, whole); });
}

std::vector<std::string> tiled_attention() {
  const std::lock_guard lock(tile_notes().mutex);
  return {tile_notes().lines.begin(), tile_notes().lines.end()};
}

std::vector<std::string> attention_choices() {
  if (given_choosers().empty()) return library_chooser().report();
  std::vector<std::string> choices;
  for (const auto& [device, chooser] : given_choosers()) {
    const std::vector<std::string> report = chooser->report();
    choices.insert(choices.end(), report.begin(), report.end());
  }
  return choices;
}

void set_device_attention(c10::DeviceType device, std::vector<DeviceAttention> kernels, Served served) {
  {
    const std::lock_guard lock(tile_notes().mutex);
    tile_notes().lines.clear();
  }
  if (kernels.empty()) {
    given_choosers().erase(device);
  } else {
    given_choosers()[device] =
        std::make_unique<AttentionChooser>(std::move(kernels), /*least_pairs=*/0, served);
  }
}

}  // namespace streambp
