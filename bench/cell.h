// One cell of a sweep: a method at a length, run a few times, and the record of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/sweep_options.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp::bench {

/// The options that are given for objective `name`: those of `given` that it has.
std::map<std::string, std::string> options_of(const std::string& name,
                                              const std::map<std::string, std::string>& given);

struct Cell {
  std::string objective = "sft";
  Settings settings;
  int64_t seq_len = 0;  // the longest sequence
  int64_t batch = 1;    // sequences
  /// Whether method and open settings are still to be chosen (bench/choice.h): then it can't be run.
  bool automatic = false;
};

/// What the cells of a sweep share.
struct Bench {
  SweepOptions options;
  Config config;
  c10::Device device = at::kCPU;
  std::optional<Batch> batch;  // of --tokens; otherwise each run draws its own from the seed
  std::string batch_key;       // stands for the contents of that batch
  bool batch_scored = false;   // whether any of its tokens has a target
  bool needs_value_head = false;
};

struct Models;

/// The batch of a cell. Equal calls give equal batches.
Batch cell_batch(const Bench& bench, const Cell& cell);

/// Zeros for the reference's log-probabilities that `objective` asks for and `batch` lacks: what they are
/// decides neither memory nor time, and whether the inputs are complete. Returns whether any were lacking.
bool stand_in_for_reference(const std::string& objective, const std::map<std::string, std::string>& given,
                            Batch& batch);

/// Everything that decides a cell's figures beside machine and commit: the members of its record that are
/// known before it is run, and, through record_key, how --resume recognises it. Of an automatic cell what was
/// asked for, with "auto" where the choice is open.
nlohmann::json cell_configuration(const Bench& bench, const Cell& cell);

/// A cell while it is measured.
class CellRun {
 public:
  CellRun(const Bench& bench, Cell cell) : bench_(bench), cell_(std::move(cell)) {}

  /// One pass: its times, its memory and what it gave.
  struct Pass {
    double seconds = 0.0;
    double cpu_seconds = 0.0;  // of all threads of this process
    double gpu_seconds = 0.0;  // between events on the GPU's stream; 0 elsewhere
    int64_t tokens = 0;
    int64_t resident_bytes = 0;
    MemoryReading memory;
    Outcome outcome;  // without its tensors
  };

  const Cell& cell() const { return cell_; }
  bool failed() const { return status_ != "ok"; }
  const std::string& error() const { return error_; }

  /// The pass that took the most memory beyond what was resident; null before the first.
  const Pass* worst() const;

  /// What has to be known before the first pass: the reference's log-probabilities, where the objective
  /// compares with some that its batch does not bring. Throws nothing, as repeat.
  void prepare(Models& models);

  /// Sets the gradients to zero and runs one pass, which is timed and metered. Whatever it throws ends up in
  /// the record: when it returns, no tensor of the pass is alive.
  void repeat(Models& models);

  /// What the machine's matrix product gave just before the repeats, beside which the record puts their
  /// speed.
  void set_gemm(std::optional<double> flops_per_second) { gemm_flops_per_second_ = flops_per_second; }

  /// What one pass asks for (streambp/plan/model_flops.h); nothing before prepare().
  std::optional<double> model_flops() const { return model_flops_; }

  /// What one pass executes (streambp/plan/hardware_flops.h); nothing before the first one was tried.
  std::optional<double> hardware_flops() const { return hardware_flops_; }

  /// The cell can't be run or was not worth trying: status `oom` or `error`, and why.
  void fail(const std::string& status, const std::string& error);

  /// Memory over time of the last repeat, failed or not; null where nobody asked for it.
  const Recording* recording() const { return recording_.get(); }

  /// The record (design.md section 7) with `environment`.
  nlohmann::json record(const nlohmann::json& environment) const;

 private:
  void ask_reference(Models& models);
  Pass run_pass(Models& models, std::optional<Recorder>& recorder);

  const Bench& bench_;
  Cell cell_;
  std::vector<Pass> passes_;
  std::shared_ptr<const Recording> recording_;
  std::optional<double> model_flops_;
  std::optional<double> hardware_flops_;
  std::optional<double> gemm_flops_per_second_;
  nlohmann::json gpu_before_, gpu_after_;  // its state before the first pass and after the last one
  at::Tensor reference_;                   // [N] log-probabilities, where prepare has asked for them
  std::string status_ = "ok";
  std::string error_;
};

/// The middle value, or the mean of the two in the middle. `values` must not be empty.
double median(std::vector<double> values);

}  // namespace streambp::bench
