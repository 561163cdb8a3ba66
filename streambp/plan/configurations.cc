#include "streambp/plan/configurations.h"

#include <algorithm>
#include <set>
#include <utility>

namespace streambp::plan {
namespace {

/// Every combination of the values that a search tries of the settings that `method` takes, but of chunk and
/// head; those in `space.fixed` as they are given.
std::vector<Settings> combinations(const SearchSpace& space, Method method, SearchContext context) {
  std::vector<Settings> all{settings_for(method, space.given)};
  for (const SettingKind& kind : setting_kinds()) {
    if (kind.candidates == nullptr || !takes(method, kind.name) || space.fixed.contains(kind.name)) continue;
    const std::vector<Settings> before = std::exchange(all, {});
    for (const Settings& settings : before) {
      context.settings = settings;
      for (const std::string& value : kind.candidates(context))
        set_setting(kind, all.emplace_back(settings), value);
    }
  }
  return all;
}

/// Longest first, at most the stream's length.
std::vector<int64_t> chunks_of(const SearchSpace& space, c10::Device device, Method method, int64_t tokens) {
  if (!is_chunked(method)) return {0};
  std::vector<int64_t> chunks = space.chunks;
  if (chunks == std::vector<int64_t>{0}) {
    const std::vector<int64_t>& candidates = method_kind(method).candidate_chunks;
    chunks.insert(chunks.end(), candidates.begin(), candidates.end());
  }
  std::set<int64_t, std::greater<>> distinct;
  for (const int64_t chunk : chunks)
    distinct.insert(std::min(tokens, chunk > 0 ? chunk : auto_chunk(tokens, device, method)));
  return {distinct.begin(), distinct.end()};
}

/// With a streamed head checkpoint is logits-only: where both are searched, it is listed once.
std::vector<bool> heads_of(const SearchSpace& space, const MethodKind& kind) {
  if (space.given.stream_head) return {*space.given.stream_head};
  if (kind.head != HeadDefault::kFull) return {true};
  const auto& twin = kind.with_streamed_head;
  if (twin && std::find(space.methods.begin(), space.methods.end(), *twin) != space.methods.end())
    return {false};
  return {false, true};
}

}  // namespace

std::vector<Method> all_methods() {
  std::vector<Method> methods;
  for (const MethodKind& kind : method_kinds()) methods.push_back(kind.method);
  return methods;
}

std::vector<Settings> list_configurations(const SearchSpace& space, c10::Device device, int64_t layers,
                                          int64_t tokens, bool may_offload) {
  std::vector<Settings> all;
  for (const Method method : space.methods) {
    const MethodKind& kind = method_kind(method);
    if (kind.head == HeadDefault::kAlwaysStreamed && space.given.stream_head == false) continue;
    const std::vector<Settings> kept =
        combinations(space, method, {.layers = layers, .may_offload = may_offload});
    for (const bool streamed : heads_of(space, kind)) {
      for (const int64_t chunk : chunks_of(space, device, method, tokens)) {
        for (Settings settings : kept) {
          settings.chunk = chunk;
          settings.stream_head = streamed;
          all.push_back(settings);
        }
      }
    }
  }
  return all;
}

}  // namespace streambp::plan
