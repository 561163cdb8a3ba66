// A model folder is accepted if it holds exactly the parameters of its config, and refused with the tensor's
// name if not.
#include "streambp/model/files/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

const std::filesystem::path kModels = std::filesystem::path(STREAMBP_GOLDENS) / "models";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kNorm = "model.norm.weight";

const json kConfig = {{"model_type", "llama"},    {"vocab_size", 7},
                      {"hidden_size", 6},         {"intermediate_size", 5},
                      {"num_hidden_layers", 2},   {"num_attention_heads", 3},
                      {"num_key_value_heads", 1}, {"tie_word_embeddings", false}};

// Tensors by name, with bytes that differ from tensor to tensor.
class Tensors {
 public:
  explicit Tensors(const Config& config) {
    for (const ParameterShape& parameter : parameter_shapes(config))
      add(parameter.name, "F32", parameter.shape);
  }

  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    std::vector<std::byte> bytes(safetensors_size(dtype, shape));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 7 + tensors_.size() * 31);
    tensors_[name] = {dtype, shape, std::move(bytes)};
  }
  void copy(const std::string& from, const std::string& to) { tensors_[to] = tensors_.at(from); }
  void erase(const std::string& name) { tensors_.erase(name); }
  std::vector<std::byte>& bytes(const std::string& name) { return tensors_.at(name).bytes; }

  void write(const std::filesystem::path& path, const std::function<bool(const std::string&)>& chosen) const {
    std::vector<SafetensorsView> views;
    for (const auto& [name, tensor] : tensors_) {
      if (chosen(name)) views.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    }
    write_safetensors(path, views);
  }
  void write(const std::filesystem::path& path) const {
    write(path, [](const std::string&) { return true; });
  }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

// A folder with config.json, and the tensors of that config to be changed and written.
class CheckpointTest : public testing::Test {
 protected:
  void configure(const json& changes) {
    json config = kConfig;
    config.update(changes);
    folder_.write("config.json", config.dump());
    tensors_ = Tensors(parse_config(config.dump(), "test"));
  }
  void SetUp() override { configure(json::object()); }

  Checkpoint open() const { return Checkpoint::open(folder_.path()); }
  template <typename... Parts>
  testing::AssertionResult refuses(const Parts&... parts) {
    return refused([&] { open(); }, folder_.path().string(), parts...);
  }

  void write_single() { tensors_.write(folder_.path() / "model.safetensors"); }

  // Two shards: the layers, and the rest. Returns the index, which is written too.
  json write_shards() {
    const auto in_first = [](const std::string& name) { return name.starts_with("model.layers."); };
    tensors_.write(folder_.path() / "1.safetensors", in_first);
    tensors_.write(folder_.path() / "2.safetensors",
                   [&](const std::string& name) { return !in_first(name); });
    json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", json::object()}};
    for (const char* shard : {"1.safetensors", "2.safetensors"}) {
      const SafetensorsFile file = SafetensorsFile::open(folder_.path() / shard);
      for (const auto& item : file.entries()) index["weight_map"][item.first] = shard;
    }
    write_index(index);
    return index;
  }
  void write_index(const json& index) { folder_.write("model.safetensors.index.json", index.dump()); }

  TempFolder folder_;
  Tensors tensors_{Config{}};
};

TEST(CheckpointGoldens, EveryModelOpensUnderBothConfigs) {
  for (const char* model :
       {"gemma2", "gemma3", "llama", "llama-dynamic", "llama-pad", "llama-tied", "llama-yarn", "mistral",
        "phi3", "qwen2", "qwen2-small", "qwen2-window", "qwen3", "qwen3-moe", "qwen3-moe-aux", "qwen3-pad"}) {
    for (const char* config : {"config.json", "config.legacy.json"}) {
      const Checkpoint checkpoint = Checkpoint::open(kModels / model, config);
      const SafetensorsFile file = SafetensorsFile::open(kModels / model / "model.safetensors");
      EXPECT_EQ(file.entries().size(), parameter_shapes(checkpoint.config()).size()) << model;
      for (const auto& [name, entry] : file.entries()) {
        EXPECT_EQ(checkpoint.entry(name).dtype, "F64");
        EXPECT_EQ(checkpoint.entry(name).shape, entry.shape) << name;
        EXPECT_TRUE(std::ranges::equal(checkpoint.bytes(name), file.bytes(name))) << name;
      }
    }
  }
}

