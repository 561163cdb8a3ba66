#include "bench/suggest.h"

#include <algorithm>
#include <limits>

#include "bench/cost_model.h"

namespace streambp {
namespace {

/// What is tried where the command line leaves it open.
constexpr int64_t kChunks[] = {4096, 1024};
constexpr int64_t kChunksOfAllLayers[] = {1024, 256};  // of chunk-major, for which a chunk costs more
constexpr int64_t kEvery[] = {1, 2, 4, 8};

/// Ways of keeping what streambp keeps of the layers.
std::vector<Settings> keepings(const SweepOptions& options, bool may_offload) {
  const bool open = !options.keep_attention && options.every == 1 && options.offload == Offload::kNone;
  Settings given;
  given.keep_attention = options.keep_attention;
  given.every = options.every;
  given.offload = options.offload;
  given.order = options.order;
  if (!open) return {given};
  std::vector<Settings> all;
  for (const Offload offload : {Offload::kNone, Offload::kHost}) {
    if (offload == Offload::kHost && !may_offload) continue;
    for (const bool attention : {true, false}) {
      for (const int64_t every : kEvery) {
        given.keep_attention = attention;
        given.every = every;
        given.offload = offload;
        all.push_back(given);
      }
    }
  }
  return all;
}

std::vector<Settings> ways(const SweepOptions& options, Method method, bool may_offload) {
  if (method == Method::kLogitsOnly && options.stream_head == false) return {};
  Settings plain;
  plain.method = method;
  const auto heads = options.stream_head    ? std::vector<bool>{*options.stream_head}
                     : plain.streams_head() ? std::vector<bool>{true}
                                            : std::vector<bool>{false, true};
  std::vector<int64_t> chunks{0};
  if (is_chunked(method)) {
    chunks = options.chunks;
    if (chunks == std::vector<int64_t>{0}) {
      const auto& tried = method == Method::kChunkMajor ? kChunksOfAllLayers : kChunks;
      chunks.assign(std::begin(tried), std::end(tried));
    }
  }
  const auto kept =
      method == Method::kStreambp ? keepings(options, may_offload) : std::vector<Settings>{plain};
  std::vector<Settings> all;
  for (const bool streamed : heads) {
    for (const int64_t chunk : chunks) {
      for (Settings settings : kept) {
        settings.method = method;
        settings.hugging_face = options.hugging_face && has_baseline(method);
        settings.chunk = chunk;
        settings.stream_head = streamed;
        settings.head_chunk = options.head_chunk;
        all.push_back(settings);
      }
    }
  }
  return all;
}

/// At one length for all, so that they can be compared.
constexpr int64_t kCostLength = 32768;

std::vector<Suggestion> candidates(const Bench& bench, const std::string& objective, int64_t batch,
                                   const Budget& budget, int64_t wanted) {
  std::vector<Suggestion> all;
  for (const Method method : bench.options.methods) {
    for (const Settings& settings : ways(bench.options, method, budget.host > 0)) {
      Suggestion suggestion;
      suggestion.fit.cell = {objective, settings, wanted > 0 ? wanted : kCostLength, batch};
      suggestion.cost = relative_cost(bench, suggestion.fit.cell);
      all.push_back(suggestion);
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Suggestion& a, const Suggestion& b) { return a.cost < b.cost; });
  return all;
}

/// Tries `candidates` in turn at the wanted length, and drops those behind the first that fits.
void try_at(Predictor& predictor, const Budget& budget, std::vector<Suggestion>& candidates) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    LongestFit& fit = candidates[i].fit;
    fit.at_shortest = predictor.predict(fit.cell);
    fit.evaluations = 1;
    if (!budget.holds(fit.at_shortest)) continue;
    fit.at_longest = fit.at_shortest;
    candidates[i].best = true;
    candidates.resize(i + 1);
    return;
  }
}

/// Drops what costs more than another candidate and takes no less at the length where all are compared.
void drop_dominated(Predictor& predictor, const Budget& budget, std::vector<Suggestion>& candidates) {
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(candidates, [&](Suggestion& candidate) {  // in the order of their costs
    candidate.fit.cell.seq_len = kCostLength;
    const double share = budget.share(predictor.predict(candidate.fit.cell));
    if (share >= least) return true;
    least = share;
    return false;
  });
}

void find_all(Predictor& predictor, const Budget& budget, std::vector<Suggestion>& candidates) {
  constexpr double kSame = 0.99;
  drop_dominated(predictor, budget, candidates);
  int64_t furthest = 0;
  for (Suggestion& candidate : candidates) {
    candidate.fit = find_longest(predictor, candidate.fit.cell, budget, /*resolution=*/100);
    furthest = std::max(furthest, candidate.fit.cell.seq_len);
  }
  const auto best = std::find_if(candidates.begin(), candidates.end(), [&](const Suggestion& candidate) {
    return candidate.fit.fits() &&
           static_cast<double>(candidate.fit.cell.seq_len) >= kSame * static_cast<double>(furthest);
  });
  if (best != candidates.end()) best->best = true;
}

}  // namespace

std::vector<Suggestion> suggest(const Bench& bench, Predictor& predictor, const Budget& budget,
                                int64_t wanted) {
  std::vector<Suggestion> suggestions;
  for (const int64_t batch : bench.options.batches) {
    for (const std::string& objective : bench.options.objectives) {
      std::vector<Suggestion> group = candidates(bench, objective, batch, budget, wanted);
      if (wanted > 0) {
        try_at(predictor, budget, group);
      } else {
        find_all(predictor, budget, group);
      }
      suggestions.insert(suggestions.end(), group.begin(), group.end());
    }
  }
  return suggestions;
}

}  // namespace streambp
