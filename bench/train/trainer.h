// Training: steps of an optimizer over passes of any method, with what is needed to go on after a stop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/sweep/sweep_options.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp::bench {

struct TrainOptions {
  SweepOptions run;  // model, objective, method and data of a step: one of each; out, resume, quiet
  std::vector<std::filesystem::path> text;  // instead of run.tokens
  int64_t seq_len = 256;                    // tokens of a sequence of `text`
  OptimizerSettings optimizer;
  std::string schedule = "constant";  // constant, linear, cosine
  int64_t warmup_steps = 0;
  double clip_norm = 1.0;  // of all gradients together; 0: none
  int64_t steps = 100;
  int64_t save_every = 0;  // steps between two checkpoints; 0: at the end alone
  uint64_t data_seed = 0;  // of the windows of `text`
};

/// The learning rate of step `step` (1, 2, ...): rises linearly to `learning_rate` over the first
/// `warmup_steps`, then stays, or falls to 0 at step `steps` + 1 along a line or half a cosine, as
/// transformers' get_scheduler has it. Throws InputError that names the schedules.
double learning_rate_of(const TrainOptions& options, int64_t step);

/// Trains, and returns an exit code: 1 where loss or gradients are no longer finite.
///
/// A record of each step (kind "training_step": step, loss, gradient_norm before clipping, learning_rate,
/// seconds, tokens, peak_bytes) is on disk in OUT/results.jsonl before the next step begins.
/// OUT/state.safetensors holds the trained parameters, the optimizer's states and the step they belong to,
/// replaced as a whole; with `run.resume` training goes on from it with the same bits as if it had not
/// stopped. At the end OUT/model is a Hugging Face folder, or, of adapters, a PEFT folder.
///
/// Throws InputError before anything is run for options that can't be honoured, a state of another run, and,
/// where a step that is on record is taken again, another loss than the recorded one; OutOfMemory.
int run_training(const TrainOptions& options);

}  // namespace streambp::bench
