#include "streambp/ops/mlp/grouped_experts.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/rows/rows.h"

namespace streambp {
namespace {

bool is_plain(const Linear& map) {
  return map.bias == nullptr && !map.adapter && map.trained_rows == nullptr && map.output_scale == 1.0 &&
         !map.pair.is_there();
}

bool is_plain(const GatedMlp& expert) {
  return expert.gate_up_proj == nullptr && !expert.is_clamped && expert.limit == 0.0 &&
         is_plain(*expert.gate_proj) && is_plain(*expert.up_proj) && is_plain(*expert.down_proj);
}

/// The weights of one map of all experts, [X, out, in]; undefined where they do not lie at equal distances in
/// one storage.
at::Tensor stacked(const std::vector<GatedMlp>& experts, const Linear* GatedMlp::*map) {
  const auto weight = [&](size_t expert) -> const at::Tensor& {
    return (experts[expert].*map)->weight->value;
  };
  const at::Tensor& first = weight(0);
  if (!first.defined() || first.dim() != 2 || !first.is_contiguous()) return {};
  int64_t step = first.numel();
  for (size_t expert = 1; expert < experts.size(); ++expert) {
    const at::Tensor& one = weight(expert);
    if (!one.defined() || one.sizes() != first.sizes() || one.scalar_type() != first.scalar_type() ||
        !one.is_contiguous() || !one.is_alias_of(first))
      return {};
    const int64_t distance = one.storage_offset() - first.storage_offset();
    if (expert == 1) step = distance;
    if (distance < first.numel() || distance != static_cast<int64_t>(expert) * step) return {};
  }
  return first.as_strided({static_cast<int64_t>(experts.size()), first.size(0), first.size(1)},
                          {step, first.size(1), 1});
}

/// Whether torch's kernel can load rows of `maps` [X, out, in], of their transposed and of their products:
/// all begin at multiples of 16 bytes.
bool is_aligned(const at::Tensor& maps) {
  const int64_t numbers = 16 / maps.element_size();
  return maps.size(1) % numbers == 0 && maps.size(2) % numbers == 0 && maps.stride(0) % numbers == 0 &&
         maps.storage_offset() % numbers == 0;
}

/// Of each expert's rows [c, in] and its matrix of `maps` [X, in, out]: [c, out].
at::Tensor grouped_product(const at::Tensor& rows, const at::Tensor& maps, const at::Tensor& ends) {
  if (has_values(rows)) return at::_grouped_mm(rows, maps, ends);
  at::Tensor product = at::empty({rows.size(0), maps.size(2)}, rows.options());
  if (is_for_cuda(rows)) {
    const MemoryScope scope("kernel workspace");
    at::empty({cuda::grouped_product_bytes(maps.size(0))}, rows.options().dtype(at::kByte));
  }
  return product;
}

at::Tensor transposed(const at::Tensor& maps) {
  return maps.transpose(1, 2);
}

/// Some rows, in the order of experts.
struct Piece {
  int64_t begin = 0;                     // the first
  at::Tensor order;                      // [r] int64
  at::Tensor tokens;                     // [r] int64
  at::Tensor weights;                    // [r, 1]
  at::Tensor ends;                       // [X] int32
  at::Tensor added_tokens, added_order;  // [r] int64

