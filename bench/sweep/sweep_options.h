// What a sweep is asked to measure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/method.h"
#include "streambp/data/padded_tensors.h"
#include "streambp/plan/workload.h"

namespace streambp::bench {

struct SweepOptions {
  plan::ModelSetup setup;  // of all cells
  std::vector<std::string> objectives{"sft"};
  std::map<std::string, std::string>
      objective_options;  // of those objectives that have an option of the name
  std::vector<Method> methods{Method::kStandard, Method::kCheckpoint, Method::kStreambp};
  bool picks_method = false;    // `auto` was named, alone or with others: plan::choose picks one
  Settings given;               // of the methods that take them; the chunk is in `chunks`
  std::set<std::string> fixed;  // names of those of them that were given, which `auto` leaves alone
  std::optional<int64_t> budget, host_budget;  // bytes that `auto` has to fit; default: what the run has
  std::vector<int64_t> lengths{512, 1024, 2048};
  std::vector<int64_t> batches{1};  // sequences of one length in a packed stream
  std::vector<int64_t> chunks{0};   // of methods by chunks; 0: auto
  std::string device = "cpu";
  int threads = 1;
  int64_t repeats = 3;  // 0: auto, until the times of the methods are known (bench/sweep/sweep.h)
  int64_t warmup = 1;
  std::optional<int64_t> memory_limit;              // bytes; default on the CPU: what the machine can give
  bool deterministic = false;                       // on CUDA: equal passes give equal bits
  std::optional<std::filesystem::path> tokens;      // instead of lengths and batches
  FirstLabels first_labels = FirstLabels::kRefuse;  // of `tokens`
  Documents documents = Documents::kSdpa;           // in rows of `tokens`
  int64_t prompt = 0;         // tokens before a completion; 0: a quarter of its sequence
  int64_t micro_batches = 1;  // passes whose gradients are added up
  std::optional<std::filesystem::path> dump_gradients;
  std::optional<std::filesystem::path> trace, snapshot, timeline;  // memory over time, of the last repeat
  std::filesystem::path out = "out/sweep";
  bool resume = false;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> arguments;  // the command line, for the records

  bool records_memory() const { return trace || snapshot || timeline; }
};

}  // namespace streambp::bench
