// The figure of peak memory against length, and tables 8 and 9.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "bench/paper/configurations.h"
#include "bench/paper/linear_example.h"
#include "bench/paper/paper.h"
#include "bench/paper/published.h"
#include "streambp/plan/longest.h"

namespace streambp::bench {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kGB = 1e9;

std::optional<double> in_gib(std::optional<int64_t> bytes) {
  return bytes ? std::optional(static_cast<double>(*bytes) / kGiB) : std::nullopt;
}

std::string in_thousands(double thousands) {
  return fmt::format("{:g}K", thousands);
}

int64_t tokens_of(double thousands) {
  return std::llround(1000.0 * thousands);
}

/// A configuration of one model, by its peaks.
class Curve {
 public:
  Curve(const PaperRun& run, PaperModel& model, PaperConfiguration configuration, PaperTable& table)
      : run_(run), model_(model), configuration_(std::move(configuration)), table_(table) {}

  const std::string& name() const { return configuration_.name; }

  Cell at(int64_t seq_len) const { return {"sft", configuration_.settings, seq_len, 1}; }

  int64_t peak(int64_t seq_len) {
    const auto [found, is_new] = peaks_.try_emplace(seq_len, 0);
    if (is_new) {
      const Cell cell = at(seq_len);
      const plan::Prediction prediction =
          model_.predictor().predict(step_of(model_.bench(), cell), cell.settings);
      found->second = prediction.peak_bytes;
      record(cell, prediction);
    }
    return found->second;
  }

  std::optional<int64_t> measured_peak(int64_t seq_len) const {
    return run_.measured.peak(cell_configuration(model_.bench(), at(seq_len)));
  }

  /// The longest sequence in the budget; the curve up to there is recorded.
  int64_t longest() {
    constexpr int64_t kPoints = 8;
    const Cell cell = at(0);
    const plan::LongestFit fit =
        plan::longest(model_.predictor(), step_of(model_.bench(), cell), cell.settings, {run_.budget, 0});
    if (!fit.fits()) return 0;
    record(at(fit.seq_len), *fit.at_longest);
    for (int64_t i = 1; i < kPoints; ++i) {
      if (const int64_t length = fit.seq_len * i / kPoints; length > 0) peak(length);
    }
    return fit.seq_len;
  }

  std::optional<int64_t> longest_measured() const {
    return run_.measured.longest(cell_configuration(model_.bench(), at(0)), run_.budget);
  }

 private:
  void record(const Cell& cell, const plan::Prediction& prediction) {
    nlohmann::json record = prediction_record(model_.bench(), cell, prediction);
    record["way"] = configuration_.name;
    table_.records.push_back(std::move(record));
  }

  const PaperRun& run_;
  PaperModel& model_;
  PaperConfiguration configuration_;
  PaperTable& table_;
  std::map<int64_t, int64_t> peaks_;  // by length
};

void add_curve(const PaperRun& run, const PublishedCurve& published, Curve& curve, PaperTable& table) {
  PaperCell cell{table.name, published.model, published.method, "", curve.name(), "GiB"};
  for (const auto& [thousands, gib] : published.points) {
    cell.column = in_thousands(thousands);
    cell.published = gib;
    cell.predicted = in_gib(curve.peak(tokens_of(thousands)));
    cell.measured = in_gib(curve.measured_peak(tokens_of(thousands)));
    table.cells.push_back(cell);
  }
  cell.measured.reset();
  if (published.points.size() > 1) {
    const double first = published.points.front().first, last = published.points.back().first;
    cell.column = "per 1K";
    cell.published = published.slope;
    cell.predicted = *in_gib(curve.peak(tokens_of(last)) - curve.peak(tokens_of(first))) / (last - first);
    table.cells.push_back(cell);
  }
  cell.column = fmt::format("longest in {:g} GiB", static_cast<double>(run.budget) / kGiB);
  cell.unit = "thousands of tokens";
  cell.more_is_better = true;
  cell.published = published.thousands_at_most;
  const auto thousands = [](int64_t length) { return static_cast<double>(length) / 1000.0; };
  if (const int64_t longest = curve.longest(); longest > 0) cell.predicted = thousands(longest);
  if (const auto measured = curve.longest_measured()) cell.measured = thousands(*measured);
  table.cells.push_back(cell);
}

std::unique_ptr<PaperModel> open_paper_model(const std::string& name, bool lora) {
  SweepOptions options;
  options.setup.model = name;
  if (lora) options.setup.lora = paper_lora();
  return std::make_unique<PaperModel>(options);
}

}  // namespace