  int64_t size() const { return order.size(0); }
};

Piece piece_of(const GroupedRows& rows, size_t index) {
  const int64_t begin = static_cast<int64_t>(index) * rows.piece_rows;
  const int64_t count = std::min(rows.piece_rows, rows.order.size(0) - begin);
  return {.begin = begin,
          .order = rows.order.narrow(0, begin, count),
          .tokens = rows.tokens.narrow(0, begin, count),
          .weights = rows.weights.narrow(0, begin, count),
          .ends = rows.ends_in_piece.select(0, static_cast<int64_t>(index)),
          .added_tokens = rows.added_tokens.narrow(0, begin, count),
          .added_order = rows.added_order.narrow(0, begin, count)};
}

/// Small numbers in ascending order, and where each has been: a GPU sorts 2 bytes in a quarter of the time
/// that 8 take.
std::pair<at::Tensor, at::Tensor> sorted_briefly(const at::Tensor& numbers) {
  auto [sorted, order] = at::sort(numbers.to(at::kShort), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  return {sorted, order};
}

/// One expert's rows in a piece.
struct Run {
  const GatedMlp& expert;
  int64_t begin = 0;
  int64_t count = 0;
};

/// Those of a piece; in a dry run, where nobody chooses, an expert's with the mean load.
std::vector<Run> runs_of(const std::vector<GatedMlp>& experts, const at::Tensor& ends, const Piece& piece,
                         int64_t choices) {
  const auto count = static_cast<int64_t>(experts.size());
  if (!has_values(ends))
    return {{.expert = experts.front(), .count = std::min(piece.size(), (choices + count - 1) / count)}};
  std::vector<Run> runs;
  const int64_t* const end = ends.const_data_ptr<int64_t>();
  for (int64_t expert = 0; expert < count; ++expert) {
    const int64_t first = std::max<int64_t>((expert == 0 ? 0 : end[expert - 1]) - piece.begin, 0);
    const int64_t last = std::min(end[expert] - piece.begin, piece.size());
    if (first < last) runs.push_back({experts[static_cast<size_t>(expert)], first, last - first});
  }
  return runs;
}

/// Adds the gradients of one map of the experts.
void accumulate(const std::vector<Run>& runs, const Linear* GatedMlp::*map, const at::Tensor& inputs,
                const at::Tensor& gradients) {
  for (const Run& run : runs)
    linear_accumulate(*(run.expert.*map), inputs.narrow(0, run.begin, run.count),
                      gradients.narrow(0, run.begin, run.count));
}

}  // namespace

std::optional<StackedExperts> stacked_experts(const std::vector<GatedMlp>& experts) {
  const bool are_plain = std::all_of(experts.begin(), experts.end(), [&](const GatedMlp& expert) {
    return is_plain(expert) && expert.activation == experts.front().activation;
  });
  if (experts.empty() || !are_plain) return std::nullopt;
  StackedExperts all{stacked(experts, &GatedMlp::gate_proj), stacked(experts, &GatedMlp::up_proj),
                     stacked(experts, &GatedMlp::down_proj)};
  if (!all.gate_proj.defined() || !all.up_proj.defined() || !all.down_proj.defined()) return std::nullopt;
  return all;
}

bool has_grouped_products(const at::Tensor& x, const StackedExperts& experts) {
  constexpr int64_t kMostGroups = 1023;
  const int generation = cuda::card().capability / 10;
  return is_for_cuda(x) && has_kernels(x.device()) && (generation == 9 || generation == 10) &&
         x.scalar_type() == at::kBFloat16 && experts.gate_proj.size(0) <= kMostGroups &&
         std::ranges::all_of(std::array{experts.gate_proj, experts.up_proj, experts.down_proj},
                             [&](const at::Tensor& maps) {
                               return maps.scalar_type() == x.scalar_type() && is_aligned(maps);
                             });
}

GroupedRows group_rows(const at::Tensor& choices, const at::Tensor& weights, StackedExperts experts,
                       int64_t piece_rows) {
  const int64_t count = choices.numel(), rows_of_piece = std::min(piece_rows, count);
  const int64_t pieces = (count + rows_of_piece - 1) / rows_of_piece;
  const int64_t groups = experts.gate_proj.size(0);
  GroupedRows rows;
  rows.experts = std::move(experts);
  rows.piece_rows = rows_of_piece;
  rows.saved.resize(static_cast<size_t>(pieces));
  const auto options = choices.options();
  at::Tensor added;  // the choices, by pieces
  if (has_values(choices)) {
    at::Tensor sorted;
    std::tie(sorted, rows.order) = sorted_briefly(choices.flatten());
    rows.ends = at::searchsorted(sorted, at::arange(groups, sorted.options()), /*out_int32=*/false,
                                 /*right=*/true);
    const at::Tensor begins = at::arange(pieces, options).mul_(rows_of_piece).unsqueeze(1);
    rows.ends_in_piece = (rows.ends - begins).clamp_(0, rows_of_piece).to(at::kInt);
    const at::Tensor positions = at::empty_like(rows.order);
    positions.index_copy_(0, rows.order, at::arange(count, options));
    added = sorted_briefly(positions.div(rows_of_piece, "floor")).second;
    rows.added_order = gather_rows(positions, added).remainder_(rows_of_piece);
  } else {
    rows.order = at::empty({count}, options);
    rows.ends = at::empty({groups}, options);
    rows.ends_in_piece = at::empty({pieces, groups}, options.dtype(at::kInt));
    rows.added_order = at::empty({count}, options);
    added = at::empty({count}, options);
    const MemoryScope scope("kernel workspace");
    at::empty({3, count}, options);  // positions, and less than as much of what is sorted and sorts take
  }
  rows.added_tokens = added.div_(choices.size(1), "floor");
  rows.tokens = rows.order.div(choices.size(1), "floor");
  rows.weights = gather_rows(weights, rows.order);
  return rows;
}

void grouped_forward(const std::vector<GatedMlp>& experts, GroupedRows& rows, const at::Tensor& x,
                     const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  const StackedExperts& all = rows.experts;
  for (size_t index = 0; index < rows.saved.size(); ++index) {
    const Piece piece = piece_of(rows, index);
    GatedMlpSaved& saved = rows.saved[index];
    {
      const at::Tensor own = gather_rows(x, piece.tokens);
      saved.gate_proj = grouped_product(own, transposed(all.gate_proj), piece.ends);
      saved.up_proj = grouped_product(own, transposed(all.up_proj), piece.ends);
    }
    if (!y.defined()) continue;
    at::Tensor product = gate(experts.front().activation, saved.gate_proj, saved.up_proj);
    const at::Tensor given =
        grouped_product(std::exchange(product, {}), transposed(all.down_proj), piece.ends);
    add_ordered_rows(y, piece.added_tokens, piece.added_order, given.mul_(piece.weights));
  }
}

void grouped_backward(const std::vector<GatedMlp>& experts, GroupedRows& rows, const at::Tensor& x,
                      const at::Tensor& dy, const at::Tensor& dx, const at::Tensor& d_weights) {
  const StackedExperts& all = rows.experts;
  const auto any = [&](auto is_trained) { return std::any_of(experts.begin(), experts.end(), is_trained); };
  const bool trains_inputs = any([](const GatedMlp& expert) { return expert.trains_input_maps(); });
  const bool trains_down = any([](const GatedMlp& expert) { return expert.down_proj->trainable(); });
  const bool trains = trains_inputs || trains_down;
  const at::Tensor ends = trains && has_values(rows.ends) ? rows.ends.to(at::kCPU) : rows.ends;
  for (size_t index = 0; index < rows.saved.size(); ++index) {
    const Piece piece = piece_of(rows, index);
    const std::vector<Run> runs =
        trains ? runs_of(experts, ends, piece, rows.order.size(0)) : std::vector<Run>();
    GatedMlpSaved saved = std::exchange(rows.saved[index], {});
    at::Tensor d_given = gather_rows(dy, piece.tokens), d_own;
    at::Tensor product = grouped_product(d_given, all.down_proj, piece.ends);  // its gradient, at first
    gate_backward(experts.front().activation, saved.gate_proj, saved.up_proj, product, trains_down,
                  piece.weights, &d_own);
    d_weights.index_copy_(0, piece.order, d_own);
    if (trains_down) accumulate(runs, &GatedMlp::down_proj, product, d_given.mul_(piece.weights));
    d_given.reset();
    product.reset();
    if (trains_inputs) {
      const at::Tensor own = gather_rows(x, piece.tokens);
      accumulate(runs, &GatedMlp::gate_proj, own, saved.gate_proj);
      accumulate(runs, &GatedMlp::up_proj, own, saved.up_proj);
    }
    at::Tensor d_rows = grouped_product(std::exchange(saved.gate_proj, {}), all.gate_proj, piece.ends);
    d_rows.add_(grouped_product(std::exchange(saved.up_proj, {}), all.up_proj, piece.ends));
    add_ordered_rows(dx, piece.added_tokens, piece.added_order, d_rows);
  }
}

}  // namespace streambp