TEST(CheckpointGoldens, ShardsHoldTheBytesTheirIndexPromises) {
  const auto folder = kModels / "qwen3-bf16-sharded";
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const auto index = json::parse(read_bytes(folder / "model.safetensors.index.json"));
  uint64_t total = 0;
  int64_t count = 0;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const SafetensorsFile file = SafetensorsFile::open(folder / shard.get<std::string>());
    EXPECT_TRUE(std::ranges::equal(checkpoint.bytes(name), file.bytes(name))) << name;
    EXPECT_EQ(checkpoint.entry(name).dtype, "BF16");
    total += checkpoint.bytes(name).size();
  }
  count = parameter_count(checkpoint.config());
  EXPECT_EQ(total, index["metadata"]["total_size"].get<uint64_t>());
  EXPECT_EQ(count, index["metadata"]["total_parameters"].get<int64_t>());
}

TEST(CheckpointGoldens, ALoneFileIsCheckedAgainstAConfig) {
  const Config config = read_config(kModels / "qwen3" / "config.json");
  const Checkpoint checkpoint = Checkpoint::open_file(kModels / "qwen3" / "model.safetensors", config);
  EXPECT_EQ(checkpoint.config(), config);
  EXPECT_EQ(checkpoint.bytes(kNorm).size(), 24u * 8u);
  const auto wrong = [&] { Checkpoint::open_file(kModels / "qwen2" / "model.safetensors", config); };
  EXPECT_TRUE(refused(wrong, "qwen2", "model.safetensors", kEmbedding, "[257,64]", "[97,24]"));
}

TEST_F(CheckpointTest, ReadsOneFile) {
  write_single();
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.config().hidden_size, 6);
  EXPECT_TRUE(std::ranges::equal(checkpoint.bytes("lm_head.weight"), tensors_.bytes("lm_head.weight")));
}

TEST_F(CheckpointTest, RefusesAnIncompleteFolder) {
  EXPECT_TRUE(refuses("no weights, expected model.safetensors or model.safetensors.index.json"));
  folder_.write("pytorch_model.bin", "PK");
  EXPECT_TRUE(refuses("pytorch_model.bin is not read; save_pretrained() writes them"));
  folder_.write("model.safetensors", "");
  EXPECT_TRUE(refuses("model.safetensors: 0 bytes"));
  write_single();
  EXPECT_TRUE(refused([&] { Checkpoint::open(folder_.path() / "no"); }, "no such folder"));
  EXPECT_TRUE(refused([&] { Checkpoint::open(folder_.path() / "config.json"); }, "no such folder"));
  EXPECT_TRUE(refused([&] { Checkpoint::open(folder_.path() / std::string(5000, 'x')); }, "no such folder"));
  EXPECT_TRUE(refused([&] { Checkpoint::open(folder_.path(), "config.legacy.json"); },
                      "config.legacy.json: no such file"));
}

TEST_F(CheckpointTest, RefusesWrongTensors) {
  const Tensors good = tensors_;
  const auto after = [&](const std::function<void(Tensors&)>& change) {
    tensors_ = good;
    change(tensors_);
    write_single();
  };
  after([](Tensors& t) { t.erase("model.layers.1.mlp.up_proj.weight"); });
  EXPECT_TRUE(refuses("tensor model.layers.1.mlp.up_proj.weight is missing", "[5,6]"));
  after([](Tensors& t) { t.erase("lm_head.weight"); });
  EXPECT_TRUE(refuses("tensor lm_head.weight is missing"));
  after([](Tensors& t) { t.add("score.weight", "F32", {1, 6}); });
  EXPECT_TRUE(refuses("\"score.weight\" is not a parameter of this llama model"));
  after([](Tensors& t) { t.add("model.layers.2.input_layernorm.weight", "F32", {6}); });
  EXPECT_TRUE(refuses("\"model.layers.2.input_layernorm.weight\" is not a parameter"));
  after([](Tensors& t) { t.add("model.layers.0.mlp.down_proj.weight", "F32", {5, 6}); });
  EXPECT_TRUE(refuses("model.layers.0.mlp.down_proj.weight has shape [5,6], expected [6,5]"));
  after([](Tensors& t) { t.add(kNorm, "F32", {6, 1}); });
  EXPECT_TRUE(refuses("model.norm.weight has shape [6,1], expected [6]"));
  for (const char* dtype : {"I32", "F8_E4M3", "U8", "C64"}) {
    after([&](Tensors& t) { t.add(kNorm, dtype, {6}); });
    EXPECT_TRUE(refuses("model.norm.weight has dtype", dtype, "expected F64, F32, BF16 or F16"));
  }
  for (const char* dtype : {"F64", "F32", "BF16", "F16"}) {
    after([&](Tensors& t) { t.add(kNorm, dtype, {6}); });
    EXPECT_EQ(open().entry(kNorm).dtype, dtype);
  }
}

