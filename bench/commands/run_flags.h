// The flags that say what is trained and how, shared by the commands of streambp-bench. Those of
// a method's settings come from their table (streambp/backprop/settings.h).
#pragma once

#include <CLI/App.hpp>
#include <map>
#include <string>

#include "bench/sweep/sweep_options.h"

namespace streambp::bench {

class RunFlags {
 public:
  /// Where the commands differ in what they take for granted.
  struct Defaults {
    std::string model;
    std::string dtype;
    std::string methods = "standard,checkpoint,streambp";
    /// Whether the command has flags of its own for an optimizer that it runs.
    bool trains = false;
  };

  /// Adds the flags to `command`, which keeps references to this object.
  RunFlags(CLI::App& command, const Defaults& defaults);
  RunFlags(const RunFlags&) = delete;
  RunFlags& operator=(const RunFlags&) = delete;

  /// The parsed flags, put into `options`. Throws InputError that names the flag for what can't be read.
  void read(SweepOptions& options) const;

  /// Whether the methods were named rather than taken for granted.
  bool names_methods() const { return command_.count("--method") > 0; }
  /// Whether --reference was given, if only as none.
  bool names_reference() const { return command_.count("--reference") > 0; }

 private:
  void add_settings();
  void add_optimizers();
  void read_settings(SweepOptions& options) const;
  void read_adapters(SweepOptions& options) const;

  CLI::App& command_;
  std::string model_;
  std::string objectives_ = "sft";
  std::string objective_options_;
  std::string methods_;
  bool trains_;
  std::string batches_ = "1";
  std::map<std::string, std::string> settings_;  // as typed, by SettingKind::name
  std::string fused_optimizer_ = "none";
  std::string weights_ = "resident";
  OptimizerSettings fused_;
  std::string dtype_;
  std::string gradient_dtype_ = "same";
  std::string head_dtype_ = "same";
  std::string optimizer_ = "none";
  std::string trainer_ = "none";
  int optimizer_bits_ = 32;
  bool master_weights_ = false;
  std::string quantize_ = "none";
  bool double_quant_ = false;
  std::string freeze_;
  int64_t lora_rank_ = 0;
  double lora_alpha_ = 0.0;
  std::string lora_targets_ = "all-linear";
  bool lora_rslora_ = false;
  std::string adapter_;
  std::string reference_;
  bool release_reference_ = false;
  std::string teacher_;
  int64_t prompt_ = 0;
  int64_t micro_batches_ = 1;
  uint64_t seed_ = 0;
};

/// What each objective is and which options it has: --help objectives.
std::string describe_objectives();

/// A range that is named in errors but not in --help, where it would crowd out the text.
CLI::Validator from_to(int least, int most);

}  // namespace streambp::bench
