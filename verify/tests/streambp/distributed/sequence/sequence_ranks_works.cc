// What is trained in the tests of ranks that divide sequences: every kind of family, objective and setting.
#include "streambp/plan/workload.h"
#include "verify/tests/streambp/distributed/sequence/sequence_ranks_testing.h"
#include "verify/tests/streambp/model/adapter_testing.h"

namespace streambp {
namespace {

std::function<Model()> with_value_head(const char* name) {
  return [name] {
    Model model = full(name)();
    model.attach_value_head(random({1, model.config().hidden_size}, 9));
    return model;
  };
}

Settings keeping(const char* kept, int64_t every, Offload offload = Offload::kNone) {
  Settings settings = chunks_of(5);
  settings.keep = parse_kept_layers(kept);
  settings.every = every;
  settings.offload = offload;
  return settings;
}

}  // namespace

Batch one_text() {
  Batch batch = random_batch({37}, 101, 3);
  batch.targets.narrow(0, 0, 5).fill_(kNoTarget);
  return batch;
}

Batch documents() {
  Batch batch = random_batch({19, 4, 1, 23, 6, 2}, 101, 4);
  batch.targets.narrow(0, 24, 9).fill_(kNoTarget);
  return batch;
}

Work of_objective(const char* objective, int64_t sequences) {
  plan::TrainingStep step;
  step.objective = objective;
  step.seq_len = 9;
  step.sequences = sequences;
  step.seed = 3;
  Batch batch = plan::make_batch(step, 101);
  plan::fill_reference(step, batch);
  const auto model = plan::needs_value_head(objective) ? with_value_head("qwen3-tiny") : full("qwen3-tiny");
  return {objective, model, objective, batch, chunks_of(4)};
}

std::vector<Work> divided_works() {
  std::vector<Work> all;
  for (const char* name :
       {"qwen3-tiny",      "qwen2-tiny",        "llama-tied-tiny",       "llama-dynamic-tiny",
        "gemma2-tiny",     "gemma3-tiny",       "mistral-tiny",          "phi3-tiny",
        "smollm3-tiny",    "ministral3-tiny",   "gpt-oss-tiny",          "qwen3-moe-plain-tiny",
        "gemma4-tiny",     "gemma4-moe-tiny",   "gemma4-per-layer-tiny", "qwen3.5-tiny",
        "qwen3-next-tiny", "deepseek-v3-tiny",  "glm4-moe-tiny",         "granite-hybrid-moe-tiny",
        "falcon-h1-tiny",  "muse-glimmer-tiny", "kimi-linear-tiny",      "step3p7-tiny",
        "lfm3-tiny"}) {
    all.push_back({fmt::format("one_{}", name), full(name), "sft", one_text(), chunks_of(5)});
    all.push_back({fmt::format("documents_{}", name), full(name), "sft", documents(), chunks_of(5)});
  }
  for (const AdapterVariant& variant : adapter_variants()) {
    if (variant.name != "rsLoRA" && variant.name != "fused maps" && variant.name != "recurrent layers")
      continue;
    const auto adapted = [variant] { return adapted_model(variant); };
    all.push_back({fmt::format("lora_{}", variant.preset), adapted, "sft", documents(), chunks_of(5)});
  }
  const std::map<std::string, std::string> balanced{{"router_aux_loss_coef", "0.1"}};
  all.push_back({"balanced", full("qwen3-moe-tiny"), "sft", documents(), chunks_of(5), 1, balanced});
  all.push_back(of_objective("dpo", 4));
  all.push_back(of_objective("kto", 5));
  all.push_back(of_objective("grpo", 5));
  all.push_back(of_objective("ppo", 5));
  all.push_back(of_objective("reward", 4));
  all.push_back({"every", full("qwen2-tiny"), "sft", documents(), keeping("none", 2)});
  all.push_back({"every_recurrent", full("qwen3.5-tiny"), "sft", documents(), keeping("none", 2)});
  all.push_back({"every_shared", full("gemma4-per-layer-tiny"), "sft", documents(), keeping("none", 2)});
  all.push_back({"kept_shared", full("gemma4-per-layer-tiny"), "sft", documents(),
                 keeping("attention,keys-values:2", 1)});
  all.push_back({"kept_halves", full("qwen3.5-tiny"), "sft", documents(),
                 keeping("attention,queries,attention-half,gate-up", 1)});
  all.push_back({"kept", full("qwen2-tiny"), "sft", documents(), keeping("attention,keys-values:2", 1)});
  all.push_back({"kept_and_every", full("qwen2-tiny"), "sft", documents(), keeping("attention", 2)});
  all.push_back({"offloaded", full("qwen2-tiny"), "sft", documents(),
                 keeping("attention,keys-values", 1, Offload::kHost)});
  for (Work& work : all) {
    for (char& c : work.name)
      if (c == '-' || c == '.') c = '_';
  }
  return all;
}

}  // namespace streambp
