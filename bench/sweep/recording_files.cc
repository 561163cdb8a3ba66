#include "bench/sweep/recording_files.h"

#include "streambp/memory/snapshot.h"
#include "streambp/memory/trace.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

RunDescription describe(const nlohmann::json& record) {
  RunDescription about;
  for (const char* name : {"model", "objective", "method", "chunk", "seq_len", "batch", "dtype", "device",
                           "kind", "status", "key"}) {
    if (!record.contains(name)) continue;  // ranks have no one chunk
    const nlohmann::json& value = record.at(name);
    about.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return about;
}

}  // namespace

void write_recording(const SweepOptions& options, const Recording& recording, const nlohmann::json& record) {
  const RunDescription about = describe(record);
  if (options.trace)
    write_file(*options.trace, [&](std::ostream& out) { write_trace(out, recording, about); });
  if (options.snapshot)
    write_file(*options.snapshot, [&](std::ostream& out) { write_snapshot(out, recording); });
  if (options.timeline)
    write_file(*options.timeline, [&](std::ostream& out) { write_timeline(out, recording, about); });
}

void write_gradients(const std::filesystem::path& file, const Model& model) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : model.parameters()) {
    if (parameter->trainable()) gradients[parameter->name] = parameter->gradient;
  }
  write_tensors(file, gradients);
}

}  // namespace streambp::bench
