#include "streambp/backprop/method_kind.h"

#include <algorithm>
#include <fmt/ranges.h>

#include "streambp/backprop/layer_runs.h"
#include "streambp/backprop/passes.h"
#include "streambp/backprop/settings.h"
#include "streambp/error.h"

namespace streambp {
namespace {

/// On a CPU matrix products lose speed below 512 rows and gain none above 1024. A GPU's attention wants some
/// thousand queries at a time, and its merges of parts cost the more the shorter chunks are: a stream that is
/// one chunk has none. An assumption until it is measured; the chunk stays small next to the weights.
int64_t auto_chunk_of_layers(int64_t tokens, bool on_gpu) {
  if (on_gpu) return std::min<int64_t>(tokens, 8192);
  return std::min(tokens, std::clamp<int64_t>(tokens / 2, 256, 1024));
}

/// The graphs of all layers are alive for a chunk at once: as few rows as keep products efficient.
int64_t auto_chunk_of_all_layers(int64_t tokens, bool on_gpu) {
  return std::min<int64_t>(tokens, on_gpu ? 1024 : 256);
}

std::string kept_by_streambp(const Settings& settings) {
  std::string text = settings.every == 1 ? "inputs" : fmt::format("1/{} inputs", settings.every);
  if (settings.keep.any()) {
    std::string kept = kept_layers_text(settings.keep);
    std::replace(kept.begin(), kept.end(), ',', '+');
    text += "+" + kept;
  }
  if (settings.offload == Offload::kNone) return text;
  return text +
         (settings.offload_layers ? fmt::format(", {} on host", *settings.offload_layers) : " on host");
}

int64_t kept_width_of_streambp(const Settings& settings, const Config& config, int64_t layer) {
  const auto kept = [&](int64_t count) { return keeps_of(count, layer, config.num_hidden_layers); };
  int64_t width = 0;
  const bool attends = config.can_store_attention(layer);
  if (kept(settings.keep.attention) && attends) width += config.attention_width(layer);
  if (kept(settings.keep.queries) && attends) width += config.projected_query_width(layer);
  if (kept(settings.keep.keys_values) && config.can_store_keys_values(layer))
    width += config.carry_width(layer);
  if (kept(settings.keep.attention_half)) width += config.hidden_size;
  if (kept(settings.keep.gate_up) && config.can_store_gate_up(layer))
    width += 2 * config.intermediate_size_of(layer);
  return width;
}

/// Layer inputs, but not the lowest one, which is the embedding, and what else is kept.
int64_t offloaded_by_streambp(const Settings& settings, const Config& config, int64_t layer, int64_t first) {
  if (settings.offload != Offload::kHost) return 0;
  const int64_t kept = kept_width_of_streambp(settings, config, layer);
  if (settings.offload_layers) return layer - first < *settings.offload_layers ? kept : 0;
  return kept + (layer > 0 ? config.residual_width() : 0);
}

std::string kept_by_chunk_major(const Settings&) {
  return "keys+values";
}

std::vector<MethodKind> make_kinds() {
  return {
      {.method = Method::kStandard,
       .name = "standard",
       .summary = "forward over the whole stream under autograd, one backward",
       .source = "Rumelhart et al., 1986, Nature 323, 533",
       .keeps = "every activation",
       .settings = {"baseline", "head", "head_chunk"},
       .head = HeadDefault::kFull,
       .run = run_standard,
       .layer_runs = run_once,
       .recomputes = false},
      {.method = Method::kCheckpoint,
       .name = "checkpoint",
       .summary = "keep each layer's input, run each layer again in the backward pass",
       .source = "arXiv 1604.06174",
       .keeps = "each layer's input",
       .settings = {"baseline", "head", "head_chunk"},
       .fuses_optimizer = true,
       .head = HeadDefault::kFull,
       .run = run_checkpoint,
       .layer_runs = run_again,
       .with_streamed_head = Method::kLogitsOnly},
      {.method = Method::kStreambp,
       .name = "streambp",
       .summary = "checkpoint by chunks of the stream, last to first, layer by layer",
       .source = "arXiv 2506.03077",
       .keeps = "each layer's input",
       .settings = {"chunk", "keep_attention", "every", "keep", "offload", "order", "head", "head_chunk"},
       .fuses_optimizer = true,
       .run = run_streambp,
       .layer_runs = run_again_by_chunks,
       .rebuild_runs = rebuild_by_every,
       .kept_width = kept_width_of_streambp,
       .offloaded_width = offloaded_by_streambp,
       .describe_kept = kept_by_streambp,
       .auto_chunk = auto_chunk_of_layers,
       .candidate_chunks = {4096, 1024, 512, 256, 64},
       .head_by_chunks = true,
       .equal_with_one_chunk = Method::kCheckpoint},
      {.method = Method::kTiled,
       .name = "tiled",
       .summary = "checkpoint with MLPs and LM head by tiles of the stream",
       .source = "arXiv 2407.15892, 2506.13996",
       .keeps = "each layer's input",
       .settings = {"chunk", "baseline", "head", "head_chunk"},
       .fuses_optimizer = true,
       .run = run_tiled,
       .layer_runs = run_again,
       .auto_chunk = auto_chunk_of_layers,
       .candidate_chunks = {4096, 1024, 256, 64},
       .chunks_mlp_only = true,
       .equal_with_one_chunk = Method::kCheckpoint},
      {.method = Method::kLogitsOnly,
       .name = "logits-only",
       .summary = "checkpoint with the LM head alone by tiles of the stream",
       .source = "arXiv 2407.15892",
       .keeps = "each layer's input",
       .settings = {"baseline", "head", "head_chunk"},
       .fuses_optimizer = true,
       .head = HeadDefault::kAlwaysStreamed,
       .run = run_checkpoint,
       .layer_runs = run_again},
      {.method = Method::kChunkMajor,
       .name = "chunk-major",
       .summary = "chunks outside, layers inside: each chunk runs through all layers again",
       .source = "arXiv 2505.16710",
       .keeps = "keys and values of all layers, or their states",
       .settings = {"chunk", "head", "head_chunk"},
       .run = run_chunk_major,
       .layer_runs = run_again_chunk_major,
       .describe_kept = kept_by_chunk_major,
       .auto_chunk = auto_chunk_of_all_layers,
       .candidate_chunks = {1024, 256, 64},
       .equal_with_one_chunk = Method::kCheckpoint},
  };
}

}  // namespace

bool MethodKind::takes(const std::string& setting) const {
  return std::find(settings.begin(), settings.end(), setting) != settings.end();
}

const std::vector<MethodKind>& method_kinds() {
  static const std::vector<MethodKind> kinds = make_kinds();
  return kinds;
}

const MethodKind& method_kind(Method method) {
  return method_kinds()[static_cast<size_t>(method)];
}

Method parse_method(const std::string& name) {
  for (const MethodKind& kind : method_kinds()) {
    if (name == kind.name) return kind.method;
  }
  throw InputError("method '{}': expected one of {}", name, fmt::join(method_names(), ", "));
}

const std::string& method_name(Method method) {
  return method_kind(method).name;
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodKind& kind : method_kinds()) names.push_back(kind.name);
  return names;
}

bool takes(Method method, const std::string& setting) {
  return method_kind(method).takes(setting);
}

std::string describe_methods() {
  std::string text = "Methods (--method) and the settings that they take:\n";
  for (const MethodKind& kind : method_kinds()) {
    std::vector<std::string> flags;
    for (const std::string& setting : kind.settings) flags.push_back(setting_kind(setting).flag);
    text += fmt::format("  {}: {} ({})\n    keeps {}; takes {}\n", kind.name, kind.summary, kind.source,
                        kind.keeps, fmt::join(flags, ", "));
  }
  return text;
}

}  // namespace streambp
