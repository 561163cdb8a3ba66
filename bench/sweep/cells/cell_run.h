// A cell of a sweep while it is measured: run a few times, and the record of it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/sweep/cells/cell.h"
#include "bench/sweep/cells/memory_failure.h"
#include "bench/sweep/work.h"
#include "streambp/memory/recorder.h"
#include "streambp/plan/metered_pass.h"
#include "streambp/runtime/gpu.h"

namespace streambp::bench {

class CellRun {
 public:
  CellRun(const Bench& bench, Cell cell)
      : bench_(bench), cell_(std::move(cell)), runner_(step_of(bench, cell_), cell_.settings) {}

  const Cell& cell() const { return cell_; }
  bool failed() const { return status_ != "ok"; }
  const std::string& error() const { return error_; }

  /// What has to be known before the first pass: the reference's log-probabilities, where the objective
  /// compares with some that its batch does not have. What that throws ends up in the record.
  void prepare(plan::Models& models);

  /// Sets the gradients to zero and runs one pass, timed and metered. Whatever it throws ends up in the
  /// record: when it returns, no tensor of the pass is alive.
  void repeat(plan::Models& models);

  /// What the machine's matrix product reached just before the repeats: the record relates their speed to it.
  void set_gemm(std::optional<double> flops_per_second) { gemm_flops_per_second_ = flops_per_second; }

  /// The cell can't be run or was not worth trying: status `oom`, and why.
  void run_out(const MemoryFailure& failure);
  /// It can't be run for another reason: status `error`, and which.
  void fail(const std::string& error);

  /// Memory over time of the last repeat, failed or not; null where nobody asked for it.
  const Recording* recording() const { return recording_.get(); }

  /// Wall time of each repeat that ended well.
  std::vector<double> seconds() const;
  /// The largest peak of them, in bytes; 0 before the first.
  int64_t peak_bytes() const;

  /// The record (bench/README.md) with `environment`.
  nlohmann::json record(const nlohmann::json& environment) const;

 private:
  /// Of an exception: one of the two.
  void end(const std::exception& error);
  void count_work(const plan::Models& models);
  void add_passes(nlohmann::json& record) const;

  const Bench& bench_;
  Cell cell_;
  plan::StepRunner runner_;
  std::vector<plan::MeteredPass> passes_;
  std::shared_ptr<const Recording> recording_;
  std::optional<double> gemm_flops_per_second_;
  std::optional<Work> work_;                        // on a GPU, or where one is predicted for
  std::optional<GpuState> gpu_before_, gpu_after_;  // before the first pass and after the last one
  std::string status_ = "ok";
  std::string error_;
  MemoryFailure failure_;  // of status `oom`
};

}  // namespace streambp::bench
