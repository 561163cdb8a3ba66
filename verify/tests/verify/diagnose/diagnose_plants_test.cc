// Mistakes planted without the wrong engine: in the gradients, in the batch, or with pieces of the library;
// and in bfloat16.
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "streambp/objective/terms.h"
#include "verify/equality/batches.h"
#include "verify/tests/turns.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// Gradients of another batch or objective under the same model, by the library.
Tensors library_gradients(DiagnoseCase& planted, const Batch& batch) {
  const auto objective = make_objective(planted.objective, batch, planted.options);
  return evaluate(planted.owned.model, batch, *objective, {}).gradients;
}

TEST(DiagnosePlants, FrozenNormsAndMissingGradients) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "left", 9});
  Tensors gradients = right.truth;
  for (auto& [name, gradient] : gradients) {
    if (name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight"))
      gradient = at::zeros_like(gradient);
  }
  expect_named(right, gradients, "parameters-without-gradient");
  std::erase_if(gradients, [](const auto& entry) { return is_zero(entry.second); });
  expect_named(right, gradients, "parameters-without-gradient");
}

TEST(DiagnosePlants, AdaptersWithoutGradient) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "lora", "left", 9});
  // As with checkpointing that stops at the embedding: the first layer's get none. Then none at all.
  Tensors gradients = right.truth;
  std::erase_if(gradients,
                [](const auto& entry) { return entry.first.find("layers.0.") != std::string::npos; });
  expect_named(right, gradients, "adapters-without-gradient");
  expect_named(right, times(right.truth, 0.0), "adapters-without-gradient");
}

TEST(DiagnosePlants, HeadAdapterBypassed) {
  DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "left", 9});
  Model adapted = equality_model("qwen3-tiny", 3, [](const std::string&) { return false; });
  LoraConfig lora;
  lora.r = 3;
  lora.target_modules = {"q_proj", "lm_head"};
  adapted.attach_adapters(lora, 7);
  at::Generator generator = at::detail::createCPUGenerator(8);
  for (const auto& parameter : adapted.parameters()) {
    if (parameter->name.ends_with(".lora_B.weight"))
      parameter->value.copy_(at::randn(parameter->value.sizes(), generator, at::kDouble) * 0.3);
  }
  right.owned.model = std::move(adapted);
  find_truth(right);
  WrongSettings settings;
  settings.head_adapter_bypassed = true;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    expect_named(right, cast(right.wrong(settings), dtype), "head-adapter-bypassed");
}

TEST(DiagnosePlants, DocumentsInOneSequence) {
  const std::vector<int64_t> lengths{7, 5, 4};
  DiagnoseCase packed =
      diagnose_case({"qwen3-tiny", "sft", {}, "full", "three", 9}, packed_rows(lengths, 16, 101));
  Batch leaking = packed.owned.batch;
  leaking.offsets = {0, 16};
  expect_named(packed, library_gradients(packed, leaking), "no-document-boundaries");
  leaking.positions = at::arange(16, at::kLong);
  expect_named(packed, library_gradients(packed, leaking), "no-document-boundaries-positions-go-on");
}

TEST(DiagnosePlants, PaddingRowWithGradient) {
  DiagnoseCase right = diagnose_case({"llama-tied-tiny", "sft", {}, "full", "three", 9});
  Config config = right.owned.model.config();
  const auto with_padding = [&](std::optional<int64_t> token) {
    config.pad_token_id = token;
    return model_of(config, right);
  };
  Model without = with_padding(std::nullopt);
  const Tensors gradients = evaluate(without, right.owned.batch, *right.owned.objective, {}).gradients;
  right.owned.model = with_padding(right.owned.batch.tokens[2].item<int64_t>());
  find_truth(right);
  expect_named(right, gradients, "padding-row-trained");
}

TEST(DiagnosePlants, DroppedPrefix) {
  // Sequences cut into sequences of 8 tokens: no prefix is seen. Targets and positions stay.
  DiagnoseCase right = diagnose_case({"llama-tied-tiny", "sft", {}, "full", "three", 20});
  Batch cut = right.owned.batch;
  cut.offsets = {0};
  for (size_t i = 0; i + 1 < right.owned.batch.offsets.size(); ++i) {
    const int64_t end = right.owned.batch.offsets[i + 1];
    for (int64_t index = right.owned.batch.offsets[i] + 8; index < end; index += 8)
      cut.offsets.push_back(index);
    cut.offsets.push_back(end);
  }
  expect_named(right, library_gradients(right, cut), "prefix-dropped-8");
}

TEST(DiagnosePlants, LabelsAtTheirOwnPosition) {
  DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "three", 9});
  Batch unshifted = right.owned.batch;
  unshifted.targets = unshifted.tokens.clone();
  for (size_t i = 0; i + 1 < unshifted.offsets.size(); ++i)
    unshifted.targets[unshifted.offsets[i]] = kNoTarget;
  expect_named(right, library_gradients(right, unshifted), "labels-not-shifted");
}

