// The names that other people's gradients come under.
#include "verify/compare/names.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <tuple>

#include "verify/compare/compare.h"
#include "verify/compare/hints.h"
#include "verify/compare/truth.h"
#include "verify/tests/verify/compare/testing.h"

namespace streambp::verify {
namespace {

constexpr const char* kHead = "lm_head.weight";

Tensors truth_of_two() {
  return {{kEmbedding, random_tensor({11, 6}, 1)}, {kProjection, random_tensor({8, 6}, 2)}};
}

/// The verdict, and what was noted.
std::pair<Verdict, std::string> verdict_and_notes(const Tensors& gradients, const Tensors& truth) {
  const Comparison comparison = compare_gradients(gradients, truth);
  std::string notes;
  for (const std::string& note : comparison.notes) notes += note + "\n";
  return {comparison.verdict, notes};
}

TEST(CompareNames, WhatWrappersPutIntoNamesIsTakenOut) {
  const Tensors truth = truth_of_two();
  for (const std::string spelling :
       {"module.model.layers.0.self_attn.q_proj.weight", "_orig_mod.model.layers.0.self_attn.q_proj.weight",
        "module._orig_mod.model.layers.0._orig_mod.self_attn.q_proj.weight",
        "_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.self_attn.q_"
        "proj."
        "weight",
        "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
        "pretrained_model.model.layers.0.self_attn.q_proj.weight",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "language_model.model.layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight",
        "grad.model.layers.0.self_attn.q_proj.weight"}) {
    Tensors gradients = truth;
    gradients.erase(kProjection);
    gradients.emplace(spelling, truth.at(kProjection));
    const auto [verdict, notes] = verdict_and_notes(gradients, truth);
    EXPECT_EQ(verdict, Verdict::kExact) << spelling;
    EXPECT_EQ(notes.empty(), spelling == "layers.0.self_attn.q_proj.weight") << spelling << ": " << notes;
    gradients[spelling] = gradients[spelling] + 1.0;
    EXPECT_EQ(verdict_and_notes(gradients, truth).first, Verdict::kWrong) << spelling;
  }
}

/// An attribute that holds the model, such as a LightningModule's: of all names, or of none.
TEST(CompareNames, WhatStandsBeforeEveryNameIsTakenOut) {
  Tensors truth = truth_of_two();
  truth.emplace(kHead, random_tensor({11, 6}, 3));
  const auto with_prefix = [&](const std::string& prefix) {
    Tensors gradients;
    for (const auto& [name, tensor] : truth) gradients.emplace(prefix + name, tensor);
    return gradients;
  };
  for (const std::string prefix : {"model.", "student.", "trainer.actor."}) {
    const auto [verdict, notes] = verdict_and_notes(with_prefix(prefix), truth);
    EXPECT_EQ(verdict, Verdict::kExact) << prefix;
    EXPECT_NE(notes.find("taken out of names: \"" + prefix + "\""), std::string::npos) << notes;
    EXPECT_EQ(verdict_and_notes(with_prefix("module." + prefix), truth).first, Verdict::kExact) << prefix;
    for (const std::string other : {"model.vision.weight", "other.weight", "student.weight"}) {
      Tensors more = with_prefix(prefix);
      more.emplace(other, random_tensor({8, 6}, 4));
      EXPECT_EQ(verdict_and_notes(more, truth).first, Verdict::kIncomplete) << prefix << other;
    }
    Tensors half = truth;
    half.erase(kProjection);
    half.emplace(prefix + kProjection, truth.at(kProjection));
    EXPECT_EQ(verdict_and_notes(half, truth).first, Verdict::kIncomplete) << prefix;
  }
}

TEST(CompareNames, NamesOfFilesAreKnownWithTheirConfig) {
  const Config bamba = preset("bamba-tiny"), mixtral = preset("mixtral-tiny");
  for (const auto& [config, own, stored] :
       {std::tuple(&bamba, "model.norm.weight", "model.final_layernorm.weight"),
        std::tuple(&mixtral, "model.layers.0.mlp.experts.1.gate_proj.weight",
                   "model.layers.0.block_sparse_moe.experts.1.w1.weight")}) {
    const Tensors truth{{own, random_tensor({8, 6}, 1)}};
    for (const std::string wrapper : {"", "module."}) {
      const Tensors gradients{{wrapper + stored, truth.at(own)}};
      Judging judging;
      EXPECT_EQ(compare_gradients(gradients, truth, judging).verdict, Verdict::kIncomplete) << stored;
      judging.config = config;
      EXPECT_EQ(compare_gradients(gradients, truth, judging).verdict, Verdict::kExact) << wrapper << stored;
    }
  }
}

TEST(CompareNames, WhatIsTakenOutIsNoted) {
  const Tensors truth = truth_of_two();
  for (const auto& [name, of, taken] :
       {std::tuple("base_model.model.model.layers.0.self_attn.q_proj.weight", kProjection,
                   "base_model.model."),
        std::tuple("model.embed_tokens.modules_to_save.default.weight", kEmbedding, "modules_to_save.")}) {
    Tensors gradients = truth;
    gradients.erase(of);
    gradients.emplace(name, truth.at(of));
    const auto [verdict, notes] = verdict_and_notes(gradients, truth);
    EXPECT_EQ(verdict, Verdict::kExact) << name;
    EXPECT_NE(notes.find(taken), std::string::npos) << name << ": " << notes;
  }
}

TEST(CompareNames, ANameGivenTwiceIsSurplus) {
  Tensors gradients = truth_of_two();
  gradients.emplace(std::string("module.") + kProjection, gradients.at(kProjection));
  const Comparison comparison = compare_gradients(gradients, truth_of_two());
  EXPECT_EQ(comparison.verdict, Verdict::kIncomplete);
  EXPECT_EQ(comparison.surplus, std::vector<std::string>{std::string("module.") + kProjection});
}

TEST(CompareNames, AnAdaptersNameIsTakenOut) {
  // Two matrices of one module, as those of a mixture's experts, and a bias (lora_bias).
  const std::string layer = "base_model.model.model.layers.0.";
  const std::vector<std::pair<std::string, std::string>> names{
      {layer + "self_attn.q_proj.lora_A.", "weight"},
      {layer + "self_attn.q_proj.lora_B.", "bias"},
      {layer + "mlp.experts.base_layer.lora_A.", "weight"},
      {layer + "mlp.experts.lora_A.", "weight"}};
  Tensors truth;
  for (const auto& [stem, last] : names)
    truth.emplace(stem + last, random_tensor({2, 6}, 3 + static_cast<int>(truth.size())));
  for (const std::string middle : {"", "default.", "policy_2."}) {
    Tensors gradients;
    for (const auto& [stem, last] : names) gradients.emplace(stem + middle + last, truth.at(stem + last));
    EXPECT_EQ(verdict_and_notes(gradients, truth).first, Verdict::kExact) << middle;
  }
}

TEST(CompareNames, HintsSayWhoseNamesTheyAre) {
  const std::string stem = "model.layers.0.self_attn.q_proj.";
  const std::string a = stem + "lora_A.weight", b = stem + "lora_B.weight";
  const Tensors adapter{{a, random_tensor({2, 6}, 3)}, {b, random_tensor({8, 2}, 4)}};
  const Tensors weights = truth_of_two();
  const auto hint_of = [](const Tensors& gradients, const Tensors& truth, const std::string& folder) {
    Comparison comparison = compare_gradients(gradients, truth);
    CompareOptions options;
    options.adapter = folder;
    add_name_hints(options, comparison);
    EXPECT_LE(comparison.hints.size(), 1u);
    return comparison.hints.empty() ? std::string() : comparison.hints.front();
  };
  const auto with = [](Tensors tensors, const std::string& name, const at::Tensor& tensor) {
    tensors.insert_or_assign(name, tensor);
    return tensors;
  };
  Tensors flat{{"_fsdp_wrapped_module._flat_param", random_tensor({60}, 5)}};
  const struct {
    Tensors gradients, truth;
    const char* folder;
    const char* expected;
  } cases[] = {
      {adapter, weights, "", "--adapter DIR"},
      {weights, adapter, "peft", "without --adapter"},
      {with(adapter, kProjection, weights.at(kProjection)), adapter, "peft",
       "is frozen under --adapter peft"},
      {with(adapter, stem + "lora_magnitude_vector", random_tensor({8}, 6)), adapter, "peft", "use_dora"},
      {with(adapter, "model.layers.9.self_attn.q_proj.lora_A.default.weight", adapter.at(a)), adapter, "peft",
       "layers_to_transform"},
      {with(adapter, a, random_tensor({4, 6}, 7)), adapter, "peft", "rank r in peft/adapter_config.json"},
      {flat, weights, "", "summon_full_params"},
      {{{kProjection, weights.at(kProjection)}}, weights, "", "may have been frozen"},
      {adapter, adapter, "peft", ""},
      {with(weights, kProjection, random_tensor({8, 6}, 8)), weights, "", ""}};
  for (const auto& one : cases) {
    const std::string hint = hint_of(one.gradients, one.truth, one.folder);
    EXPECT_NE(hint.find(one.expected), std::string::npos) << "'" << one.expected << "' in: " << hint;
    EXPECT_EQ(hint.empty(), std::string(one.expected).empty()) << hint;
  }
}

/// What can be seen without a pass is said.
TEST(CompareNames, HintsNameWhatTheNumbersAre) {
  const Golden golden = open_golden("qwen3", "qwen3-sft-b3_left");
  const Truth truth = open_truth(golden.options);
  const auto texts_after = [&](const std::function<void(const std::string&, at::Tensor&)>& change) {
    Tensors gradients = golden.gradients;
    for (auto& [name, gradient] : gradients) change(name, gradient);
    Comparison comparison = compare_gradients(gradients, golden.gradients);
    add_value_hints(truth, golden.options, gradients, comparison);
    std::string texts;
    for (const auto* list : {&comparison.notes, &comparison.hints}) {
      for (const std::string& text : *list) texts += text + "\n";
    }
    return texts;
  };
  const auto expect = [&](const char* text,
                          const std::function<void(const std::string&, at::Tensor&)>& change) {
    const std::string texts = texts_after(change);
    EXPECT_NE(texts.find(text), std::string::npos) << texts;
    EXPECT_EQ(std::count(texts.begin(), texts.end(), '\n'), 1) << texts;
  };
  EXPECT_EQ(texts_after([](const std::string&, at::Tensor&) {}), "");
  EXPECT_EQ(texts_after([](const std::string&, at::Tensor& gradient) { gradient = gradient * 2.0; }), "");
  expect("all gradients are zero",
         [](const std::string&, at::Tensor& gradient) { gradient = gradient * 0.0; });
  expect("the model's weights", [&](const std::string& name, at::Tensor& gradient) {
    gradient = truth.model.parameter(name).value.to(at::kBFloat16);
  });
  expect("25 of 25 gradients hold NaN",
         [](const std::string&, at::Tensor& gradient) { gradient = gradient / 0.0; });
  const auto of_projection = [](const std::function<at::Tensor(const at::Tensor&)>& change) {
    return [change](const std::string& name, at::Tensor& gradient) {
      if (name == kProjection) gradient = change(gradient);
    };
  };
  expect("transposed or flattened?", of_projection([](const at::Tensor& gradient) { return gradient.t(); }));
  expect("transposed or flattened?",
         of_projection([](const at::Tensor& gradient) { return gradient.flatten(); }));
  expect("1 of 25 gradients is bfloat16 (\"model.layers.0.self_attn.q_proj.weight\"), the others",
         of_projection([](const at::Tensor& gradient) { return gradient.to(at::kBFloat16); }));
}

TEST(CompareNames, AHintNamesAFreshAdaptersFolder) {
  const Truth truth = open_truth(open_golden("qwen3", "qwen3-sft-b3_left").options);
  const std::string stem = "model.layers.0.self_attn.q_proj.lora_";
  Tensors of_fresh{{stem + "A.weight", at::zeros({2, 6}, at::kDouble)},
                   {stem + "B.weight", random_tensor({8, 2}, 4)}};
  CompareOptions options;
  options.adapter = "peft";
  for (const double size : {0.0, 1.0}) {
    Tensors gradients = of_fresh;
    gradients[stem + "A.weight"] = random_tensor({2, 6}, 5) * size;
    gradients[stem + "B.weight"] = gradients[stem + "B.weight"] * 3.0 + 1.0;
    Comparison comparison = compare_gradients(gradients, of_fresh);
    add_value_hints(truth, options, gradients, comparison);
    EXPECT_EQ(comparison.hints.size(), size > 0.0 ? 1u : 0u);
    for (const std::string& hint : comparison.hints)
      EXPECT_NE(hint.find("1 gradients of lora_A are 0"), std::string::npos) << hint;
  }
}

TEST(CompareNames, AValueHeadHasSeveralNames) {
  Tensors truth = truth_of_two();
  truth.emplace("value_head.weight", random_tensor({1, 6}, 4));
  for (const std::string spelling : {"v_head.summary.weight", "v_head.weight", "score.weight",
                                     "module.v_head.summary.weight", "head.weight"}) {
    Tensors gradients = truth;
    gradients.erase("value_head.weight");
    gradients.emplace(spelling, truth.at("value_head.weight"));
    EXPECT_EQ(verdict_and_notes(gradients, truth).first,
              spelling == "head.weight" ? Verdict::kIncomplete : Verdict::kExact)
        << spelling;
  }
}

TEST(CompareNames, FusedExpertsAreSplit) {
  const std::string stem = "model.layers.1.mlp.experts";
  const at::Tensor gate_up = random_tensor({3, 10, 6}, 5);
  const at::Tensor down = random_tensor({3, 6, 5}, 6);
  Tensors truth;
  for (int64_t i = 0; i < 3; ++i) {
    const std::string expert = stem + "." + std::to_string(i);
    truth.emplace(expert + ".gate_proj.weight", gate_up[i].narrow(0, 0, 5).clone());
    truth.emplace(expert + ".up_proj.weight", gate_up[i].narrow(0, 5, 5).clone());
    truth.emplace(expert + ".down_proj.weight", down[i].clone());
  }
  const auto [verdict, notes] =
      verdict_and_notes({{stem + ".gate_up_proj", gate_up}, {"module." + stem + ".down_proj", down}}, truth);
  EXPECT_EQ(verdict, Verdict::kExact);
  EXPECT_NE(notes.find("2 tensors hold all experts"), std::string::npos) << notes;
  // Halves in the other order are wrong, and another number of experts is not the model's.
  const at::Tensor exchanged = at::cat({gate_up.narrow(1, 5, 5), gate_up.narrow(1, 0, 5)}, 1);
  EXPECT_EQ(
      verdict_and_notes({{stem + ".gate_up_proj", exchanged}, {stem + ".down_proj", down}}, truth).first,
      Verdict::kWrong);
  EXPECT_EQ(verdict_and_notes(
                {{stem + ".gate_up_proj", gate_up.narrow(0, 0, 2)}, {stem + ".down_proj", down}}, truth)
                .first,
            Verdict::kIncomplete);
}

/// Rows one below the other, as vLLM has them next to Hugging Face's Llama, and Unsloth's next to Phi-3.
TEST(CompareNames, MapsInOneTensorAreCutAndPutTogether) {
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  const at::Tensor qkv = random_tensor({14, 6}, 7), bias = random_tensor({14}, 8),
                   gate_up = random_tensor({10, 6}, 9);
  const Tensors fused{{attention + "qkv_proj.weight", qkv},
                      {attention + "qkv_proj.bias", bias},
                      {mlp + "gate_up_proj.weight", gate_up}};
  Tensors apart{{mlp + "gate_proj.weight", gate_up.narrow(0, 0, 5).clone()},
                {mlp + "up_proj.weight", gate_up.narrow(0, 5, 5).clone()}};
  for (const auto& [name, begin, rows] :
       {std::tuple("q_proj.", 0, 8), {"k_proj.", 8, 3}, {"v_proj.", 11, 3}}) {
    apart.emplace(attention + name + "weight", qkv.narrow(0, begin, rows).clone());
    apart.emplace(attention + name + "bias", bias.narrow(0, begin, rows).clone());
  }
  const auto [cut, notes] = verdict_and_notes(fused, apart);
  EXPECT_EQ(cut, Verdict::kExact);
  EXPECT_NE(notes.find("3 tensors hold several maps' rows"), std::string::npos) << notes;
  const auto [joined, joined_notes] = verdict_and_notes(apart, fused);
  EXPECT_EQ(joined, Verdict::kExact);
  EXPECT_NE(joined_notes.find("3 tensors of several maps"), std::string::npos) << joined_notes;
  // Others' order is wrong, and what lacks rows or a map is not the model's.
  Tensors other = fused;
  other[attention + "qkv_proj.weight"] = at::cat({qkv.narrow(0, 8, 6), qkv.narrow(0, 0, 8)});
  EXPECT_EQ(verdict_and_notes(other, apart).first, Verdict::kWrong);
  other[attention + "qkv_proj.weight"] = qkv.narrow(0, 0, 13);
  EXPECT_EQ(verdict_and_notes(other, apart).first, Verdict::kIncomplete);
  apart.erase(attention + "k_proj.weight");
  EXPECT_EQ(verdict_and_notes(apart, fused).first, Verdict::kIncomplete);
}

TEST(CompareNames, ATiedHeadMayBeGivenOnceOrTwice) {
  Tensors gradients = truth_of_two();
  gradients.emplace(kHead, gradients[kEmbedding].clone());
  EXPECT_EQ(verdict_and_notes(gradients, truth_of_two()).first, Verdict::kExact);
  gradients.erase(kEmbedding);
  EXPECT_EQ(verdict_and_notes(gradients, truth_of_two()).first, Verdict::kExact);
  gradients.erase(kHead);
  gradients.emplace(std::string("module.") + kHead, truth_of_two()[kEmbedding]);
  EXPECT_EQ(verdict_and_notes(gradients, truth_of_two()).first, Verdict::kExact);

  gradients = truth_of_two();
  gradients.emplace(kHead, gradients[kEmbedding].clone());
  gradients[kHead][0][0] += 1e-3;
  const Comparison comparison = compare_gradients(gradients, truth_of_two());
  EXPECT_EQ(comparison.verdict, Verdict::kIncomplete);
  EXPECT_EQ(comparison.surplus, std::vector<std::string>{kHead});
}

TEST(CompareNames, AGradientMayBeLeftOutWhereTheTruthIsZero) {
  Tensors truth = truth_of_two();
  truth[kProjection].zero_();
  Tensors gradients = truth;
  gradients.erase(kProjection);
  const auto [verdict, notes] = verdict_and_notes(gradients, truth);
  EXPECT_EQ(verdict, Verdict::kExact);
  EXPECT_NE(notes.find("1 gradients are left out"), std::string::npos) << notes;
  truth[kProjection][0][0] = 1e-300;
  EXPECT_EQ(verdict_and_notes(gradients, truth).first, Verdict::kIncomplete);
}

/// Tensors of one matrix for each expert, as transformers' modules hold them.
at::Tensor stacked(Tensors& gradients, const std::string& stem, const std::string& map) {
  std::vector<at::Tensor> experts;
  for (int expert = 0;; ++expert) {
    const auto found = gradients.find(fmt::format("{}.experts.{}.{}.weight", stem, expert, map));
    if (found == gradients.end()) return at::stack(experts);
    experts.push_back(found->second);
    gradients.erase(found);
  }
}

/// What named_parameters() of transformers' modules says where files say otherwise.
TEST(CompareNames, ModulesOfTransformersHaveNamesOfTheirOwn) {
  Golden nemotron = open_golden("nemotron-h", "nemotron-h-sft-b1");
  Tensors own;
  for (const auto& [name, gradient] : nemotron.gradients) {
    own.emplace(name.starts_with("backbone.") ? "model" + name.substr(name.find('.')) : name, gradient);
  }
  for (const char* map : {"up_proj", "down_proj"}) {
    const at::Tensor all = stacked(own, "model.layers.1.mixer", map);
    own.emplace(fmt::format("model.layers.1.mixer.experts.{}", map), all);
  }
  EXPECT_TRUE(own.contains("model.embeddings.weight") && is_exact(nemotron, own));

  Golden kimi = open_golden("kimi-linear", "kimi-linear-sft-b1");
  own = kimi.gradients;
  const std::string heads = "model.layers.0.self_attn.";
  std::vector<at::Tensor> parts;
  for (const char* part : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    parts.push_back(own.at(heads + part));
    own.erase(heads + part);
  }
  own.emplace(heads + "conv1d.weight", at::cat(parts));
  EXPECT_TRUE(is_exact(kimi, own));

  Golden lfm = open_golden("lfm2-moe", "lfm2-moe-sft-b3_left");
  own = lfm.gradients;
  const std::string forward = "model.layers.1.feed_forward";
  const at::Tensor gate = stacked(own, forward, "w1"), up = stacked(own, forward, "w3");
  own.emplace(forward + ".experts.down_proj", stacked(own, forward, "w2"));
  own.emplace(forward + ".experts.gate_up_proj", at::cat({gate, up}, 1));
  EXPECT_TRUE(is_exact(lfm, own));
}

}  // namespace
}  // namespace streambp::verify
