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

#include "streambp/optimizer/optimizer_states.h"
#include "streambp/backprop/method.h"
#include "streambp/model/lora.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp::bench {

struct SweepOptions {
  std::string model = "qwen3-cpu";  // a folder or a preset
  std::vector<std::string> objectives{"sft"};
  std::map<std::string, std::string>
      objective_options;  // of those objectives that have an option of the name
  std::vector<Method> methods{Method::kStandard, Method::kCheckpoint, Method::kStreambp};
  bool picks_method = false;  // `auto` beside or in place of them: bench/choice.h picks one for each cell
  std::set<std::string>
      fixed;  // --keep-attention, --every, --offload: those given, which `auto` leaves alone
  std::optional<int64_t> budget, host_budget;  // bytes that `auto` has to fit; default: what the run has
  std::vector<int64_t> lengths{512, 1024, 2048};
  std::vector<int64_t> batches{1};  // sequences of one length in a packed stream
  std::vector<int64_t> chunks{0};   // of methods by chunks; 0: auto
  bool keep_attention = false;      // of streambp, like the next three
  int64_t every = 1;
  Offload offload = Offload::kNone;
  Order order = Order::kReverse;
  std::optional<OptimizerSettings> fused_optimizer;  // of streambp: uses gradients up layer by layer
  bool hugging_face = false;        // they hold what Hugging Face holds
  std::optional<bool> stream_head;  // default: the method's
  int64_t head_chunk = 0;           // of streamed heads; 0: auto
  at::ScalarType dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;
  OptimizerStates optimizer;
  std::string device = "cpu";
  int threads = 1;
  int64_t repeats = 3;
  int64_t warmup = 1;
  uint64_t seed = 0;
  std::optional<int64_t> memory_limit;              // bytes; default on the CPU: what the machine can give
  bool deterministic = false;                       // on CUDA: equal passes give equal bits
  std::optional<std::filesystem::path> tokens;      // instead of lengths and batches
  FirstLabels first_labels = FirstLabels::kRefuse;  // of `tokens`
  int64_t prompt = 0;                            // tokens before a completion; 0: a quarter of its sequence
  int64_t micro_batches = 1;                     // passes whose gradients are added up
  std::optional<LoraConfig> lora;                // adapters beside a frozen base
  std::optional<std::filesystem::path> adapter;  // the same, of a PEFT folder
  std::string reference;            // a folder or preset whose log-probabilities the objective compares with
  bool release_reference = false;   // its weights are freed once its log-probabilities are known
  std::string teacher;              // a folder or preset to distil from
  std::vector<std::string> freeze;  // parameters whose name contains one of these
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
