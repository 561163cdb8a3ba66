#include "verify/compare/pick_ties.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "streambp/ops/transformers_rounding.h"
#include "verify/diagnose/wrong_engine/run_mistake.h"

namespace streambp::verify {
namespace {

/// Passes with other weights: a pick that none of them changes has a wide margin.
constexpr int kRuns = 8;
/// How far each weight is off, in units of the dtype's epsilon.
constexpr double kUnits = 2.0;

/// What each layer picks where weights are off by `step` and rows see `orders`.
PickControl picked_by(const WrongSubject& subject, const WeightStep& step,
                      std::map<int64_t, PickControl::Order> orders) {
  WrongSettings settings;
  settings.head_alone = true;
  settings.step = step;
  settings.picks = std::make_shared<PickControl>();
  settings.picks->orders = std::move(orders);
  run_mistake(subject, settings);
  return std::move(*settings.picks);
}

/// Every weight times a normal number of that deviation.
WeightStep noise_of(const Model& model, double deviation, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  auto noise = std::make_shared<Tensors>();
  for (const auto& parameter : model.parameters())
    noise->emplace(parameter->name,
                   parameter->value * at::randn(parameter->value.sizes(), generator, at::kDouble));
  return {noise, deviation};
}

/// The rows whose indexer has more to see than it picks, [N] bool.
at::Tensor picking_rows(const Config& config, const Batch& batch) {
  const PickKind kind = config.pick_kind();
  std::vector<int64_t> rows;
  for (size_t s = 0; s + 1 < batch.offsets.size(); ++s) {
    for (int64_t row = batch.offsets[s]; row < batch.offsets[s + 1]; ++row)
      if (kind.seen(row - batch.offsets[s] + 1) > kind.topk) rows.push_back(row);
  }
  return at::tensor(rows, at::kLong);
}

/// [rows, width] with what each head picks in ascending order.
at::Tensor in_order(const at::Tensor& picks, const PickKind& kind) {
  const at::Tensor by_heads = picks.reshape({picks.size(0), kind.heads, -1});
  return std::get<0>(by_heads.sort(/*dim=*/-1)).reshape(picks.sizes());
}

}  // namespace

PickTies find_pick_ties(const WrongSubject& subject, Model& low, at::ScalarType dtype) {
  const Config& config = subject.model.config();
  PickTies ties;
  const at::Tensor rows = picking_rows(config, subject.batch);
  if (!config.has_indexers() || subject.batch.indexer_indices.defined() || rows.numel() == 0) return ties;
  const PickKind kind = config.pick_kind();
  const PickControl exact = picked_by(subject, {}, {});
  std::map<int64_t, PickControl::Order> orders;
  for (const auto& [layer, picks] : exact.picked) orders[layer] = {rows, picks.index_select(0, rows)};
  // By layer and row, what else is picked how often.
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<int, at::Tensor>>> found;
  const double epsilon = dtype == at::kFloat ? 1.2e-7 : dtype == at::kHalf ? 9.8e-4 : 7.8e-3;
  const WrongSubject in_dtype{low,
                              subject.batch,
                              subject.objective,
                              subject.options,
                              subject.input_ids,
                              subject.labels,
                              subject.teacher};
  for (int run = 0; run <= kRuns; ++run) {
    PickControl of_run;
    if (run == 0) {
      const TransformersRounding as_transformers;
      of_run = picked_by(in_dtype, {}, orders);
    } else {
      of_run =
          picked_by(subject, noise_of(subject.model, kUnits * epsilon, static_cast<uint64_t>(run)), orders);
    }
    std::vector<OtherPicks> together;
    for (const auto& [layer, picks] : of_run.picked) {
      const at::Tensor own = in_order(orders.at(layer).picks, kind);
      const at::Tensor other = in_order(picks.index_select(0, rows), kind);
      const at::Tensor differs = own.ne(other).any(1).nonzero().squeeze(1);
      for (int64_t i = 0; i < differs.numel(); ++i) {
        const int64_t at_row = differs[i].item<int64_t>();
        auto& of_row = found[{layer, rows[at_row].item<int64_t>()}];
        const auto known = std::find_if(of_row.begin(), of_row.end(), [&](const auto& each) {
          return at::equal(each.second, other[at_row]);
        });
        known == of_row.end() ? of_row.emplace_back(1, other[at_row]) : (++known->first, *known);
        together.push_back({layer, rows[at_row].item<int64_t>(), other[at_row]});
      }
    }
    if (!together.empty()) ties.of_runs.push_back(std::move(together));
  }
  std::vector<std::pair<int, OtherPicks>> all;
  std::set<int64_t> layers, of_rows;
  for (const auto& [where, others] : found) {
    for (const auto& [times, picks] : others) all.push_back({times, {where.first, where.second, picks}});
    layers.insert(where.first);
    of_rows.insert(where.second);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [times, each] : all) ties.others.push_back(std::move(each));
  ties.rows = std::ssize(of_rows);
  ties.layers.assign(layers.begin(), layers.end());
  return ties;
}

std::map<int64_t, int64_t> tied_rows(const WrongSubject& subject) {
  if (!subject.model.config().has_indexers() || subject.batch.indexer_indices.defined()) return {};
  return picked_by(subject, {}, {}).tied_rows;
}

Tensors with_picks(const WrongSubject& subject, const std::vector<OtherPicks>& others) {
  std::map<int64_t, std::pair<std::vector<int64_t>, std::vector<at::Tensor>>> by_layer;
  for (const OtherPicks& each : others) {
    by_layer[each.layer].first.push_back(each.row);
    by_layer[each.layer].second.push_back(each.picks);
  }
  WrongSettings settings;
  settings.picks = std::make_shared<PickControl>();
  for (const auto& [layer, of_layer] : by_layer)
    settings.picks->orders[layer] = {at::tensor(of_layer.first, at::kLong), at::stack(of_layer.second)};
  return run_mistake(subject, settings);
}

}  // namespace streambp::verify
