#include "verify/golden_case.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>

#include "reference/objectives.h"
#include "streambp/driver/inputs.h"
#include "streambp/error.h"
#include "streambp/model/strict_json.h"
#include "streambp/model/tensor_file.h"

namespace streambp {
namespace {

using nlohmann::json;

/// A case.json with getters that say what was expected where.
class CaseFile {
 public:
  explicit CaseFile(const std::filesystem::path& folder)
      : where_((folder / "case.json").string()),
        json_(parse_strict_json(read_text_file(folder / "case.json"), where_)) {}

  std::string text(const std::string& key) const {
    const json& value = at(json_, key);
    if (!value.is_string()) throw InputError("{}: {} is {}, expected a string", where_, key, shown(value));
    return value.get<std::string>();
  }
  double number(const std::string& object, const std::string& key) const {
    const json& value = at(at(json_, object), key);
    if (!value.is_number())
      throw InputError("{}: {}.{} is {}, expected a number", where_, object, key, shown(value));
    return value.get<double>();
  }
  bool has(const std::string& object, const std::string& key) const {
    return at(json_, object).contains(key);
  }
  const std::string& where() const { return where_; }

 private:
  const json& at(const json& parent, const std::string& key) const {
    const auto found = parent.is_object() ? parent.find(key) : parent.end();
    if (found == parent.end()) throw InputError("{}: no {} in it", where_, key);
    return *found;
  }

  std::string where_;
  json json_;
};

std::filesystem::path tensors_path(const GoldenCase& golden) {
  return golden.folder / "tensors.safetensors";
}

/// The folder above `folder` that holds models/: a case's model is named relative to it.
std::filesystem::path set_root(const std::filesystem::path& folder) {
  for (std::filesystem::path at = std::filesystem::absolute(folder).lexically_normal();;
       at = at.parent_path()) {
    if (std::filesystem::is_directory(at / "models")) return at;
    if (at == at.root_path())
      throw InputError("{}: no folder above this case holds models/", folder.string());
  }
}

GoldenCase read_case(const std::filesystem::path& folder) {
  const CaseFile file(folder);
  return {folder, set_root(folder) / file.text("model"), file.text("name"), file.text("objective")};
}

/// A tensor of the case in float64, as the README promises.
at::Tensor read_double(const SafetensorsFile& file, const std::string& name) {
  at::Tensor tensor = read_tensor(file, name);
  if (tensor.scalar_type() != at::kDouble) {
    throw InputError("{}: tensor '{}' is {}, expected F64", file.path().string(), name,
                     file.entry(name).dtype);
  }
  return tensor;
}

Tensors read_gradients(const SafetensorsFile& file) {
  const std::string prefix = "grad.";
  Tensors gradients;
  for (const auto& [name, entry] : file.entries()) {
    if (name.starts_with(prefix)) gradients.emplace(name.substr(prefix.size()), read_double(file, name));
  }
  return gradients;
}

Tensors scaled(const Tensors& gradients, double factor) {
  Tensors result;
  for (const auto& [name, gradient] : gradients) result.emplace(name, gradient * factor);
  return result;
}

/// out.per_token_logps [B, T - 1] on the packed stream: column t is for the token at column t.
at::Tensor read_log_probabilities(const SafetensorsFile& file, const Batch& batch) {
  const at::Tensor given = read_double(file, "out.per_token_logps");
  const std::vector<int64_t> shape{batch.padded_rows, batch.padded_columns - 1};
  if (given.sizes() != at::IntArrayRef(shape)) {
    throw InputError("{}: out.per_token_logps has shape [{}], expected [{}]", file.path().string(),
                     fmt::join(given.sizes(), ", "), fmt::join(shape, ", "));
  }
  return at::constant_pad_nd(given, {0, 1}).flatten().index_select(0, batch.padded_places);
}

/// transformers' ForCausalLMLoss: the mean over labels, and the same sum over num_items_in_batch.
std::vector<GoldenTask> sft_tasks(const CaseFile& file, const SafetensorsFile& tensors, const Batch& batch) {
  if (file.number("hyperparameters", "ignore_index") != kNoTarget) {
    throw Unsupported(fmt::format("ignore_index other than {}", kNoTarget));
  }
  const auto scored = batch.targets.ne(kNoTarget).sum().item<int64_t>();
  const double labels = file.number("expected", "num_valid_labels");
  if (static_cast<double>(scored) != labels) {
    throw InputError("{}: expected.num_valid_labels is {}, but in.labels holds {}", file.where(), labels,
                     scored);
  }
  const double loss = file.number("expected", "loss");
  const at::Tensor loss_tensor = read_double(tensors, "out.loss");
  if (loss_tensor.numel() != 1 || !(loss_tensor.item<double>() == loss)) {
    throw InputError("{}: expected.loss is not out.loss of tensors.safetensors", file.where());
  }
  const at::Tensor log_probabilities = read_log_probabilities(tensors, batch);
  const Tensors gradients = read_gradients(tensors);

  std::vector<GoldenTask> tasks;
  tasks.push_back({"mean",
                   make_sft(batch),
                   reference::sft(static_cast<double>(scored)),
                   {loss, log_probabilities, gradients}});
  if (file.has("expected", "num_items_in_batch")) {
    const double items = file.number("expected", "num_items_in_batch");
    const double factor = file.number("expected", "gradient_factor_with_num_items_in_batch");
    tasks.push_back({"num_items_in_batch",
                     make_sft(batch, items),
                     reference::sft(items),
                     {file.number("expected", "loss_with_num_items_in_batch"), log_probabilities,
                      scaled(gradients, factor)}});
  }
  return tasks;
}

/// The objectives that this build knows, by their names in case.json. A new one is a new line.
using TaskReader = std::vector<GoldenTask> (*)(const CaseFile&, const SafetensorsFile&, const Batch&);
const std::map<std::string, TaskReader> kObjectives{{"sft", sft_tasks}};

/// A family is known if some preset is of it.
bool is_known_family(const std::string& family) {
  const std::vector<std::string> names = preset_names();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return preset(name).family == family; });
}

}  // namespace

std::vector<GoldenCase> find_golden_cases(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) throw InputError("{}: no such folder", folder.string());
  if (std::filesystem::exists(folder / "case.json")) return {read_case(folder)};
  if (!std::filesystem::is_directory(folder / "models") || !std::filesystem::is_directory(folder / "cases")) {
    throw InputError("{}: expected a set of golden cases (models/ and cases/) or one case (case.json)",
                     folder.string());
  }
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cases")) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<GoldenCase> cases;
  for (const auto& path : folders) cases.push_back(read_case(path));
  return cases;
}

void require_supported(const GoldenCase& golden) {
  const CaseFile file(golden.folder);
  if (!kObjectives.contains(golden.objective)) throw Unsupported("objective " + shown(golden.objective));
  const std::string tuned = file.text("finetuning");
  if (tuned != "full") throw Unsupported("fine-tuning " + shown(tuned));
  const std::string family = file.text("model_type");
  if (!is_known_family(family)) throw Unsupported("model type " + shown(family));
  const std::string dtype = file.text("dtype");
  if (dtype != "float64") throw Unsupported("dtype " + shown(dtype));
}

Batch read_golden_batch(const GoldenCase& golden, int64_t vocab_size) {
  return read_batch(tensors_path(golden), vocab_size, "in.");
}

std::vector<GoldenTask> read_golden_tasks(const GoldenCase& golden, const Batch& batch) {
  const CaseFile file(golden.folder);
  return kObjectives.at(golden.objective)(file, SafetensorsFile::open(tensors_path(golden)), batch);
}

}  // namespace streambp
