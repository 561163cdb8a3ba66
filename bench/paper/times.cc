#include "bench/paper/times.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "bench/sweep/work.h"
#include "streambp/error.h"
#include "streambp/plan/flops/hardware_flops.h"
#include "streambp/plan/predict.h"

namespace streambp::bench {
namespace {

/// Scored tokens of a chunk of the head in the authors' scripts.
constexpr int64_t kPublishedHeadChunk = 100;

struct TimesConfiguration {
  std::string name;
  Settings settings;
};

/// A third, so that the last chunk is no short rest of one or two tokens.
int64_t third_of(int64_t length) {
  return std::max<int64_t>(1, (length + 2) / 3);
}

std::vector<TimesConfiguration> configurations_of(const std::string& name, int64_t length) {
  Settings settings;
  settings.method = parse_method(name);
  if (!is_chunked(settings.method)) return {{"as here", settings}};
  Settings published = settings;
  published.chunk = third_of(length);
  if (settings.method != Method::kStreambp) return {{"chunk T/3", published}};
  published.head_chunk = kPublishedHeadChunk;
  return {{"chunk T/3, head chunk 100", published}, {"as here", settings}};
}

}  // namespace

TimesScale times_scale(const std::string& name) {
  if (name == "cpu") return {name, "qwen3-cpu", "cpu", at::kFloat, 128, 5};
  if (name == "gpu") return {name, "qwen3-4b", "cuda", at::kBFloat16, 1000, 5};
  throw InputError("--scale '{}': expected cpu or gpu", name);
}

std::vector<TimesCell> times_cells(const TimesScale& scale, const std::vector<std::string>& tables) {
  std::vector<TimesCell> cells;
  for (const PublishedTime& published : published_times()) {
    if (std::find(tables.begin(), tables.end(), published.table) == tables.end()) continue;
    const int64_t length = std::llround(published.thousands * static_cast<double>(scale.thousand));
    for (const TimesConfiguration& one : configurations_of(published.method, length)) {
      cells.push_back({published.table,
                       published.method,
                       one.name,
                       published.thousands,
                       {"sft", one.settings, length, published.batch}});
    }
  }
  // A length's cells take turns where they follow one another.
  std::stable_sort(cells.begin(), cells.end(), [](const TimesCell& a, const TimesCell& b) {
    return std::pair(a.cell.seq_len, a.cell.batch) < std::pair(b.cell.seq_len, b.cell.batch);
  });
  return cells;
}

std::vector<TimesWork> times_work() {
  plan::ModelSetup setup;
  setup.model = times_scale("gpu").model;
  setup.dtype = at::kBFloat16;
  setup.gradient_dtype = at::kBFloat16;
  const plan::Predictor predictor(setup, at::kMeta);
  const Model& model = *predictor.models().policy;
  std::vector<TimesWork> all;
  for (const PublishedTime& published : published_times()) {
    if (published.table != "1" || published.method != "streambp") continue;
    plan::TrainingStep step;
    step.seq_len = std::llround(published.thousands * 1000.0);
    const Batch batch = plan::make_batch(step, model.config().vocab_size);
    const auto objective = make_objective(step.objective, batch, {});
    Settings checkpoint, streamed;
    checkpoint.method = Method::kCheckpoint;
    streamed.method = Method::kStreambp;
    streamed.chunk = third_of(step.seq_len);
    const auto operations = [&](const Settings& settings) {
      return plan::hardware_flops(model, batch, *objective, settings);
    };
    const Work work = work_of(model, batch, *objective, checkpoint, /*teacher=*/nullptr);
    // A causal mask leaves T (T + 1) / 2 of T^2 scores.
    const double length = static_cast<double>(step.seq_len);
    const double masked =
        (work.attention_forward + work.attention_backward) * (2.0 * length / (length + 1.0) - 1.0);
    const double causal = operations(checkpoint), ours = operations(streamed);
    all.push_back({published.thousands, ours / causal, ours / (causal + masked)});
  }
  return all;
}

}  // namespace streambp::bench
