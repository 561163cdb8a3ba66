// Any text is either refused with an InputError or gives a Config that keeps what config.h promises.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "streambp/error.h"
#include "streambp/model/config.h"
#include "verify/fuzz/fuzz.h"

namespace {

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const streambp::Config config = streambp::parse_config(text, "fuzz");
    ++accepted_count;
    require(config.num_attention_heads > 0 && config.num_key_value_heads > 0 &&
            config.max_position_embeddings > 0);
    require(config.num_attention_heads % config.num_key_value_heads == 0);
    require(config.head_dim > 0 && config.head_dim % 2 == 0);
    require(std::isfinite(config.rms_norm_eps) && config.rms_norm_eps > 0.0);
    require(std::isfinite(config.rope.theta) && config.rope.theta > 0.0 && config.rope.factor >= 1.0);
    require(config.rope.low_freq_factor < config.rope.high_freq_factor);
    require(streambp::parameter_count(config) > 0);
  } catch (const streambp::InputError&) {
  }
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  const std::string sizes =
      R"("vocab_size":101,"hidden_size":32,"intermediate_size":44,"num_hidden_layers":2,)"
      R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,)"
      R"("max_position_embeddings":512,"rms_norm_eps":1e-06)";
  const std::string llama3 =
      R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":32})";
  return {"{}",
          R"({"model_type":"qwen2",)" + sizes +
              R"(,"use_sliding_window":false,"sliding_window":32768,)"
              R"("tie_word_embeddings":true})",
          R"({"model_type":"qwen3",)" + sizes +
              R"(,"layer_types":["full_attention","full_attention"],)"
              R"("rope_parameters":{"rope_theta":1e6,"rope_type":"default"}})",
          R"({"model_type":"llama",)" + sizes +
              R"(,"rope_theta":500.0,"torch_dtype":"bfloat16","rope_scaling":)" + llama3 + "}",
          R"({"model_type":"llama",)" + sizes +
              R"(,"rope_scaling":{"type":"linear","factor":2},"mlp_bias":true,"hidden_act":"silu"})",
          R"({"model_type":"gemma3_text",)" + sizes + "}"};
}

std::vector<std::string> dictionary() {
  return {"\"model_type\"",
          "\"head_dim\"",
          "\"rope_scaling\"",
          "\"rope_parameters\"",
          "\"rope_theta\"",
          "\"factor\"",
          "\"yarn\"",
          "\"dtype\"",
          "null",
          "true",
          "false",
          "0",
          "-1",
          "1e308",
          "1e-320",
          "0.5",
          "16777216",
          "9223372036854775808",
          "{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"\\ud800\"",
          "\xEF\xBB\xBF"};
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
