#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/commands/commands.h"
#include "streambp/error.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/model/quantized/quantized.h"
#include "streambp/runtime/held_folder.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

struct TypedExport {
  std::string model = "qwen3-cpu";
  std::string out;
  std::string dtype = "model";
  uint64_t seed = 0;
  std::string quantize = "none";
  bool double_quant = false;
};

constexpr const char* kExportExamples = R"(Examples:
  streambp-bench export --model qwen3-cpu --out out/qwen3-cpu
  streambp-bench export --model gemma3-cpu --dtype bfloat16 --seed 7 --out out/gemma3-cpu
  streambp-bench export --model qwen3-cpu --quantize nf4 --double-quant --out out/qwen3-nf4

The weights are those that the other commands draw for the same preset, dtype and seed. With --quantize the
linear maps of the layers are stored as bitsandbytes 0.50 would store them; transformers loads such a folder.

Exit codes: 0 all good; 2 bad usage or input; 3 out of memory.)";

int run_export(const TypedExport& typed) {
  const std::filesystem::path folder = typed.out;
  const Config config = preset(typed.model);
  const at::ScalarType dtype = parse_dtype(typed.dtype == "model" ? config.dtype : typed.dtype);
  const auto quantization = parse_quantization(typed.quantize, typed.double_quant);
  if (quantization && dtype == at::kDouble)
    throw InputError("--quantize {}: of float32, bfloat16 and float16, expected one of them as --dtype",
                     typed.quantize);
  if (typed.out.empty()) throw InputError("--out '': expected a folder");
  const HeldFolder held(folder);  // its two files are of one run
  for (const char* name : {"config.json", "model.safetensors"}) {
    if (std::filesystem::exists(folder / name))
      throw InputError("--out {}: holds a {} already", typed.out, name);
    check_output_file("--out:", folder / name);
  }
  nlohmann::json settings = nlohmann::json::parse(preset_json(typed.model));
  settings["torch_dtype"] = dtype_name(dtype);
  if (quantization)
    settings["quantization_config"] =
        nlohmann::json::parse(quantization_json(*quantization, dtype_name(dtype)));
  Model::Placement placement{dtype, at::kCPU, dtype, [](const std::string&) { return false; }};
  const Model model = Model::random(config, placement, typed.seed);
  std::map<std::string, at::Tensor> tensors;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    const at::Tensor& value = model.parameter(parameter.name).value;
    const std::string name = stored_name(config, parameter.name);
    if (quantization && is_quantizable(parameter, *quantization)) {
      add_stored(quantize(value, *quantization), name, tensors);
    } else {
      tensors[name] = value;
    }
  }
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file(folder / "config.json", settings.dump(1) + '\n');
  print_line(stdout, "{}: {} parameters, {}{}", folder.string(), parameter_count(config), dtype_name(dtype),
             quantization ? fmt::format(", layers in {}", typed.quantize) : "");
  return kExitGood;
}

}  // namespace

void add_export_command(CLI::App& app, Action& action) {
  const auto typed = std::make_shared<TypedExport>();
  CLI::App* const command =
      app.add_subcommand("export", "Write a preset with random weights as a Hugging Face folder");
  command->footer(kExportExamples);
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command->add_option(flag, value, help);
  };
  text("--model", typed->model, "A preset")->capture_default_str();
  text("--out", typed->out, "Folder for config.json and model.safetensors, which must not hold them yet")
      ->required();
  text("--dtype", typed->dtype, "float32, float64, bfloat16, float16, or model: the preset's")
      ->capture_default_str();
  add_seed_flag(*command, "--seed", typed->seed, "Of the weights");
  text("--quantize", typed->quantize, "Of the linear maps of the layers: none, nf4, fp4 or int8")
      ->capture_default_str();
  command->add_flag("--double-quant", typed->double_quant,
                    "8 bits also for the maxima of nf4's and fp4's blocks");
  command->callback([typed, &action] { action = [typed] { return run_export(*typed); }; });
}

}  // namespace streambp::bench
