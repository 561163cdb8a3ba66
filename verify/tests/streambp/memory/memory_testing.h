// What one pass takes beyond weights and gradients, by the meter.
#pragma once

#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "streambp/backprop/method.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/memory/meter.h"

namespace streambp {

using OptionMap = std::map<std::string, std::string>;

inline Settings streambp_settings(int64_t chunk) {
  Settings settings;
  settings.chunk = chunk;
  return settings;
}

inline LoraConfig all_linear(int64_t rank) {
  LoraConfig lora;
  lora.r = rank;
  lora.target_modules = {kAllLinear};
  return lora;
}

/// One pass and all that it is measured with.
struct Measured {
  Config config = preset("qwen3-cpu");
  c10::Device device = at::kMeta;
  std::string objective = "sft";
  OptionMap options = {};
  Batch batch = {};
  Settings settings = {};
  std::optional<LoraConfig> lora = std::nullopt;

  /// Peak bytes beyond what was alive before the pass; `at_peak` (may be null) receives them by scope, with
  /// the resident ones.
  int64_t peak_beyond_resident(std::map<std::string, int64_t>* at_peak = nullptr) const {
    install_meters();
    const bool frozen = lora.has_value();
    Model model = Model::random(
        config, {at::kFloat, device, at::kFloat, [&](const std::string&) { return !frozen; }}, 1);
    if (frozen) model.attach_adapters(*lora, 1);
    const auto made = make_objective(objective, batch, options);
    if (made->request().values) {
      model.attach_value_head(at::zeros({1, config.hidden_size}, at::TensorOptions().device(device)));
    }
    std::unique_ptr<Model> teacher;
    if (made->request().divergence != Divergence::kNone) {
      teacher = std::make_unique<Model>(Model::random(
          config, {at::kFloat, device, at::kFloat, [](const std::string&) { return false; }}, 2));
    }
    const int64_t resident = read_meter(device).live_bytes;
    reset_peak(device);
    backpropagate(model, batch, *made, settings, teacher.get());
    EXPECT_EQ(read_meter(device).live_bytes, resident) << "the pass left something behind";
    if (at_peak != nullptr) *at_peak = read_meter(device).at_peak;
    return read_meter(device).peak_bytes - resident;
  }
};

/// The peak of sft on random tokens.
inline int64_t sft_peak(const Config& config, c10::Device device, const std::vector<int64_t>& lengths,
                        const Settings& settings) {
  return Measured{config, device, "sft", {}, random_batch(lengths, config.vocab_size, 2), settings}
      .peak_beyond_resident();
}

}  // namespace streambp
