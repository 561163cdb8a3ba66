#include "bench/sweep/sweep_files.h"

#include "bench/cli/records.h"
#include "streambp/error.h"
#include "streambp/model/files/model_files.h"

namespace streambp::bench {
namespace {

using std::filesystem::path;

}  // namespace

InputFiles input_files(const SweepOptions& options, bool config_only) {
  InputFiles inputs;
  const auto add = [&](const char* name, const char* flag, const std::vector<path>& files, uint64_t whole) {
    for (const path& file : files) inputs.files.push_back({flag, file});
    inputs.keys[name] = content_key(files, whole);
  };
  const auto add_model = [&](const char* name, const char* flag, const std::string& model) {
    if (std::filesystem::is_directory(model))
      add(name, flag, model_files(model, config_only), kWhollyHashedBytes);
  };
  const plan::ModelSetup& setup = options.setup;
  add_model("model", "--model", setup.model);
  add_model("reference", "--reference", setup.reference);
  add_model("teacher", "--teacher", setup.teacher);
  if (setup.adapter) add("adapter", "--adapter", adapter_files(*setup.adapter), kWhollyHashedBytes);
  if (options.tokens) add("tokens", "--tokens", {*options.tokens}, UINT64_MAX);
  return inputs;
}

std::vector<NamedFile> output_files(const SweepOptions& options) {
  const path results = options.out / "results.jsonl";
  std::vector<NamedFile> outputs{{"--out", results}, {"--out", torn_lines_path(results)}};
  const auto add = [&](const char* flag, const std::optional<path>& file) {
    if (file) outputs.push_back({flag, *file});
  };
  add("--dump-gradients", options.dump_gradients);
  add("--trace", options.trace);
  add("--snapshot", options.snapshot);
  add("--timeline", options.timeline);
  return outputs;
}

}  // namespace streambp::bench
