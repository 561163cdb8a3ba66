// Mistakes as they were reported of training programs, planted in the library's own layers: which gradients
// are wrong while those above are right has to name each, or else making the mistake.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/head/head.h"
#include "verify/tests/verify/diagnose/diagnose_testing.h"

namespace streambp::verify {
namespace {

/// The library's layers under autograd, where `run` may do otherwise than they do.
using LayerStep = std::function<at::Tensor(int64_t, const DecoderLayer&, const at::Tensor&, const Rows&)>;
Tensors by_layers(DiagnoseCase& of, const LayerStep& run) {
  Model& model = of.owned.model;
  model.zero_gradients();
  const at::AutoGradMode with_grad(true);
  const Stream stream = model.prepare(of.owned.batch);
  const Rows rows = stream.rows(0, stream.size());
  const at::Tensor leaf = model.embed(of.owned.batch.tokens).detach().requires_grad_();
  at::Tensor hidden = leaf;
  for (size_t i = 0; i < model.layers().size(); ++i)
    hidden = run(static_cast<int64_t>(i), model.layers()[i], hidden, rows);
  const HeadTargets scored = head_targets(of.owned.batch, at::kCPU);
  const HeadPass head{model, scored, of.owned.objective->request(), {}};
  HeadOutcome outcome;
  const at::Tensor loss = full_head(head, *of.owned.objective, hidden, own_ops(), outcome);
  model.accumulate_embedding(of.owned.batch.tokens, torch::autograd::grad({loss}, {leaf}).front());
  return gradients_of(model);
}

at::Tensor forward(const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
  return layer.forward(x, rows, {}, {}).hidden;
}

/// The layer with a gradient of its queries, keys or values changed by `hook`.
enum class Head { kQueries, kKeys, kValues };
at::Tensor with_hook(const DecoderLayer& layer, const at::Tensor& x, const Rows& rows, Head head,
                     const std::function<at::Tensor(const at::Tensor&)>& hook) {
  Activations known;
  const AttentionHeads heads = layer.attention_heads(x, rows, {}, known);
  const at::Tensor& chosen = head == Head::kQueries ? heads.queries
                             : head == Head::kKeys  ? heads.own.keys
                                                    : heads.own.values;
  chosen.register_hook([hook](const at::Tensor& d) { return hook(d); });
  AttentionBlock block;
  known.attention.output = attention(heads.queries, heads.own.keys, heads.own.values, rows.offsets, {},
                                     layer.attention_settings(), block);
  return layer.after_attention(x, known, rows, {}).hidden;
}

/// x with a gradient that is changed as it goes back.
at::Tensor with_gradient(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& hook) {
  const at::Tensor same = x * 1.0;
  same.register_hook([hook](const at::Tensor& d) { return hook(d); });
  return same;
}

TEST(DiagnoseLayers, QueriesOfALayerWithSoftcap) {
  DiagnoseCase right = diagnose_case({"gemma2-tiny", "sft", {}, "full", "three", 13});
  const Tensors plain = by_layers(right, [](int64_t, const DecoderLayer& layer, const at::Tensor& x,
                                            const Rows& rows) { return forward(layer, x, rows); });
  EXPECT_EQ(diagnose(right, plain).kind, Diagnosis::Kind::kRight);
  const Tensors wrong =
      by_layers(right, [](int64_t, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
        return with_hook(layer, x, rows, Head::kQueries, [](const at::Tensor& d) {
          return d * at::linspace(0.6, 1.4, d.size(0), at::kDouble).view({-1, 1, 1});
        });
      });
  expect_said(right, wrong, "the gradient of the queries is wrong and those of keys and values are right");
  expect_said(right, wrong, "softcap");
  expect_said(right, wrong, "in layer 2");
}

TEST(DiagnoseLayers, AttentionOfTheBackwardPassIsAnother) {
  DiagnoseCase right = diagnose_case({"qwen2-tiny", "sft", {}, "full", "three", 13});
  // Layer 1 is run again with scores of another scale, and its gradients are those of that.
  const Tensors wrong =
      by_layers(right, [](int64_t i, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
        if (i != 1) return forward(layer, x, rows);
        Carry own;
        const at::Tensor half = layer.attention_half(x, rows, {}, {}, own).detach();
        Activations known;
        const AttentionHeads heads = layer.attention_heads(x, rows, {}, known);
        AttentionSettings settings = layer.attention_settings();
        settings.scoring.scale *= 1.7;
        AttentionBlock block;
        const at::Tensor attended =
            attention(heads.queries, heads.own.keys, heads.own.values, rows.offsets, {}, settings, block);
        const at::Tensor middle = linear_add(x, attended.flatten(1), *layer.weights().o_proj);
        return layer.feed_forward(middle - middle.detach() + half, x, rows, {});
      });
  expect_said(right, wrong, "attention's maps are wrong and the MLP is right");
  expect_said(right, wrong, "in layer 1");
}

TEST(DiagnoseLayers, WhatLeavesTheExperts) {
  DiagnoseCase right = eight_rows("qwen3-moe-plain-tiny", {{"router_aux_loss_coef", "0"}});
  Tensors wrong =
      by_layers(right, [](int64_t i, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
        if (i != 1) return forward(layer, x, rows);
        Carry own;
        const at::Tensor middle = layer.attention_half(x, rows, {}, {}, own);
        const auto d_output = std::make_shared<at::Tensor>();
        const at::Tensor into = with_gradient(middle, [d_output](const at::Tensor& d) {
          return *d_output + (d - *d_output) * 0.5;  // one of two ranks' share
        });
        const at::Tensor output = layer.feed_forward(into, x, rows, {});
        return with_gradient(output, [d_output](const at::Tensor& d) { return *d_output = d; });
      });
  for (auto& [name, gradient] : wrong) {
    if (name == "model.layers.1.mlp.gate.weight" || name == "model.layers.1.post_attention_layernorm.weight")
      gradient = gradient * 0.5;
  }
  expect_said(right, wrong, "the experts' own gradients are right, but what leaves them for their input");
  // And experts that are averaged over the ranks that hold them.
  Tensors scaled = right.truth;
  for (auto& [name, gradient] : scaled) {
    if (name.find(".experts.") != std::string::npos) gradient = gradient * 0.5;
  }
  expect_said(right, scaled, "0.5 times what they should be");
}

TEST(DiagnoseLayers, KeysAndValuesThatOtherLayersShare) {
  DiagnoseCase right = diagnose_case({"qwen2-tiny", "sft", {}, "full", "three", 13});
  const auto lose = [](const at::Tensor& d) {
    return d * at::linspace(0.2, 1.0, d.size(0), at::kDouble).view({-1, 1, 1});
  };
  const Tensors keys =
      by_layers(right, [&](int64_t i, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
        return i == 2 ? with_hook(layer, x, rows, Head::kKeys, lose) : forward(layer, x, rows);
      });
  expect_said(right, keys, "the gradient of the keys is wrong");
  const Tensors values =
      by_layers(right, [&](int64_t i, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
        return i == 2 ? with_hook(layer, x, rows, Head::kValues, lose) : forward(layer, x, rows);
      });
  expect_said(right, values, "the gradient of the values is wrong");
}

TEST(DiagnoseLayers, BetweenLayers) {
  DiagnoseCase right = diagnose_case({"qwen2-tiny", "sft", {}, "full", "three", 13});
  // A checkpoint that stops at layer 1's input, and one that hands over too much.
  for (const double by : {0.0, 1.5}) {
    const Tensors wrong =
        by_layers(right, [&](int64_t i, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
          return forward(layer, i == 1 ? with_gradient(x, [by](const at::Tensor& d) { return d * by; }) : x,
                         rows);
        });
    expect_said(right, wrong, by == 0.0 ? "no gradient reaches" : "layer 0");
  }
  // Attention's input of one layer is cut off.
  const Tensors cut =
      by_layers(right, [](int64_t i, const DecoderLayer& layer, const at::Tensor& x, const Rows& rows) {
        if (i != 2) return forward(layer, x, rows);
        Carry own;
        const at::Tensor cut_off = with_gradient(x, [](const at::Tensor& d) { return d * 0.0; });
        const at::Tensor half = layer.attention_half(cut_off, rows, {}, {}, own);
        return layer.feed_forward(half + x - x.detach(), x, rows, {});
      });
  expect_said(right, cut, "the gradient that layer 2 hands to layer 1 is wrong");
}

TEST(DiagnoseLayers, ParametersAlone) {
  const DiagnoseCase right = diagnose_case({"qwen3-tiny", "sft", {}, "full", "left", 9});
  Tensors twice = right.truth;
  twice["model.layers.1.mlp.down_proj.weight"] = twice["model.layers.1.mlp.down_proj.weight"] * 2.0;
  expect_said(right, twice, "mlp.down_proj.weight of layer 1 is 2 times what it should be");
  expect_said(right, cast(times(twice, 0.5), at::kFloat), "mlp.down_proj.weight of layer 1 is 2 times");
  Tensors stale = right.truth;
  for (auto& [name, gradient] : stale) {
    if (name.find("layers.0.self_attn.k_proj") != std::string::npos)
      gradient = gradient + at::ones_like(gradient) * gradient.abs().mean();
  }
  expect_said(right, stale, "only self_attn.k_proj.weight of layer 0 is wrong");
}

TEST(DiagnoseLayers, RecurrentLayersThatDoNotKnowWhereDocumentsBegin) {
  const DiagnoseCase right =
      diagnose_case({"qwen3.5-tiny", "sft", {}, "full", "three", 9}, packed_rows({7, 5, 6, 3, 3}, 12, 101));
  for (const auto& [leak, words] :
       {std::pair{Leak::kRecurrent, "recurrent layers"}, std::pair{Leak::kConvolution, "the convolution"},
        std::pair{Leak::kState, "the state"}}) {
    WrongSettings settings;
    settings.leak = leak;
    expect_said(right, right.wrong(settings), words);
  }
}

TEST(DiagnoseLayers, OtherConfigsAndOptions) {
  DiagnoseCase granite = eight_rows("granite-tiny");
  expect_said(granite, under_config(granite, [](Config& c) { c.residual_multiplier = 1.0; }),
              "residual_multiplier");
  DiagnoseCase yarn = eight_rows("llama-yarn-tiny");
  expect_said(yarn,
              under_config(yarn,
                           [](Config& c) {
                             const double theta = c.rope.theta;
                             c.rope = RopeSettings{};
                             c.rope.theta = theta;
                           }),
              "rope_scaling");
  DiagnoseCase experts = eight_rows("deepseek-v3-tiny");
  expect_said(experts, under_config(experts, [](Config& c) { c.mixture.routed_scaling_factor = 1.0; }),
              "routed_scaling_factor");
  DiagnoseCase pairs = diagnose_case(
      {"qwen3-tiny", "dpo", {{"cdpo_label_smoothing", "0.1"}, {"beta", "0.3"}}, "full", "left", 9});
  const auto without = make_objective("dpo", pairs.owned.batch, {{"beta", "0.3"}});
  expect_said(pairs, evaluate(pairs.owned.model, pairs.owned.batch, *without, {}).gradients,
              "cdpo_label_smoothing is ignored: 0 where 0.1 is asked for");
}

TEST(DiagnoseLayers, MasksAndScalesOfAttention) {
  const DiagnoseCase right = diagnose_case({"qwen2-window-tiny", "sft", {}, "full", "three", 13});
  WrongSettings settings;
  settings.looks_ahead = 1;
  expect_said(right, right.wrong(settings), "one token ahead");
  settings.looks_ahead = 0;
  settings.ignores_windows = true;
  settings.only_layer = 2;
  expect_said(right, right.wrong(settings), "in layer 2 alone the window is ignored");
  settings = {};
  settings.score_factor = std::sqrt(16.0);  // none: head_dim is 16
  expect_said(right, right.wrong(settings), "scores");
}

}  // namespace
}  // namespace streambp::verify