TEST(DiagnosePlants, LabelsAtTheirOwnPositionAsTheFileHasThem) {
  // The first row's first token has a label, the others' have none: they are padded on the left.
  DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "three", 9});
  Batch unshifted = right.owned.batch;
  unshifted.targets = unshifted.tokens.clone();
  for (size_t i = 1; i + 1 < unshifted.offsets.size(); ++i)
    unshifted.targets[unshifted.offsets[i]] = kNoTarget;
  WrongSubject subject = right.subject();
  subject.labels = unpack(unshifted, unshifted.targets);
  const Diagnosis diagnosis =
      diagnose(subject, library_gradients(right, unshifted), right.truth, 0.0, right.diagnosing);
  EXPECT_EQ(diagnosis.explanations.front().name, "labels-not-shifted-first-counts")
      << diagnosis_text(diagnosis);
  EXPECT_EQ(diagnosis.kind, Diagnosis::Kind::kExplained);
}

TEST(DiagnosePlants, MeanOfTheMeansOfRows) {
  DiagnoseCase right = diagnose_case({"qwen2-tiny", "sft", {}, "full", "three", 11});
  Tensors mean;
  const auto rows = static_cast<int64_t>(right.owned.batch.offsets.size()) - 1;
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto& [name, gradient] :
         library_gradients(right, select_sequences(right.owned.batch, {row}))) {
      at::Tensor& sum = mean.try_emplace(name, at::zeros_like(gradient)).first->second;
      sum = sum + gradient / static_cast<double>(rows);
    }
  }
  expect_named(right, mean, "mean-of-means-1-rows");
}

TEST(DiagnosePlants, OtherConfigs) {
  // The library's own model of another config, with the same weights.
  for (const auto& [model, name] :
       {std::pair{"mistral-tiny", "windows-ignored"}, std::pair{"qwen3-moe-tiny", "router-loss-missing"}}) {
    DiagnoseCase right = diagnose_case({model, "sft", {}, "full", "three", 13});
    const Tensors gradients = under_config(right, [](Config& config) {
      std::fill(config.windows.begin(), config.windows.end(), 0);
      config.mixture.router_aux_loss_coef = 0.0;
    });
    expect_named(right, gradients, name);
  }
}

std::string replaced(std::string name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name : name.replace(at, from.size(), to);
}

TEST(DiagnosePlants, ExchangedWeights) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  for (const auto& [one, other, name] :
       {std::tuple{".k_proj.", ".v_proj.", "exchanged-k_proj-v_proj"},
        std::tuple{".q_norm.", ".k_norm.", "exchanged-self_attn.k_norm-self_attn.q_norm"},
        std::tuple{".gate_proj.", ".up_proj.", "exchanged-gate_proj-up_proj"},
        std::tuple{".input_layernorm.", ".post_attention_layernorm.",
                   "exchanged-input_layernorm-post_attention_layernorm"}}) {
    const auto other_name = [&](const std::string& own) {
      return own.find(one) == std::string::npos ? replaced(own, other, one) : replaced(own, one, other);
    };
    Model loaded = model_of(right.owned.model.config(), [&](const std::string& own) {
      return right.owned.model.parameter(other_name(own)).value;
    });
    const Tensors held = evaluate(loaded, right.owned.batch, *right.owned.objective, {}).gradients;
    Tensors own;
    for (const auto& [holder, gradient] : held) own[other_name(holder)] = gradient;
    expect_named(right, own, name);
    expect_named(right, held, std::string(name) + "-values");
  }
}