TEST_F(CheckpointTest, ToleratesRopeTables) {
  tensors_.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1});
  tensors_.add("model.rotary_emb.inv_freq", "I64", {3});
  write_single();
  const Checkpoint checkpoint = open();
  EXPECT_THROW(checkpoint.entry("model.rotary_emb.inv_freq"), std::out_of_range);
  std::filesystem::remove(folder_.path() / "model.safetensors");
  json index = write_shards();
  EXPECT_NO_THROW(open());
  index["weight_map"].erase("model.rotary_emb.inv_freq");
  write_index(index);
  EXPECT_NO_THROW(open());
}

TEST_F(CheckpointTest, ToleratesATiedHeadThatIsTheEmbedding) {
  configure({{"tie_word_embeddings", true}});
  write_single();
  EXPECT_NO_THROW(open());
  tensors_.copy(kEmbedding, "lm_head.weight");
  write_single();
  EXPECT_THROW(open().entry("lm_head.weight"), std::out_of_range);
  tensors_.bytes("lm_head.weight").back() ^= std::byte{1};
  write_single();
  EXPECT_TRUE(refuses("lm_head.weight differs from model.embed_tokens.weight", "tie_word_embeddings"));
  tensors_.add("lm_head.weight", "F32", {6, 7});
  tensors_.bytes("lm_head.weight") = tensors_.bytes(kEmbedding);
  write_single();
  EXPECT_TRUE(refuses("lm_head.weight differs"));
}

// A multimodal Gemma 3, under the names of transformers 4 and of 5: its text part is read as if it were
// alone.
TEST_F(CheckpointTest, ReadsTheTextPartOfAMultimodalModel) {
  json text = kConfig;
  text.update({{"model_type", "gemma3_text"}, {"head_dim", 2}, {"tie_word_embeddings", true}});
  configure(text);
  Tensors alone = tensors_;
  const std::vector<ParameterShape> parameters = parameter_shapes(parse_config(text.dump(), "test"));
  folder_.write("config.json", json{{"model_type", "gemma3"}, {"text_config", text}}.dump());
  for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
    const std::string outside = prefix.starts_with("model.") ? "model." : "";
    tensors_ = alone;
    for (const ParameterShape& parameter : parameters) {
      tensors_.copy(parameter.name, prefix + parameter.name.substr(std::string("model.").size()));
      tensors_.erase(parameter.name);
    }
    tensors_.add(outside + "vision_tower.vision_model.post_layernorm.weight", "BF16", {3});
    tensors_.add(outside + "multi_modal_projector.mm_soft_emb_norm.weight", "I8", {3});
    write_single();
    const Checkpoint checkpoint = open();
    for (const ParameterShape& parameter : parameters) {
      EXPECT_TRUE(std::ranges::equal(checkpoint.bytes(parameter.name), alone.bytes(parameter.name)))
          << parameter.name;
    }
    EXPECT_THROW(checkpoint.entry(prefix + "norm.weight"), std::out_of_range);
    // A head that is the embedding is tolerated, any other is not.
    const std::string head = outside.empty() ? "language_model.lm_head.weight" : "lm_head.weight";
    tensors_.copy(prefix + "embed_tokens.weight", head);
    write_single();
    EXPECT_NO_THROW(open());
    tensors_.bytes(head)[0] ^= std::byte{1};
    write_single();
    EXPECT_TRUE(refuses(head + " differs from " + prefix + "embed_tokens.weight"));
    tensors_.erase(head);
    tensors_.copy(prefix + "norm.weight", kNorm);
    write_single();
    EXPECT_TRUE(refuses("are the same parameter", prefix + "norm.weight", kNorm));
    tensors_.erase(kNorm);
    tensors_.copy(prefix + "norm.weight", prefix + "norm2.weight");
    write_single();
    EXPECT_TRUE(refuses(prefix + "norm2.weight\" is not a parameter of this gemma3_text model"));
  }
  // Other families have no such prefixes.
  configure(json::object());
  tensors_.add("vision_tower.weight", "F32", {1});
  write_single();
  EXPECT_TRUE(refuses("\"vision_tower.weight\" is not a parameter of this llama model"));
}

