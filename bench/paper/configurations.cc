#include "bench/paper/configurations.h"

#include "bench/baseline/hugging_face.h"
#include "bench/sweep/cells/sweep_cells.h"

namespace streambp::bench {
namespace {

SweepOptions completed(SweepOptions options) {
  options.setup.dtype = at::kBFloat16;
  options.setup.gradient_dtype = at::kBFloat16;
  options.device = "meta";
  return options;
}

}  // namespace

std::vector<PaperConfiguration> trainer_configurations(Method method, const std::string& objective) {
  std::vector<PaperConfiguration> all = script_configurations(method);
  if (method == Method::kStreambp) return all;
  // A trainer has dropped the model's output, logits and all, before the backward pass: what checkpoint holds
  // then is what it holds here.
  if (method == Method::kCheckpoint) all.erase(all.begin());
  if (objective == "sft") return all;
  PaperConfiguration trl{.name = "baseline trl", .settings = all.back().settings};
  trl.settings.baseline = "trl";
  all.insert(all.begin(), trl);
  return all;
}

std::vector<PaperConfiguration> script_configurations(Method method) {
  Settings settings;
  settings.method = method;
  if (method != Method::kStreambp) {
    Settings held = settings;
    add_baselines();
    held.baseline = "hugging-face";
    return {{"baseline hugging-face", held}, {"as here", settings}};
  }
  Settings published = settings;
  published.chunk = 500;
  published.head_chunk = 100;
  return {{"chunk 500, head chunk 100", published}, {"as here", settings}};
}

std::vector<PaperConfiguration> curve_configurations(Method method) {
  std::vector<PaperConfiguration> all = script_configurations(method);
  if (method != Method::kStreambp) return all;
  PaperConfiguration every = all.back();
  every.name = "every 6th layer input";
  every.settings.every = 6;
  PaperConfiguration host = all.back();
  host.name = "layer inputs on the host";
  host.settings.offload = Offload::kHost;
  all.insert(all.end(), {every, host});
  return all;
}

PaperModel::PaperModel(SweepOptions options)
    : bench_(open_bench(completed(std::move(options)))), predictor_(bench_.options.setup, bench_.device) {}

LoraConfig paper_lora() {
  LoraConfig lora;
  lora.r = 32;
  lora.lora_alpha = 128.0;
  lora.target_modules = {kAllLinear};
  return lora;
}

}  // namespace streambp::bench