/// The same gradients under other names, in another order, or with something done to each entry: said
/// without a pass.
TEST(DiagnosePlants, WhatCameAfterTheBackwardPass) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  const auto says = [&](const std::function<at::Tensor(const std::string&, const at::Tensor&)>& change,
                        const std::string& words) {
    Tensors gradients;
    for (const auto& [name, gradient] : right.truth) gradients[name] = change(name, gradient);
    const Diagnosis found = diagnose(right, gradients);
    EXPECT_NE(diagnosis_text(found).find(words), std::string::npos) << diagnosis_text(found);
    EXPECT_EQ(found.passes, 0.0) << words;
  };
  const auto under = [&](const std::string& one, const std::string& other) {
    return [&, one, other](const std::string& name, const at::Tensor&) {
      return right.truth.at(name.find(one) == std::string::npos ? replaced(name, other, one)
                                                                : replaced(name, one, other));
    };
  };
  says(under("k_proj", "v_proj"), "under the name of self_attn.k_proj.weight is self_attn.v_proj.weight's");
  says(under(".0.", ".1."), "under the name of layer 0 is layer 1's");
  const auto of = [](const char* ending, auto change) {
    return
        [=](const std::string& name, const at::Tensor& x) { return name.ends_with(ending) ? change(x) : x; };
  };
  says(of("q_proj.weight", [](const at::Tensor& x) { return x.roll(1, 0); }),
       "rows of self_attn.q_proj.weight are in another order");
  says(of("o_proj.weight", [](const at::Tensor& x) { return x.flip({1}); }),
       "columns of self_attn.o_proj.weight are in another order");
  const auto all = [](auto change) {
    return [=](const std::string&, const at::Tensor& x) { return change(x); };
  };
  says(all([](const at::Tensor& x) { return x.clamp(-1e-3, 1e-3); }), "entries are clipped to 0.001");
  says(all([](const at::Tensor& x) { return x.sign(); }), "each entry is its sign alone");
  says(all([](const at::Tensor& x) { return x * x.abs().ge(x.abs().median()); }),
       "the smaller entries are 0");
  // Some of the entries are no such thing.
  Tensors other = right.truth;
  other[right.owned.model.head().weight->name][0][0] *= 1.5;
  EXPECT_EQ(diagnosis_text(diagnose(right, other)).find("what came after"), std::string::npos);
}

TEST(DiagnosePlants, LayersInAnotherOrder) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  ASSERT_EQ(right.owned.model.config().num_hidden_layers, 2);
  const auto other_name = [](const std::string& name) {
    return name.find(".layers.0.") == std::string::npos ? replaced(name, ".layers.1.", ".layers.0.")
                                                        : replaced(name, ".layers.0.", ".layers.1.");
  };
  Model swapped = model_of(right.owned.model.config(), [&](const std::string& name) {
    return right.owned.model.parameter(other_name(name)).value;
  });
  Tensors own;
  for (const auto& [name, gradient] :
       evaluate(swapped, right.owned.batch, *right.owned.objective, {}).gradients)
    own[other_name(name)] = gradient;
  expect_said(right, own, "layer 1 runs before layer 0");
  Config shorter = right.owned.model.config();
  shorter.num_hidden_layers = 1;
  shorter.windows.resize(1);
  Model first = model_of(shorter, right);
  expect_said(right, evaluate(first, right.owned.batch, *right.owned.objective, {}).gradients,
              "layer 1 is left out");
}

TEST(DiagnosePlants, WhatALayerGivesIsScaled) {
  const DiagnoseCase right = eight_rows("qwen3-tiny");
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    return name.ends_with("o_proj.weight") ? value * 1.1 : value;
  });
  Tensors gradients = evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
  for (auto& [name, gradient] : gradients) {
    if (name.ends_with("o_proj.weight")) gradient = gradient * 1.1;
  }
  expect_said(right, gradients, "what attention gives is multiplied by a number that is 1.1");
}

TEST(DiagnosePlants, SharedExpertTwice) {
  const DiagnoseCase right = eight_rows("glm4-moe-tiny");
  const auto times_two = [](const std::string& name) {
    return name.ends_with("shared_experts.down_proj.weight") ? 2.0 : 1.0;
  };
  Model twice = model_of(right.owned.model.config(), [&](const std::string& name) {
    return right.owned.model.parameter(name).value * times_two(name);
  });
  Tensors gradients = evaluate(twice, right.owned.batch, *right.owned.objective, {}).gradients;
  for (auto& [name, gradient] : gradients) gradient = gradient * times_two(name);
  expect_said(right, gradients, "what the shared expert gives (mlp.shared_experts.down_proj) is added twice");
}

TEST(DiagnosePlants, ATransposedMatrix) {
  const DiagnoseCase right = eight_rows("llama-tiny");
  const auto turned = [](const std::string& name, const at::Tensor& x) {
    return name.ends_with("o_proj.weight") && x.size(0) == x.size(1) ? x.t().contiguous() : x;
  };
  Model other = model_of(right.owned.model.config(), [&](const std::string& name) {
    return turned(name, right.owned.model.parameter(name).value);
  });
  Tensors gradients = evaluate(other, right.owned.batch, *right.owned.objective, {}).gradients;
  expect_said(right, gradients, "self_attn.o_proj is loaded transposed");
  for (auto& [name, gradient] : gradients) gradient = turned(name, gradient);
  expect_said(right, gradients, "self_attn.o_proj is applied transposed");
}

