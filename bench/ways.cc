#include "bench/ways.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace streambp::bench {
namespace {

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
    const std::vector<int64_t>& candidates = method_kind(method).candidate_chunks;
    chunks.insert(chunks.end(), candidates.begin(), candidates.end());
  }
  std::set<int64_t, std::greater<>> distinct;
  for (const int64_t chunk : chunks)
    distinct.insert(std::min(tokens, chunk > 0 ? chunk : auto_chunk(tokens, device, method)));
  return {distinct.begin(), distinct.end()};
}

/// With a streamed head checkpoint is logits-only: where both are among `methods`, it is listed once.
std::vector<bool> heads_of(const SweepOptions& options, const MethodKind& kind,
                           const std::vector<Method>& methods) {
  if (options.stream_head) return {*options.stream_head};
  if (kind.head != HeadDefault::kFull) return {true};
  const auto& twin = kind.with_streamed_head;
  if (twin && std::find(methods.begin(), methods.end(), *twin) != methods.end()) return {false};
  return {false, true};
}

}  // namespace

std::vector<Method> candidate_methods(const SweepOptions& options) {
  if (!options.picks_method) return options.methods;
  std::vector<Method> methods;
  for (const MethodKind& kind : method_kinds()) {
    if (!options.fused_optimizer || kind.fuses_optimizer) methods.push_back(kind.method);
  }
  return methods;
}

std::vector<Settings> list_ways(const SweepOptions& options, c10::Device device, int64_t layers,
                                int64_t tokens, bool may_offload) {
  const std::vector<Method> methods = candidate_methods(options);
  std::vector<Settings> all;
  for (const Method method : methods) {
    const MethodKind& kind = method_kind(method);
    if (kind.head == HeadDefault::kAlwaysStreamed && options.stream_head == false) continue;
    const std::vector<Settings> kept =
        kind.takes("keep_attention") ? keepings(options, layers, may_offload) : std::vector<Settings>(1);
    for (const bool streamed : heads_of(options, kind, methods)) {
      for (const int64_t chunk : chunks_of(options, device, method, tokens)) {
        for (Settings settings : kept) {
          settings.method = method;
          settings.hugging_face = options.hugging_face && kind.takes("baseline");
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
