// Any text as the model.safetensors.index.json of a folder with two shards is either refused with an
// InputError or gives every parameter of the model from a file of that folder.
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string_view>

#include "streambp/error.h"
#include "streambp/model/files/checkpoint.h"
#include "streambp/model/files/model_files.h"
#include "streambp/model/files/strict_json.h"
#include "verify/tests/fuzz/fuzz.h"
#include "verify/tests/fuzz/scratch.h"

namespace {

constexpr const char* kConfig =
    R"({"model_type":"llama","vocab_size":3,"hidden_size":4,"intermediate_size":2,"num_hidden_layers":1,)"
    R"("num_attention_heads":1,"num_key_value_heads":1,"head_dim":4,"max_position_embeddings":8,)"
    R"("rms_norm_eps":1e-06,"torch_dtype":"float32"})";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

/// The folder but for its index: parameters before the layer's MLP in the first shard, with a table that old
/// files hold, the others in the second.
class ModelFolder {
 public:
  ModelFolder() : config_(streambp::parse_config(kConfig, "fuzz")) {
    folder_.write("config.json", kConfig);
    std::vector<streambp::SafetensorsView> first, second;
    for (const streambp::ParameterShape& parameter : streambp::parameter_shapes(config_)) {
      auto& shard = is_in_second(parameter.name) ? second : first;
      shard.push_back(view(parameter.name, parameter.shape));
    }
    first.push_back(view("model.layers.0.self_attn.rotary_emb.inv_freq", {2}));
    streambp::write_safetensors(folder_.path() / kFirst, std::move(first));
    streambp::write_safetensors(folder_.path() / kSecond, std::move(second));
  }

  static bool is_in_second(const std::string& name) { return name.find(".mlp.") != std::string::npos; }

  streambp::Checkpoint open(std::string_view index) const {
    folder_.write(streambp::kWeightIndex, index);
    return streambp::Checkpoint::open(folder_.path());
  }

  void require_promises(const streambp::Checkpoint& checkpoint) const {
    for (const streambp::ParameterShape& parameter : streambp::parameter_shapes(config_)) {
      const streambp::StoredTensor& stored = checkpoint.stored(parameter.name);
      require(stored.entry().shape == parameter.shape);
      require(stored.file.path() == folder_.path() / (is_in_second(parameter.name) ? kSecond : kFirst));
      require(checkpoint.bytes(parameter.name).size() == stored.entry().end - stored.entry().begin);
    }
  }

  /// What a correct index says.
  std::string weight_map() const {
    std::string members;
    for (const streambp::ParameterShape& parameter : streambp::parameter_shapes(config_)) {
      members += fmt::format("{}\"{}\":\"{}\"", members.empty() ? "" : ",", parameter.name,
                             is_in_second(parameter.name) ? kSecond : kFirst);
    }
    return members;
  }

 private:
  streambp::SafetensorsView view(const std::string& name, const std::vector<int64_t>& shape) const {
    return {name, "F32", shape, std::span(zeros_).first(streambp::safetensors_size("F32", shape))};
  }

  streambp::Config config_;
  streambp::fuzz::Scratch folder_;
  std::vector<std::byte> zeros_ = std::vector<std::byte>(256);
};

const ModelFolder& model_folder() {
  static const ModelFolder folder;
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view index(reinterpret_cast<const char*>(data), size);
  try {
    // Most mutations are no JSON: that the parser refuses them is seen without reading config.json first, but
    // for some.
    if (size % 16 != 0) streambp::parse_strict_json(index, "fuzz");
    const streambp::Checkpoint checkpoint = model_folder().open(index);
    ++accepted_count;
    model_folder().require_promises(checkpoint);
  } catch (const streambp::InputError&) {
  }
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  const std::string all = model_folder().weight_map();
  const auto swapped = [&](const std::string& from, const std::string& to) {
    std::string text = R"({"weight_map":{)" + all + "}}";
    return text.replace(text.find(from), from.size(), to);
  };
  return {"{}",
          R"({"metadata":{"total_size":408},"weight_map":{)" + all + "}}",
          R"({"weight_map":{)" + all +
              R"(,"model.layers.0.self_attn.rotary_emb.inv_freq":"model-00001-of-00002.safetensors"}})",
          swapped(kFirst, kSecond),
          swapped(kFirst, "../model.safetensors"),
          swapped(kFirst, "config.json"),
          swapped(fmt::format("\"{}\"", kFirst), "1"),
          swapped("\"model.norm.weight\"", "\"model.norms.weight\"")};
}

std::vector<std::string> dictionary() {
  return {"\"weight_map\"",
          "\"metadata\"",
          kFirst,
          kSecond,
          "\"model.norm.weight\"",
          "\"lm_head.weight\"",
          "config.json",
          "..",
          "/",
          "\\\\",
          "\\u0000",
          "null",
          "{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"\"",
          "1e9",
          "\xEF\xBB\xBF"};
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