// As many tensors as Qwen3-30B-A3B has, whose names alone take time if anything is done for every pair of
// them.
TEST_F(CheckpointTest, ReadsThousandsOfTensors) {
  configure({{"model_type", "qwen3_moe"},
             {"num_hidden_layers", 48},
             {"head_dim", 2},
             {"num_experts", 128},
             {"num_experts_per_tok", 8},
             {"moe_intermediate_size", 1}});
  const json index = write_shards();
  EXPECT_EQ(index["weight_map"].size(), 18'867u);
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint = open();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::string last = "model.layers.47.mlp.experts.127.down_proj.weight";
  EXPECT_TRUE(std::ranges::equal(checkpoint.bytes(last), tensors_.bytes(last)));
  EXPECT_TRUE(seconds.count() <= 10.0) << seconds.count() << " s";
  std::printf("%zu tensors in %.2f s\n", index["weight_map"].size(), seconds.count());
}

TEST_F(CheckpointTest, NamesTheIndexOfAShardThatIsMissingOrBroken) {
  const json index = write_shards();
  const std::string shard = index["weight_map"].begin().value();
  const std::string bytes = read_bytes(folder_.path() / shard);
  folder_.write(shard, bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(refuses("model.safetensors.index.json: its shard: ", shard, "bytes after the header"));
  std::filesystem::remove(folder_.path() / shard);
  EXPECT_TRUE(refuses("model.safetensors.index.json: its shard \"" + shard + "\" is missing"));
  std::filesystem::create_symlink(shard, folder_.path() / shard);
  EXPECT_TRUE(refuses("model.safetensors.index.json: its shard: ", shard, "symbolic links"));
}

TEST_F(CheckpointTest, ShowsForeignNamesAsTheyAre) {
  json index = write_shards();
  index["weight_map"][kNorm] = "\x1b[31m" + std::string(100'000, 'x');
  write_index(index);
  EXPECT_TRUE(refuses("index.json: its shard \"\\u001b[31mxxx", "...", "is missing"));
}

TEST_F(CheckpointTest, ReadsShards) {
  write_shards();
  const Checkpoint checkpoint = open();
  for (const ParameterShape& parameter : parameter_shapes(checkpoint.config())) {
    const std::string& name = parameter.name;
    EXPECT_TRUE(std::ranges::equal(checkpoint.bytes(name), tensors_.bytes(name))) << name;
  }
  // As in transformers, one file goes before shards.
  tensors_.bytes(kNorm)[0] ^= std::byte{1};
  write_single();
  EXPECT_TRUE(std::ranges::equal(open().bytes(kNorm), tensors_.bytes(kNorm)));
}

TEST_F(CheckpointTest, RefusesABadIndex) {
  const json good = write_shards();
  const auto refuses_index = [&](const json& index, const std::string& part) {
    write_index(index);
    return refuses("index.json", part);
  };
  EXPECT_TRUE(refuses_index(json::array(), "no weight_map"));
  EXPECT_TRUE(refuses_index(json::object(), "no weight_map"));
  EXPECT_TRUE(refuses_index({{"weight_map", {"1.safetensors"}}}, "no weight_map"));
  json index = good;
  index["weight_map"][kNorm] = 2;
  EXPECT_TRUE(refuses_index(index, "\"model.norm.weight\" is in 2, expected a string"));
  for (const std::string shard :
       {"../2.safetensors", "/2.safetensors", "a/2.safetensors", "a\\2", "..", ""}) {
    index["weight_map"][kNorm] = shard;
    EXPECT_TRUE(refuses_index(index, "expected a file name in the same folder")) << shard;
  }
  index["weight_map"][kNorm] = std::string("2.safetensors\0", 14);
  EXPECT_TRUE(refuses_index(index, "expected a file name in the same folder"));
  index["weight_map"][kNorm] = "1.safetensors";
  EXPECT_TRUE(refuses_index(index, "\"model.norm.weight\" is not in \"1.safetensors\""));
  index = good;
  index["weight_map"]["extra"] = "2.safetensors";
  EXPECT_TRUE(refuses_index(index, "\"extra\" is not in \"2.safetensors\""));
  index = good;
  index["weight_map"].erase(kNorm);
  EXPECT_TRUE(refuses_index(index, "\"model.norm.weight\" is in \"2.safetensors\" but not in the index"));
  folder_.write("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"1\",\"a\":\"2\"}}");
  EXPECT_TRUE(refuses("index.json", "\"a\" appears twice"));
}

TEST_F(CheckpointTest, RefusesShardsThatDoNotFit) {
  json index = write_shards();
  index["weight_map"][kNorm] = "3.safetensors";
  write_index(index);
  EXPECT_TRUE(refuses("3.safetensors\" is missing"));
  tensors_.write(folder_.path() / "3.safetensors", [](const std::string& name) { return name == kNorm; });
  EXPECT_TRUE(refuses("\"model.norm.weight\" is in two shards, \"3.safetensors\" and \"2.safetensors\""));
  index["weight_map"][kNorm] = "2.safetensors";
  index["weight_map"].erase("lm_head.weight");
  write_index(index);
  tensors_.write(folder_.path() / "2.safetensors",
                 [](const std::string& name) { return name == kNorm || name == kEmbedding; });
  EXPECT_TRUE(refuses("tensor lm_head.weight is missing"));
}

}  // namespace
}  // namespace streambp
