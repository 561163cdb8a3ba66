#include "bench/paper/published.h"

#include <array>

namespace streambp::bench {
namespace {

/// A row of table 3 as printed; 0 stands for its dash.
struct Table3Row {
  const char* objective;
  const char* method;
  std::array<double, 6> thousands;
};
constexpr std::array<const char*, 6> kTable3Columns{"4B full", "4B LoRA",  "8B full",
                                                    "8B LoRA", "14B LoRA", "32B LoRA"};
constexpr std::array<Table3Row, 9> kTable3{{
    {"sft", "standard", {7.0, 7.1, 3.4, 5.1, 2.9, 0.4}},
    {"sft", "checkpoint", {28.5, 36.5, 15.7, 30.6, 23.0, 5.9}},
    {"sft", "streambp", {200.0, 247.0, 72.0, 142.4, 84.6, 16.3}},
    {"grpo", "standard", {0.9, 1.0, 0, 0.7, 0.4, 0}},
    {"grpo", "checkpoint", {8.5, 12.1, 0, 9.5, 6.9, 0}},
    {"grpo", "streambp", {18.2, 27.5, 0, 16.5, 10.1, 0}},
    {"dpo", "standard", {3.1, 3.5, 0, 2.5, 1.4, 0.2}},
    {"dpo", "checkpoint", {18.7, 32.2, 0, 25.5, 18.5, 4.4}},
    {"dpo", "streambp", {57.2, 100.2, 0, 60.9, 36.9, 7.8}},
}};

}  // namespace

const std::vector<PublishedLength>& published_lengths() {
  static const std::vector<PublishedLength> lengths = [] {
    std::vector<PublishedLength> all;
    for (const Table3Row& row : kTable3) {
      for (size_t i = 0; i < kTable3Columns.size(); ++i) {
        const double thousands = row.thousands[i];
        all.push_back({row.objective, row.method, kTable3Columns[i],
                       thousands > 0 ? std::optional(thousands) : std::nullopt});
      }
    }
    return all;
  }();
  return lengths;
}

const std::vector<PublishedCurve>& published_curves() {
  static const std::vector<PublishedCurve> curves{
      {"qwen3-8b", false, 30.5, "standard", 4.7, {{1, 40.2}, {2, 49.8}, {3, 59.5}, {4.7, 77.3}}, 9.7},
      {"qwen3-8b", false, 30.5, "checkpoint", 20, {{5, 42.0}, {10, 53.5}, {15, 65.2}, {20, 77.0}}, 2.35},
      {"qwen3-8b",
       false,
       30.5,
       "streambp",
       110,
       {{10, 34.9}, {20, 39.2}, {50, 52.0}, {75, 62.7}, {100, 73.5}, {110, 77.8}},
       0.43},
      {"qwen3-14b", false, 55.0, "standard", 1.7, {}, 0},
      {"qwen3-14b", false, 55.0, "checkpoint", 9, {}, 0},
      {"qwen3-14b", false, 55.0, "streambp", 40, {}, 0},
      {"qwen3-32b", true, 63.0, "standard", 0.44, {}, 0},
      {"qwen3-32b", true, 63.0, "checkpoint", 5.7, {}, 0},
      {"qwen3-32b", true, 63.0, "streambp", 16, {}, 0}};
  return curves;
}

const std::vector<PublishedLinear>& published_linear() {
  static const std::vector<PublishedLinear> rows{{0, 36.01, 25.15, 14.48},  {20, 13.25, 2.39, 14.50},
                                                 {50, 12.47, 1.61, 14.70},  {100, 12.20, 1.34, 14.79},
                                                 {200, 12.07, 1.21, 15.45}, {500, 11.99, 1.13, 18.42}};
  return rows;
}

const std::vector<PublishedPeak>& published_peaks() {
  static const std::vector<PublishedPeak> peaks{
      {"llama-3.1-8b", "checkpoint", 3000, 35.8}, {"llama-3.1-8b", "checkpoint", 6000, 41.7},
      {"llama-3.1-8b", "checkpoint", 9000, 47.6}, {"llama-3.1-8b", "checkpoint", 18000, 65.6},
      {"llama-3.1-8b", "streambp", 3000, 31.8},   {"llama-3.1-8b", "streambp", 6000, 32.7},
      {"llama-3.1-8b", "streambp", 9000, 33.6},   {"llama-3.1-8b", "streambp", 18000, 37.2},
      {"gemma-3-1b", "checkpoint", 3000, 14.3},   {"gemma-3-1b", "checkpoint", 6000, 24.8},
      {"gemma-3-1b", "checkpoint", 9000, 35.3},   {"gemma-3-1b", "checkpoint", 18000, 67.2},
      {"gemma-3-1b", "streambp", 3000, 4.7},      {"gemma-3-1b", "streambp", 6000, 5.0},
      {"gemma-3-1b", "streambp", 9000, 5.4},      {"gemma-3-1b", "streambp", 18000, 7.9}};
  return peaks;
}

const std::vector<PublishedTime>& published_times() {
  static const std::vector<PublishedTime> times = [] {
    struct Row {
      const char* table;
      const char* method;
      std::vector<double> columns;  // of the table, from the first; the others did not fit
    };
    const std::vector<double> thousands{6, 9, 12, 15, 18, 21, 24, 27};
    const std::vector<int64_t> batches{1, 2, 4, 16};
    const std::vector<Row> rows{{"1", "standard", {2.0}},
                                {"1", "checkpoint", {2.5, 4.7, 7.4, 10.8, 14.7, 19.3, 24.3}},
                                {"1", "tiled", {2.6, 4.9, 7.6, 11.2, 15.2, 20.3, 25.2, 31.8}},
                                {"1", "streambp", {2.6, 4.7, 7.0, 10.0, 13.2, 17.2, 21.2, 25.8}},
                                {"2", "checkpoint", {7.42, 7.12, 7.04}},
                                {"2", "tiled", {7.64, 7.41, 7.28, 7.06}},
                                {"2", "streambp", {7.03, 6.82, 6.63, 6.47}}};
    std::vector<PublishedTime> all;
    for (const Row& row : rows) {
      const bool by_length = std::string(row.table) == "1";
      for (size_t i = 0; i < (by_length ? thousands.size() : batches.size()); ++i) {
        const auto seconds = i < row.columns.size() ? std::optional<double>(row.columns[i]) : std::nullopt;
        all.push_back(
            {row.table, row.method, by_length ? thousands[i] : 9.0, by_length ? 1 : batches[i], seconds});
      }
    }
    return all;
  }();
  return times;
}

const std::vector<PublishedOnRanks>& published_on_ranks() {
  static const std::vector<PublishedOnRanks> rows{{"checkpoint", 3, 18.6, {}}, {"checkpoint", 8, 23.7, {}},
                                                  {"streambp", 3, 92.4, {}},   {"streambp", 8, 131.8, {}},
                                                  {"checkpoint", 0, 6.0, 8.4}, {"checkpoint", 0, 21.0, 26.3},
                                                  {"streambp", 0, 6.0, 6.4},   {"streambp", 0, 21.0, 20.7}};
  return rows;
}

}  // namespace streambp::bench
