#include "bench/sweep_files.h"

#include "streambp/cli/records.h"
#include "streambp/error.h"
#include "streambp/model/model_files.h"

namespace streambp::bench {
namespace {

using std::filesystem::path;

bool same_file(const path& a, const path& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto canonical = [&](const path& file) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file), error);
  };
  const path canonical_a = canonical(a);
  return !error && canonical_a == canonical(b) && !error;
}

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

void check_distinct(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& output = outputs[i];
    const auto check = [&](const NamedFile& other, const char* what) {
      if (!same_file(output.path, other.path)) return;
      throw InputError("{} {}: would replace {} {}, {}; expected another name", output.flag,
                       output.path.string(), other.flag, other.path.string(), what);
    };
    for (const NamedFile& input : inputs) check(input, "which is read");
    for (size_t j = 0; j < i; ++j) check(outputs[j], "which is written too");
  }
}

}  // namespace streambp::bench
