#include "bench/ways.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace streambp::bench {
namespace {

/// What is tried where the command line leaves it open, beside what `--chunk auto` stands for.
constexpr int64_t kChunks[] = {4096, 1024, 256, 64};
constexpr int64_t kChunksOfAllLayers[] = {1024, 256, 64};  // of chunk-major, for which a chunk costs more

template <typename T>
std::vector<T> open_or_fixed(const SweepOptions& options, const char* flag, T fixed, std::vector<T> open) {
  return options.fixed.contains(flag) ? std::vector<T>{fixed} : open;
}

/// Every k-th input kept and k more of the layers between: k of about the root of the layers holds the least,
/// and a larger one computes more again for nothing.
std::vector<int64_t> every_of(int64_t layers) {
  const auto least = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(layers))));
  std::vector<int64_t> every;
  for (int64_t k = 1; k < least; k *= 2) every.push_back(k);
  every.push_back(least);
  return every;
}

/// Ways of keeping what streambp keeps of the layers.
std::vector<Settings> keepings(const SweepOptions& options, int64_t layers, bool may_offload) {
  const std::vector<Offload> places =
      may_offload ? std::vector{Offload::kNone, Offload::kHost} : std::vector{options.offload};
  std::vector<Settings> all;
  for (const Offload offload : open_or_fixed(options, "--offload", options.offload, places)) {
    for (const bool attention :
         open_or_fixed(options, "--keep-attention", options.keep_attention, {true, false})) {
      for (const int64_t every : open_or_fixed(options, "--every", options.every, every_of(layers))) {
        Settings settings;
        settings.keep_attention = attention;
        settings.every = every;
        settings.offload = offload;
        settings.order = options.order;
        all.push_back(settings);
      }
    }
  }
  return all;
}

/// Longest first, none of them beyond the stream.
std::vector<int64_t> chunks_of(const SweepOptions& options, c10::Device device, Method method,
                               int64_t tokens) {
  if (!is_chunked(method)) return {0};
  std::vector<int64_t> chunks = options.chunks;
  if (chunks == std::vector<int64_t>{0}) {
    if (method == Method::kChunkMajor) {
      chunks.insert(chunks.end(), std::begin(kChunksOfAllLayers), std::end(kChunksOfAllLayers));
    } else {
      chunks.insert(chunks.end(), std::begin(kChunks), std::end(kChunks));
    }
  }
  std::set<int64_t, std::greater<>> distinct;
  for (const int64_t chunk : chunks)
    distinct.insert(std::min(tokens, chunk > 0 ? chunk : auto_chunk(tokens, device, method)));
  return {distinct.begin(), distinct.end()};
}

std::vector<bool> heads_of(const SweepOptions& options, Method method, bool has_logits_only) {
  if (options.stream_head) return {*options.stream_head};
  Settings plain;
  plain.method = method;
  if (plain.streams_head()) return {true};
  // Checkpoint with a streamed head is logits-only.
  if (method == Method::kCheckpoint && has_logits_only) return {false};
  return {false, true};
}

}  // namespace

std::vector<Method> candidate_methods(const SweepOptions& options) {
  if (!options.picks_method) return options.methods;
  if (options.fused_optimizer) return {Method::kStreambp};
  std::vector<Method> methods;
  for (const std::string& name : method_names()) methods.push_back(parse_method(name));
  return methods;
}

std::vector<Settings> list_ways(const SweepOptions& options, c10::Device device, int64_t layers,
                                int64_t tokens, bool may_offload) {
  const std::vector<Method> methods = candidate_methods(options);
  const bool has_logits_only =
      std::find(methods.begin(), methods.end(), Method::kLogitsOnly) != methods.end();
  std::vector<Settings> all;
  for (const Method method : methods) {
    if (method == Method::kLogitsOnly && options.stream_head == false) continue;
    const std::vector<Settings> kept =
        method == Method::kStreambp ? keepings(options, layers, may_offload) : std::vector<Settings>(1);
    for (const bool streamed : heads_of(options, method, has_logits_only)) {
      for (const int64_t chunk : chunks_of(options, device, method, tokens)) {
        for (Settings settings : kept) {
          settings.method = method;
          settings.hugging_face = options.hugging_face && has_baseline(method);
          settings.chunk = chunk;
          settings.stream_head = streamed;
          settings.head_chunk = options.head_chunk;
          all.push_back(settings);
        }
      }
    }
  }
  return all;
}

std::string describe_way(const Settings& settings) {
  std::string text = method_name(settings.method);
  if (settings.chunk > 0) text += fmt::format(", chunk {}", settings.chunk);
  if (settings.keep_attention) text += ", keep-attention";
  if (settings.every > 1) text += fmt::format(", every {}", settings.every);
  if (settings.offload == Offload::kHost) text += ", offload host";
  if (settings.order == Order::kForward) text += ", order forward";
  Settings plain;
  plain.method = settings.method;
  if (settings.streams_head() != plain.streams_head())
    text += settings.streams_head() ? ", streamed head" : ", full head";
  if (settings.hugging_face) text += ", baseline hugging-face";
  return text;
}

}  // namespace streambp::bench
