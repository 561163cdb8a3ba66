#include "bench/sweep/cells/remedies.h"

#include <algorithm>
#include <bit>
#include <fmt/ranges.h>
#include <functional>
#include <optional>
#include <set>

#include "streambp/error.h"
#include "streambp/runtime/bytes.h"

namespace streambp::bench {
namespace {

constexpr int64_t kLoraRank = 16;

/// One change of the command line, and of the models as it makes them.
struct SettingChange {
  std::string flags;
  std::function<void(plan::ModelSetup&)> apply;
};

// What --lora-targets has to name where not all maps can be adapted: those outside of shared blocks.
const std::vector<std::string> kOutsideOfBlocks{"linear", "in_proj", "out_proj"};

LoraConfig lora_everywhere(bool shared_blocks) {
  LoraConfig lora;
  lora.r = kLoraRank;
  lora.lora_alpha = static_cast<double>(kLoraRank);
  lora.target_modules = shared_blocks ? kOutsideOfBlocks : std::vector<std::string>{kAllLinear};
  return lora;
}

bool is_half(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Gradients are consumed layer by layer; what is counted for --optimizer moves into the fused one.
SettingChange fuse_optimizer(const OptimizerStates& optimizer) {
  const bool has_moments = optimizer.name == "adamw";
  OptimizerSettings fused;
  fused.name = has_moments ? "adamw" : "sgd";
  if (has_moments && optimizer.dtype != at::kFloat) fused.dtype = at::kBFloat16;
  fused.master_weights = optimizer.master_weights;
  const std::string bits = fused.dtype == at::kBFloat16 ? " --optimizer-bits 16" : "";
  const std::string instead = optimizer.states > 0 ? " in place of --optimizer" : "";
  return {fmt::format("--fuse-optimizer {}{}{}", fused.name, bits, instead),
          [fused](plan::ModelSetup& setup) {
            setup.fused_optimizer = fused;
            setup.optimizer = {};
          }};
}

void add_fewer_bits(const plan::ModelSetup& setup, std::vector<SettingChange>& changes) {
  if (setup.optimizer.states > 0 && setup.optimizer.dtype != at::kByte) {
    changes.push_back(
        {"--optimizer-bits 8", [](plan::ModelSetup& changed) { changed.optimizer.dtype = at::kByte; }});
  }
  if (setup.fused_optimizer && setup.fused_optimizer->name != "sgd" &&
      setup.fused_optimizer->dtype == at::kFloat) {
    changes.push_back({"--optimizer-bits 16", [](plan::ModelSetup& changed) {
                         if (changed.fused_optimizer) changed.fused_optimizer->dtype = at::kBFloat16;
                       }});
  }
  if (setup.optimizer.master_weights || (setup.fused_optimizer && setup.fused_optimizer->master_weights)) {
    changes.push_back({"no --master-weights", [](plan::ModelSetup& changed) {
                         changed.optimizer.master_weights = false;
                         if (changed.fused_optimizer) changed.fused_optimizer->master_weights = false;
                       }});
  }
  if (!is_half(setup.dtype)) {
    changes.push_back({"--dtype bfloat16", [](plan::ModelSetup& changed) {
                         changed.dtype = changed.gradient_dtype = at::kBFloat16;
                       }});
  } else if (setup.gradient_dtype != setup.dtype) {
    changes.push_back(
        {"--grad-dtype same", [](plan::ModelSetup& changed) { changed.gradient_dtype = changed.dtype; }});
  }
  if (setup.head_dtype)
    changes.push_back({"--head-dtype same", [](plan::ModelSetup& changed) { changed.head_dtype.reset(); }});
}

std::vector<SettingChange> changes_of(const Bench& bench, bool default_reference) {
  const SweepOptions& options = bench.options;
  const plan::ModelSetup& setup = options.setup;
  std::vector<SettingChange> changes;
  if (!setup.reference.empty() && !setup.release_reference) {
    changes.push_back(
        {"--release-reference", [](plan::ModelSetup& changed) { changed.release_reference = true; }});
  }
  const bool adapted = setup.lora || setup.adapter;
  if (!adapted && !setup.fused_optimizer && options.micro_batches == 1)
    changes.push_back(fuse_optimizer(setup.optimizer));
  if (!adapted) {
    // With adapters the base is the reference.
    const bool shared_blocks = bench.config.has_shared_blocks();
    changes.push_back(
        {fmt::format("--lora-rank {}{}{}", kLoraRank,
                     shared_blocks ? fmt::format(" --lora-targets {}", fmt::join(kOutsideOfBlocks, ",")) : "",
                     setup.reference.empty() || default_reference ? "" : " without --reference"),
         [shared_blocks](plan::ModelSetup& changed) {
           changed.lora = lora_everywhere(shared_blocks);
           changed.reference.clear();
         }});
  }
  add_fewer_bits(setup, changes);
  if (!setup.weights_on_host) {
    changes.push_back({setup.quantization ? "--weights host without --quantize" : "--weights host",
                       [](plan::ModelSetup& changed) {
                         changed.quantization.reset();
                         changed.weights_on_host = true;
                       }});
  }
  if (setup.quantization && !setup.quantization->experts && bench.config.mixture.num_experts > 0) {
    Quantization packed = *setup.quantization;
    packed.experts = true;
    changes.push_back({"--quantize " + quantization_name(packed),
                       [packed](plan::ModelSetup& changed) { changed.quantization = packed; }});
  }
  return changes;
}

/// A set of changes and how far it goes.
struct Remedy {
  std::string flags;
  int64_t seq_len = 0;
  int64_t needed_bytes = 0;  // before any pass, or for the shortest sequence
};

/// The furthest that `setup` goes by one of the methods that were named, or streambp where none was or none
/// can. Nothing where the model does not take the changes.
std::optional<Remedy> try_setup(const Bench& bench, const plan::ModelSetup& setup,
                                const plan::Budget& budget) {
  const SweepOptions& options = bench.options;
  Cell cell;
  cell.objective = options.objectives.front();
  cell.batch = options.batches.front();
  const plan::TrainingStep step = step_of(bench, cell);
  std::vector<Settings> tried{settings_for(Method::kStreambp, options.given)};
  for (const Method method : options.methods) {
    const bool can = !setup.fused_optimizer || method_kind(method).fuses_optimizer;
    if (can && method != Method::kStreambp) tried.push_back(settings_for(method, options.given));
  }
  try {
    plan::Predictor predictor(setup, bench.device);
    Remedy remedy{"", 0, predictor.floor().peak_bytes};
    if (remedy.needed_bytes > budget.device) return remedy;
    remedy.needed_bytes = 0;
    for (Settings settings : tried) {
      settings.chunk = is_chunked(settings.method) ? options.chunks.front() : 0;
      const plan::LongestFit fit = plan::longest(predictor, step, settings, budget);
      if (remedy.needed_bytes > 0 && fit.seq_len <= remedy.seq_len) continue;
      remedy = {"--method " + method_name(settings.method), fit.seq_len, fit.at_shortest.peak_bytes};
    }
    return remedy;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

/// With those of `changes` whose bit is set in `chosen`.
std::optional<Remedy> try_changes(const Bench& bench, const std::vector<SettingChange>& changes,
                                  unsigned chosen, const plan::Budget& budget) {
  plan::ModelSetup setup = bench.options.setup;
  std::vector<std::string> flags;
  for (size_t i = 0; i < changes.size(); ++i) {
    if ((chosen >> i & 1U) == 0) continue;
    changes[i].apply(setup);
    flags.push_back(changes[i].flags);
  }
  std::optional<Remedy> remedy = try_setup(bench, setup, budget);
  if (!remedy) return std::nullopt;
  if (!remedy->flags.empty()) flags.insert(flags.begin(), remedy->flags);
  remedy->flags = fmt::format("{}", fmt::join(flags, " "));
  return remedy;
}

}  // namespace

std::string describe_remedies(const Bench& bench, bool default_reference, const plan::Budget& budget) {
  const std::vector<SettingChange> changes = changes_of(bench, default_reference);
  const int all = static_cast<int>(changes.size());
  std::vector<std::string> fitting;
  std::optional<Remedy> leanest;
  // None, one, two, all of them: where few are enough, more are not tried.
  for (const int size : std::set<int>{0, std::min(1, all), std::min(2, all), all}) {
    for (unsigned chosen = 0; chosen < 1U << changes.size(); ++chosen) {
      if (std::popcount(chosen) != size) continue;
      const std::optional<Remedy> remedy = try_changes(bench, changes, chosen, budget);
      if (!remedy) continue;
      if (remedy->seq_len > 0)
        fitting.push_back(fmt::format("{}, {} tokens", remedy->flags, remedy->seq_len));
      if (!leanest || remedy->needed_bytes < leanest->needed_bytes) leanest = remedy;
    }
    if (!fitting.empty()) return fmt::format("what would fit: {}", fmt::join(fitting, "; "));
  }
  if (!leanest) return "expected a larger budget";
  return fmt::format("nothing that was tried fits, the leanest needs {}{}{}",
                     format_bytes(leanest->needed_bytes), leanest->flags.empty() ? "" : ": ", leanest->flags);
}

}  // namespace streambp::bench
