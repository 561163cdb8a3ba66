// The paper's tables 1 and 2, times of back-propagation, measured: its rows in turns on a model and lengths
// of the machine's size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/paper/published.h"
#include "bench/sweep/cells/cell.h"

namespace streambp::bench {

/// What stands for the paper's model, card and lengths.
struct TimesScale {
  std::string name;  // "cpu", "gpu"
  std::string model;
  std::string device;
  at::ScalarType dtype;
  int64_t thousand;  // tokens that stand for 1,000 of the paper's
  int64_t repeats;
};

/// Throws InputError that names the scales.
TimesScale times_scale(const std::string& name);

/// A row of the report at one length and batch.
struct TimesCell {
  std::string table;          // "1", "2"
  std::string method;         // as in PublishedTime
  std::string configuration;  // what was run
  double thousands = 0.0;     // of tokens, in the paper
  Cell cell;
  nlohmann::json record = {};
};

/// Those of `tables` at `scale`: each method with a chunk of a third of the length, as the paper timed them,
/// and streambp also with the settings of its own choice; checkpoint's layers see causal attention.
std::vector<TimesCell> times_cells(const TimesScale& scale, const std::vector<std::string>& tables);

/// Relative to checkpoint, by counted operations of the paper's model (plan/flops/hardware_flops.h) at its
/// length: streambp's, where checkpoint computes the scores that a causal mask leaves, and where it computes
/// all of them.
struct TimesWork {
  double thousands = 0.0;
  double causal = 0.0, full = 0.0;
};
std::vector<TimesWork> times_work();

/// The tables with their records: ratios to checkpoint with intervals next to the paper's, seconds, memory,
/// and what the operations say of the paper's claim.
std::string times_markdown(const TimesScale& scale, const std::vector<TimesCell>& cells,
                           const std::vector<TimesWork>& work);

}  // namespace streambp::bench