PaperTable paper_curves(const PaperRun& run) {
  PaperTable table{"curves", "The figure of peak memory against length", {}, {}, {}};
  table.assumptions = {
      "one back-propagation of SFT, batch 1, bfloat16 weights and gradients, no optimizer states; the "
      "figure's GB are GiB",
      "qwen3-32b: gradients of LoRA adapters only (rank 32, all linear layers); the paper does not say which "
      "adapters",
      "the longest: where the figure's curve reaches about 78 of 80 GiB"};
  std::string of;
  std::unique_ptr<PaperModel> model;
  for (const PublishedCurve& published : published_curves()) {
    if (of != published.model) {
      of = published.model;
      model.reset();  // its bytes would count in the next one's peaks
      model = open_paper_model(published.model, published.lora);
      PaperCell floor{table.name, of, "floor", "floor", "weights and gradients", "GiB"};
      floor.published = published.floor;
      floor.predicted = in_gib(model->predictor().floor().peak_bytes);
      table.cells.push_back(floor);
    }
    for (const PaperConfiguration& one : curve_configurations(parse_method(published.method))) {
      run.progress(fmt::format("curves: {}, {}, {}", of, published.method, one.name));
      Curve curve(run, *model, one, table);
      add_curve(run, published, curve, table);
    }
  }
  return table;
}

PaperTable paper_peaks(const PaperRun& run) {
  PaperTable table{"9", "Table 9: peak memory of two further models", {}, {}, {}};
  table.assumptions = {
      "as the curves; the table's GB are GiB: Llama-3.1-8B's weights and gradients are 29.9 GiB"};
  std::string of;
  std::unique_ptr<PaperModel> model;
  std::vector<Curve> curves;
  std::string method;
  for (const PublishedPeak& published : published_peaks()) {
    if (of != published.model || method != published.method) {
      curves.clear();
      if (of != published.model) {
        model.reset();
        model = open_paper_model(published.model, false);
      }
      of = published.model;
      method = published.method;
      for (const PaperConfiguration& one : script_configurations(parse_method(method)))
        curves.emplace_back(run, *model, one, table);
    }
    run.progress(fmt::format("table 9: {}, {}", of, method));
    for (Curve& curve : curves) {
      PaperCell cell{table.name,   of,   method, in_thousands(static_cast<double>(published.tokens) / 1000.0),
                     curve.name(), "GiB"};
      cell.published = published.peak;
      cell.predicted = in_gib(curve.peak(published.tokens));
      cell.measured = in_gib(curve.measured_peak(published.tokens));
      table.cells.push_back(cell);
    }
  }
  return table;
}

PaperTable paper_linear(const PaperRun& run) {
  PaperTable table{"8", "Table 8: the linear example", {}, {}, {}};
  table.assumptions = {
      fmt::format("{} rows of {} float32 numbers, two maps; GB of 10^9 bytes. The text says 1,000,000 rows, "
                  "whose input "
                  "alone would be 65.5 GB; the bytes are those of 100,000, as in the authors' script",
                  kLinearRows, kLinearSize),
      "intermediate: the peak without input, weights and gradients; standard holds four tensors of the "
      "input's size at its "
      "peak and misses one gradient, D chunks hold the same four in 1/D and one weight gradient in flight",
      "in-place: this project's ops add a chunk's product to the gradient in place"};
  run.progress("table 8");
  const LinearExample example{kLinearRows, kLinearSize, at::kFloat, at::kMeta, 0};
  std::vector<int64_t> chunks;
  for (const PublishedLinear& published : published_linear()) {
    if (published.chunks > 0) chunks.push_back(published.chunks);
  }
  for (const LinearRun& result : run_linear_example(example, chunks, 1)) {
    const PublishedLinear& published =
        *std::find_if(published_linear().begin(), published_linear().end(),
                      [&](const PublishedLinear& row) { return row.chunks == result.chunks; });
    const nlohmann::json wanted{
        {"example", "linear"},
        {"method", linear_method_name(result.method)},
        {"rows", example.rows},
        {"size", example.size},
        {"dtype", "float32"},
        {"chunks", result.chunks > 0 ? nlohmann::json(result.chunks) : nlohmann::json(nullptr)}};
    PaperCell cell{table.name,
                   "",
                   result.chunks > 0 ? fmt::format("D = {}", result.chunks) : "standard",
                   "",
                   linear_method_name(result.method),
                   "GB"};
    const auto add = [&](const char* column, double figure, int64_t bytes, const char* member) {
      cell.column = column;
      cell.published = figure;
      cell.predicted = static_cast<double>(bytes) / kGB;
      cell.measured = run.measured.linear(wanted, member);
      if (cell.measured) *cell.measured /= kGB;
      table.cells.push_back(cell);
    };
    add("peak GB", published.peak, result.peak_bytes, "peak_bytes");
    add("intermediate GB", published.intermediate, result.intermediate_bytes, "intermediate_bytes");
    cell.column = "seconds";
    cell.unit = "s";
    cell.published = published.seconds;
    cell.predicted.reset();
    cell.measured = run.measured.linear(wanted, "seconds_median");
    cell.testable = cell.measured.has_value();
    table.cells.push_back(cell);
  }
  return table;
}

}  // namespace streambp::bench
