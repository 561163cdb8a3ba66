#include "streambp/plan/configurations.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace streambp::plan {
namespace {

/// Tried where chunks are open, in addition to auto_chunk's.
constexpr int64_t kChunks[] = {4096, 1024, 256, 64};
constexpr int64_t kChunksOfAllLayers[] = {1024, 256, 64};  // chunk-major: a chunk costs more

template <typename T>
std::vector<T> open_or_fixed(const SearchSpace& space, const char* name, T fixed, std::vector<T> open) {
  return space.fixed.contains(name) ? std::vector<T>{fixed} : open;
}

/// With every k-th layer input kept, L/k + k are alive at once: least for k near sqrt(L). A larger k
/// recomputes more and saves nothing.
std::vector<int64_t> every_of(int64_t layers) {
  const auto least = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(layers))));
  std::vector<int64_t> every;
  for (int64_t k = 1; k < least; k *= 2) every.push_back(k);
  every.push_back(least);
  return every;
}

/// What streambp may keep of its layers, and where.
std::vector<Settings> keepings(const SearchSpace& space, int64_t layers, bool may_offload) {
  const std::vector<Offload> targets =
      may_offload ? std::vector{Offload::kNone, Offload::kHost} : std::vector{space.given.offload};
  std::vector<Settings> all;
  for (const Offload offload : open_or_fixed(space, "offload", space.given.offload, targets)) {
    for (const bool attention :
         open_or_fixed(space, "keep_attention", space.given.keep_attention, {true, false})) {
      for (const int64_t every : open_or_fixed(space, "every", space.given.every, every_of(layers))) {
        Settings settings;
        settings.keep_attention = attention;
        settings.every = every;
        settings.offload = offload;
        settings.order = space.given.order;
        all.push_back(settings);
      }
    }
  }
  return all;
}

/// Longest first, at most the stream's length.
std::vector<int64_t> chunks_of(const SearchSpace& space, c10::Device device, Method method, int64_t tokens) {
  if (!is_chunked(method)) return {0};
  std::vector<int64_t> chunks = space.chunks;
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

std::vector<bool> heads_of(const SearchSpace& space, Method method, bool has_logits_only) {
  if (space.given.stream_head) return {*space.given.stream_head};
  Settings plain;
  plain.method = method;
  if (plain.streams_head()) return {true};
  // Checkpoint with a streamed head is logits-only.
  if (method == Method::kCheckpoint && has_logits_only) return {false};
  return {false, true};
}

}  // namespace

std::vector<Method> all_methods() {
  std::vector<Method> methods;
  for (const std::string& name : method_names()) methods.push_back(parse_method(name));
  return methods;
}

std::vector<Settings> list_configurations(const SearchSpace& space, c10::Device device, int64_t layers,
                                          int64_t tokens, bool may_offload) {
  const bool has_logits_only =
      std::find(space.methods.begin(), space.methods.end(), Method::kLogitsOnly) != space.methods.end();
  std::vector<Settings> all;
  for (const Method method : space.methods) {
    if (method == Method::kLogitsOnly && space.given.stream_head == false) continue;
    const std::vector<Settings> kept =
        method == Method::kStreambp ? keepings(space, layers, may_offload) : std::vector<Settings>(1);
    for (const bool streamed : heads_of(space, method, has_logits_only)) {
      for (const int64_t chunk : chunks_of(space, device, method, tokens)) {
        for (Settings settings : kept) {
          settings.method = method;
          settings.hugging_face = space.given.hugging_face && has_baseline(method);
          settings.chunk = chunk;
          settings.stream_head = streamed;
          settings.head_chunk = space.given.head_chunk;
          all.push_back(settings);
        }
      }
    }
  }
  return all;
}

std::string describe(const Settings& settings) {
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

}  // namespace streambp::plan