/// Rows of the head that should have a gradient and have none are no logits of the softmax.
TEST(DiagnosePlants, AVocabularyThatIsCutOff) {
  DiagnoseCase right = eight_rows("qwen3-tiny");
  const int64_t whole = right.owned.model.config().vocab_size, cut = whole - 7;
  right.owned.batch.tokens.remainder_(cut);
  at::Tensor& targets = right.owned.batch.targets;
  targets = at::where(targets.eq(kNoTarget), targets, targets.remainder(cut));
  find_truth(right);
  Config config = right.owned.model.config();
  config.vocab_size = cut;
  Model small = model_of(config, [&](const std::string& name) {
    const at::Tensor& value = right.owned.model.parameter(name).value;
    return value.size(0) == whole ? value.slice(0, 0, cut) : value;
  });
  Tensors gradients = evaluate(small, right.owned.batch, *right.owned.objective, {}).gradients;
  for (auto& [name, gradient] : gradients) {
    if (gradient.size(0) == cut && gradient.dim() == 2)
      gradient = at::constant_pad_nd(gradient, {0, 0, 0, whole - cut});
  }
  expect_said(right, gradients, fmt::format("the last 7 entries of the vocabulary, from {} on", cut));
}

/// What leaves more than rounding is not said to explain all.
TEST(DiagnosePlants, WhatLeavesARestIsSaidToExplainAPart) {
  const DiagnoseCase right = eight_rows("gemma2-tiny");
  WrongSettings settings;
  settings.window_offset = 1;
  const Tensors wrong = right.wrong(settings);
  Tensors off = wrong;
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (auto& [name, gradient] : off) {
    const double entry = gradient.norm().item<double>() / std::sqrt(static_cast<double>(gradient.numel()));
    gradient = gradient + at::randn(gradient.sizes(), generator, at::kDouble) * (7e-5 * entry);
  }
  expect_named(right, off, "window+1");
  const Diagnosis partly = diagnose(right, off), all = diagnose(right, wrong);
  EXPECT_TRUE(partly.leaves_rest);
  EXPECT_FALSE(all.leaves_rest);
  EXPECT_NE(diagnosis_text(partly).find("this leaves 7"), std::string::npos) << diagnosis_text(partly);
  EXPECT_NE(diagnosis_json(partly).find("\"finding\":\"partly\""), std::string::npos);
  EXPECT_NE(diagnosis_json(all).find("\"finding\":\"explained\""), std::string::npos);
}

TEST(DiagnosePlants, EmbeddingAddedUpInBfloat16) {
  // What at::index_add_ does with tokens that come again and again: rows stall once the sum is large.
  DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "single", 60});
  Batch batch = right.owned.batch;
  batch.tokens.remainder_(3);
  right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "single", 60}, batch);
  WrongSettings settings;
  settings.sums = NarrowSums::kEmbedding;
  expect_named(right, right.wrong(settings), "bf16-embedding-sum");
}

TEST(DiagnosePlants, InBfloat16AboveItsNoise) {
  // The library's own pass in bfloat16 is as far from the truth as that precision takes it; mistakes are
  // planted on top.
  for (const char* model : {"qwen3-tiny"}) {
    DiagnoseCase right = diagnose_case({model, "sft", {}, "full", "left", 11});
    Model::Placement narrow;
    narrow.dtype = narrow.gradient_dtype = at::kBFloat16;
    Model half = Model::random(right.owned.model.config(), narrow, 1);
    for (const auto& parameter : half.parameters()) {
      const Parameter& wide = right.owned.model.parameter(parameter->name);
      wide.value.copy_(wide.value.to(at::kBFloat16));  // weights that both dtypes hold
      parameter->value.copy_(wide.value);
    }
    find_truth(right);
    Settings standard;
    standard.method = Method::kStandard;
    const Tensors rounded = evaluate(half, right.owned.batch, *right.owned.objective, standard).gradients;
    const double noise = precision_residual(rounded, right.truth);
    EXPECT_EQ(diagnose(right, rounded, noise).kind, Diagnosis::Kind::kRight);
    size_t above = 0;
    Turns turns(4);
    for (const Hypothesis& hypothesis : hypotheses(right.subject(), {})) {
      if (!turns.next()) continue;
      Tensors wrong = right.wrong(hypothesis.settings());
      const double effect = FitGauge(wrong, right.truth).measure(right.truth).without_factor;
      for (auto& [name, gradient] : wrong) {
        const at::Tensor off = rounded.at(name).to(at::kDouble) - right.truth.at(name);
        if (gradient.any().item<bool>()) gradient = gradient + off;  // what has no gradient has no noise
        gradient = gradient.to(at::kBFloat16);
      }
      const Diagnosis found = diagnose(right, wrong, noise);
      bool named = false;
      for (size_t i = 0; i < found.fitting; ++i)
        named = named || found.explanations[i].name == hypothesis.name;
      // Next to gradients much smaller than the truth its noise is no noise of theirs.
      if (effect <= 2.0 * noise || effect > 5.0) continue;
      ++above;
      EXPECT_TRUE(named) << hypothesis.name << " effect " << effect << "\n" << diagnosis_text(found);
    }
    EXPECT_GT(above, is_thorough() ? 30U : 10U);
  }
}

}  // namespace
}  // namespace streambp::verify
