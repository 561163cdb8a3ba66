// The cells of a sweep and the part of their records that is known before they are run.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/sweep/sweep_files.h"
#include "bench/sweep/sweep_options.h"
#include "streambp/model/config/config.h"
#include "streambp/plan/configurations.h"
#include "streambp/plan/predict.h"

namespace streambp::bench {

/// One combination of objective, configuration, length and batch.
struct Cell {
  std::string objective = "sft";
  Settings settings;
  int64_t seq_len = 0;  // the longest sequence
  int64_t batch = 1;    // sequences
  /// Whether method and open settings are still to be chosen (plan::choose): then it can't be run.
  bool automatic = false;
};

/// What the cells of a sweep share.
struct Bench {
  SweepOptions options;
  Config config;
  c10::Device device = at::kCPU;
  std::shared_ptr<const Batch> batch;  // of --tokens; otherwise each pass draws its own from the seed
  std::string batch_key;               // stands for the contents of that batch
  bool batch_scored = false;           // whether any of its tokens has a target
  InputFiles inputs;                   // what models and tokens are read from
};

/// What a cell trains on.
plan::TrainingStep step_of(const Bench& bench, const Cell& cell);

/// The configurations that --method auto and --suggest look at.
plan::SearchSpace search_space(const SweepOptions& options);

/// Everything that decides a cell's figures in addition to machine and commit: the members of its record that
/// are known before it is run, and, through record_key, how --resume recognises it. Of an automatic cell what
/// was asked for, with "auto" where the choice is open.
nlohmann::json cell_configuration(const Bench& bench, const Cell& cell);

/// A record (bench/README.md) of kind "predicted", without its environment.
nlohmann::json prediction_record(const Bench& bench, const Cell& cell, const plan::Prediction& prediction);

}  // namespace streambp::bench
