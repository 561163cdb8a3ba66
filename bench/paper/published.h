// What StreamBP's paper reports (arXiv 2506.03077): the figures that `streambp-bench paper` compares with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace streambp::bench {

/// Table 3: the longest sequence on one A800-80GB, optimizer states included.
struct PublishedLength {
  std::string objective;            // sft, grpo, dpo
  std::string method;               // standard, checkpoint, streambp
  std::string column;               // "4B full", "32B LoRA"
  std::optional<double> thousands;  // of tokens; none: "-", does not fit
};
const std::vector<PublishedLength>& published_lengths();

/// The figure of peak memory against length, no optimizer states: a method of a model.
struct PublishedCurve {
  std::string model;   // a preset
  bool lora = false;   // gradients of adapters only
  double floor = 0.0;  // GiB of weights and gradients
  std::string method;
  double thousands_at_most = 0.0;                 // where the curve reaches about 78 GiB
  std::vector<std::pair<double, double>> points;  // thousands of tokens, GiB
  double slope = 0.0;  // GiB for a thousand tokens, as read off the curve; 0: not given
};
const std::vector<PublishedCurve>& published_curves();

/// Table 8: the linear example, in GB. Chunks 0: standard.
struct PublishedLinear {
  int64_t chunks;
  double peak, intermediate, seconds;
};
const std::vector<PublishedLinear>& published_linear();
/// The rows at which the published bytes are those of the tensors: the authors' script's, not the paper's
/// 1e6.
inline constexpr int64_t kLinearRows = 100000;
inline constexpr int64_t kLinearSize = 16384;

/// Table 9: peaks in GiB.
struct PublishedPeak {
  std::string model;  // a preset
  std::string method;
  int64_t tokens;
  double peak;
};
const std::vector<PublishedPeak>& published_peaks();

/// Tables 1 and 2: seconds of back-propagation of Qwen3-4B; of a sample in table 2. The rows that the paper
/// calls checkpoint, MsT and StreamBP, and standard where it fits; none: "-", does not fit.
struct PublishedTime {
  std::string table;   // "1", "2"
  std::string method;  // standard, checkpoint, tiled (MsT), streambp
  double thousands;    // of tokens
  int64_t batch;
  std::optional<double> seconds;
};
const std::vector<PublishedTime>& published_times();

/// Tables 4 and 5: Qwen3-8B under ZeRO-2, the first and last columns of each: the longest sequence on so many
/// cards, and the seconds of a step.
struct PublishedOnRanks {
  std::string method;             // checkpoint, streambp
  int64_t ranks;                  // 0: not known
  double thousands;               // of tokens
  std::optional<double> seconds;  // none: table 4
};
const std::vector<PublishedOnRanks>& published_on_ranks();

}  // namespace streambp::bench
