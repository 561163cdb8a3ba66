#!/usr/bin/env python3
"""Whole models, with a tower for images, trained on text: their own gradients in float64 at both levels, adapters included."""

import copy
import unittest

import streambp_bench as sb
import torch
import transformers
from adapters_test import SMALL, drawn
from patching import batch_of, patched, reference_step, step
from peft import LoraConfig, get_peft_model
from python_case import Case, autograd, in_float64, packed_inputs, take_gradients

from trl.trainer.utils import add_fused_lm_head

TEXT = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
HYBRID = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "full_attention_interval": 2}
SOFT = {"final_logit_softcapping": 2.0}  # which a whole Gemma 3 does not apply
QWEN_TOWER = {"hidden_size": 16, "intermediate_size": 24, "depth": 1, "num_heads": 2, "patch_size": 4, "out_hidden_size": 16,
              "num_position_embeddings": 16}
MUSE_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4, "pos_emb_height": 4,
              "pos_emb_width": 4}
# name: (class, config, vision_config, text_config, the rest)
MODELS = {
    "gemma3": ("Gemma3", TOWER, {**TEXT, **SOFT, "sliding_window": 7}, {"image_token_index": 60, "mm_tokens_per_image": 4}),
    "gemma4": ("Gemma4", None, {**TEXT, "global_head_dim": 8, "vocab_size_per_layer_input": 61, "hidden_size_per_layer_input": 4,
                                "num_kv_shared_layers": 0, "sliding_window": 7}, {"image_token_id": 60, "video_token_id": 59, "audio_token_id": 58}),
    "mistral3": ("Mistral3", {**TOWER, "model_type": "pixtral", "head_dim": 8}, {**TEXT, "model_type": "mistral", "sliding_window": None},
                 {"image_token_index": 60}),
    "ministral3": ("Mistral3", {**TOWER, "model_type": "pixtral", "head_dim": 8},
                   {**TEXT, "model_type": "ministral3", "sliding_window": None}, {"image_token_index": 60, "tie_word_embeddings": True}),
    "muse_glimmer": ("MuseGlimmer", MUSE_TOWER, {**TEXT, "num_hidden_layers": 5, "sliding_window": 7, "final_logit_softcapping": 2.0, "post_norm_eps": 1e-3},
                     {"image_token_id": 60, "video_token_id": 59, "out_hidden_size": 64, "projector_hidden_size": 16}),
    "qwen3_5": ("Qwen3_5", QWEN_TOWER, {**TEXT, **HYBRID}, {"image_token_id": 60, "video_token_id": 59}),
}
if hasattr(transformers, "Step3p7Config"):
    LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    MODELS["step3p7"] = ("Step3p7", {**TOWER, "image_size": 16, "patch_size": 4}, {
        **TEXT, "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 7, "num_sliding_attention_heads": 3,
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "share_expert_dim": 20, "moe_router_scaling_factor": 1.7, "swiglu_limits": [0, 0.5, 0, 0], "swiglu_limits_shared": [0.6, 0, 0, 0.4],
        "rope_parameters": {"full_attention": {**LLAMA3, "partial_rotary_factor": 0.5}, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
    }, {"image_token_id": 60})
# Trained frequencies are a buffer in transformers 5.23, which the engine refuses by name.
if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24):
    MODELS["mistral_large4"] = ("MistralLarge4", {**TOWER, "model_type": "pixtral", "head_dim": 8, "intermediate_size": 24, "num_hidden_layers": 1}, {
        **{key: value for key, value in TEXT.items() if key != "head_dim"}, "num_key_value_heads": 2, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "kv_lora_rank": 7, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 4,
        "index_topk": 6, "index_n_heads": 8, "index_head_dim": 10, "indexer_types": ["full", "full", "shared", "full"], "no_rope_layer_interval": 2,
        "kv_source_layers": [0, 1, 0, 3],
        "final_logit_softcapping": 4.0, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }, {"image_token_index": 60})
if hasattr(transformers, "MiniMaxM3VLConfig"):  # since 5.24
    MODELS["minimax_m3"] = ("MiniMaxM3VL", {**TOWER, "num_channels": 3, "patch_size": 4, "temporal_patch_size": 1, "spatial_merge_size": 1, "head_dim": 8}, {
        **TEXT, "intermediate_size": 12, "dense_intermediate_size": 24, "shared_intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2, "rotary_dim": 4,
        "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.5, "index_n_heads": 2, "index_head_dim": 6, "index_block_size": 3, "index_topk_blocks": 3,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"], "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    }, {"image_token_index": 60, "video_token_index": 59, "projector_hidden_size": 16})
SIGLIP = {"model_type": "siglip2_vision_model", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4, "num_patches": 16}
if not hasattr(transformers, "Lfm3VlConfig"):
    MODELS["lfm2_vl"] = ("Lfm2Vl", SIGLIP, {**{key: value for key, value in TEXT.items() if key != "head_dim"}, "model_type": "lfm2",
                                            "layer_types": ["conv", "full_attention", "conv", "full_attention"], "block_multiple_of": 7}, {"image_token_id": 60, "projector_hidden_size": 16})
else:
    MODELS["lfm3_vl"] = ("Lfm3Vl", SIGLIP, {**TEXT, "model_type": "lfm3", "layer_types": ["conv", "sliding_attention", "conv", "full_attention"], "sliding_window": 7},
                         {"image_token_id": 60, "projector_hidden_size": 16})
LATENT = {**{key: value for key, value in TEXT.items() if key != "head_dim"}, "num_key_value_heads": 2, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 12, "q_lora_rank": 9, "kv_lora_rank": 7, "qk_nope_head_dim": 6, "qk_rope_head_dim": 6, "v_head_dim": 4}
if hasattr(transformers, "Mistral4Config"):
    MODELS["mistral4"] = ("Mistral3", {**TOWER, "model_type": "pixtral", "head_dim": 8}, {
        **LATENT, "model_type": "mistral4", "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 0.7,
                                                                "mscale_all_dim": 0.9, "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.5},
    }, {"image_token_index": 60})
if hasattr(transformers, "Kimi_K25Config"):
    MODELS["kimi_k25"] = ("Kimi_K25", {**TOWER, "patch_size": 4}, {**LATENT, "model_type": "deepseek_v3", "n_group": 2, "topk_group": 1}, {"image_token_id": 60, "video_token_id": 59})
if hasattr(transformers, "MuseSparkConfig"):  # experts of a stream wider than the model's
    MODELS["muse_spark"] = ("MuseSpark", MUSE_TOWER, {
        **TEXT, "num_hidden_layers": 3, "sliding_window": 7, "final_logit_softcapping": 2.0, "output_multiplier": 0.7, "post_norm_eps": 1e-2, "qk_scale_factor": 1.9,
        "residual_gate_temperature": 0.5, "mlp_layer_types": ["sparse", "dense", "sparse"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "moe_hidden_size": 20, "routed_scaling_factor": 1.7,
    }, {"image_token_id": 60, "video_token_id": 59, "audio_token_id": 58, "out_hidden_size": 64, "projector_hidden_size": 16,
        "audio_config": {"patch_sizes": [4, 4], "hidden_sizes": [8, 12], "depths": [1, 1], "num_hidden_layers": 2, "conv_kernel_size": 3, "out_hidden_size": 16}})
OTHER_CLASSES = {"MiniMaxM3VL": "MiniMaxM3Sparse"}  # whose names are not their config's
RIGHT_ALONE = ("minimax_m3",)  # whose own code counts padding on the left, and other documents, into blocks of keys
if hasattr(transformers, "Glm5NextConfig"):  # layer 2 sees the groups of rows that layer 1 has picked
    MODELS["glm5_next"] = ("Glm5Next", {"hidden_size": 16, "intermediate_size": 24, "depth": 1, "num_heads": 2, "patch_size": 4, "image_size": 16, "out_hidden_size": 16,
                                        "projection_intermediate_size": 24}, {
        **TEXT, "num_key_value_heads": 2, "layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "indexer_types": ["full", "full", "shared", "full"],
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "q_lora_rank": 9, "kv_lora_rank": 7, "qk_nope_head_dim": 5, "v_head_dim": 4,
        "index_topk": 6, "index_kpool": 3, "index_n_heads": 8, "index_head_dim": 10, "linear_num_heads": 2, "linear_head_dim": 6,
        "hc_mult": 3, "hc_sinkhorn_iters": 4, "hc_eps": 1e-3, "swiglu_limit": 0.9,
    }, {"image_token_id": 60, "video_token_id": 59, "image_start_token_id": 58, "image_end_token_id": 58, "video_start_token_id": 58, "video_end_token_id": 58})
if hasattr(transformers, "Qwen4ExpConfig"):  # the token that ends n-grams is in every batch
    MODELS["qwen4_exp"] = ("Qwen4Exp", QWEN_TOWER, {
        **TEXT, **HYBRID, "eos_token_id": 5, "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10, "hc_count": 3, "hc_lowrank": 5,
        "output_gate_type": "sigmoid", "indexer_n_heads": 10, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 6, "indexer_compress_ratio": 3,
        "ple_layer_ids": [1, 3], "ple_embed_dim": 8, "heads_per_ngram": 2, "ngram_vocab_size_base": 25, "make_ngram_vocab_size_divisible_by": 8,
    }, {"image_token_id": 60, "video_token_id": 59, "vision_start_token_id": 58, "vision_end_token_id": 58})
# Whose layers are given more than the layer below gives: by their own code alone.
UNPATCHED = {"gemma4": "Gemma 4", "mistral_large4": "Mistral Large 4"}
NORMED_EMBEDDINGS = ("muse_glimmer", "muse_spark")  # by the models' own code, which is in float32 where nothing else is asked for
PATCHED = [name for name in MODELS if name not in UNPATCHED]


def whole(name):
    family, tower, text, more = MODELS[name]
    torch.manual_seed(3)
    with in_float64():
        config = getattr(transformers, f"{family}Config")(vision_config=copy.deepcopy(tower), text_config=copy.deepcopy(text), **more)
        config._attn_implementation = config._experts_implementation = "eager"
        model = getattr(transformers, f"{OTHER_CLASSES.get(family, family)}ForConditionalGeneration")(config).double()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1 or key.endswith((".alpha", ".softmax_scaling.scale")):
                parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.3)
    return model.train()


def of_text(gradients):
    """Without those of towers, which text does not reach."""
    return {name: gradient for name, gradient in gradients.items() if "language_model" in name or "lm_head" in name}


def adapted(name, seed=7, **settings):
    with in_float64():
        model = get_peft_model(whole(name), LoraConfig(**SMALL, **settings))
    return drawn(model, seed)


class WholeModels(Case):
    def compare(self, model, batch, what):
        theirs_loss, theirs = autograd(model, batch)
        self.assertFalse(any(gradient.any() for name, gradient in theirs.items() if name not in of_text(theirs)))
        loss = sb.backward(model, batch, chunk=7)
        self.assert_loss(loss, theirs_loss, what)
        of_towers = dict(model.named_parameters()).keys() - of_text(dict(model.named_parameters())).keys()
        self.assertTrue(all(model.get_parameter(name).grad is None for name in of_towers))
        self.assert_gradients(of_text(take_gradients(model)), of_text(theirs), what)

    def test_text_batches(self):
        for name in MODELS:
            model = whole(name)
            for padding in ("right", "left")[: 1 if name in RIGHT_ALONE else 2]:
                with self.subTest(model=name, padding=padding):
                    self.compare(model, batch_of(58, (29, 11, 18), padding), f"{name}, {padding}")
            if name in RIGHT_ALONE:
                self.assert_refused(lambda model=model: sb.backward(model, batch_of(58, (29, 11), "left")), "padded on the left", "counts padding into the blocks")
            if name in ("qwen3_5", "glm5_next", "qwen4_exp", "lfm2_vl", "lfm3_vl", *RIGHT_ALONE):
                continue  # transformers' recurrent layers hand their state from one document of a row to the next
            with self.subTest(model=name, what="packed"):
                model.config.vocab_size = 58
                self.compare(model, packed_inputs(model, (5, 12, 3, 8)), f"{name}, packed")

    def test_types_of_tokens_that_say_text(self):
        for name, key in (("gemma3", "token_type_ids"), ("qwen3_5", "mm_token_type_ids")):
            batch = batch_of(58, (19, 12))
            batch[key] = torch.zeros_like(batch["input_ids"])
            self.compare(whole(name), batch, f"{name}, {key}")

    def test_patched(self):
        for name in PATCHED:
            model, batch = whole(name), batch_of(58, (29, 11, 18), "left") if name not in RIGHT_ALONE else batch_of(58, (29, 29))
            loss, expected = reference_step(model, batch, use_cache=False)
            with self.subTest(model=name), patched(model, chunk=5, head_chunk=7):
                ours, found = (reference_step if name in NORMED_EMBEDDINGS else step)(model, batch)
                self.assert_loss(ours, loss, name)
                self.assert_gradients(found, of_text(expected), f"{name}, patched")
                inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
                with in_float64():
                    model.zero_grad()
                    model(**inputs, logits_to_keep=4).logits.square().sum().backward()
                    of_logits = take_gradients(model)
                    self.assertIsNone(model.eval()(**inputs, use_cache=False).loss)
            with in_float64():
                model.train().zero_grad()
                model(**inputs, logits_to_keep=4, use_cache=False).logits.square().sum().backward()
            self.assert_gradients(of_text(of_logits), of_text(take_gradients(model)), f"{name}, logits")
        for name, words in UNPATCHED.items():
            if name in MODELS:
                self.assert_refused(lambda name=name: sb.patch(whole(name), lane="engine"), words, "streambp_bench.backward")

    @unittest.skipUnless("mistral_large4" in MODELS, "needs transformers 5.24")
    def test_trained_frequencies_are_patched_by_the_layers_own_code(self):
        limit = 1e-5  # which has norms and routers in float32
        model, batch = whole("mistral_large4"), batch_of(58, (29, 11, 18), "right")
        theirs_loss, theirs = autograd(model, batch, wide=False)
        sb.patch(model, chunk=7)
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        sb.unpatch(model)
        self.assertTrue(model.model.language_model.rotary_emb.alpha.grad.any())
        reached = type(self).reached
        self.assert_loss(loss.item(), theirs_loss, "patched", limit)
        self.assert_gradients(of_text(take_gradients(model)), of_text(theirs), "patched", limit)
        type(self).reached = reached

    @unittest.skipUnless("qwen4_exp" in MODELS, "needs transformers 5.24")
    def test_ngrams_need_tokens_and_the_hash_of_the_config(self):
        model, batch = whole("qwen4_exp"), batch_of(58, (9, 6))
        embeddings = model.get_input_embeddings()(batch["input_ids"]).detach()
        with patched(model):
            self.assert_refused(lambda: model.model.language_model(inputs_embeds=embeddings), "n-grams of input_ids", "give input_ids")
        model.model.language_model.layers[2].ple.ple_embedding.layer_multipliers[1] += 2
        self.assert_refused(lambda: sb.backward(model, batch), "layers.2.ple.ple_embedding.layer_multipliers", "load the model anew")

    def test_adapters(self):
        attention = ["q_proj", "v_proj"]
        # PEFT's names end in those of indexers' maps too, whose adapters have no gradient.
        of_latents = {"minimax_m3": {"target_modules": r".*language_model.*\.(q_proj|k_proj|gate_up_proj|down_proj)"},
                      "muse_spark": {"target_modules": r".*language_model.*\.(q_proj|gate_proj|pre_expert_proj|post_expert_proj|down_proj)"},
                      "mistral_large4": {"target_modules": r".*language_model.*\.(q_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj)"},
                      "qwen4_exp": {"target_modules": r".*language_model.*\.(q_proj|o_proj|in_proj_qkv|key_proj|input_mix_weight_up|block_inject_weight)"},
                      "glm5_next": {"target_modules": r".*language_model.*\.(q_proj|f_a_proj|f_b_proj|b_proj|q_b_proj|kv_b_proj|o_proj)"}}
        for name, settings in {"gemma3": {"target_modules": attention, "rank_pattern": {"language_model.layers.1.self_attn.q_proj": 2}},
                               "mistral3": {"target_modules": r".*language_model.*\.(q_proj|down_proj)", "alpha_pattern": {"down_proj": 9}},
                               "qwen3_5": {"target_modules": ["q_proj", "out_proj", "lm_head"]},
                               "gemma4": {"target_modules": r"model\.language_model\.layers\.\d+\.(self_attn|mlp)\.(q|o|up)_proj"},
                               **{name: settings for name, settings in of_latents.items() if name in MODELS}}.items():
            batch = batch_of(58, (19, 12))
            with self.subTest(model=name):
                model = adapted(name, **settings)
                self.compare(model, batch, f"{name}, adapter")
                if name in PATCHED:
                    loss, expected = reference_step(model, batch, use_cache=False)
                    with patched(model, chunk=5):
                        ours, found = (reference_step if name in NORMED_EMBEDDINGS else step)(model, batch)
                    self.assert_loss(ours, loss, name)
                    self.assert_gradients(found, of_text(expected), f"{name}, adapter, patched")

    def test_trl_s_head_is_trl_s_own(self):
        """It applies a cap that stands in the config alone."""
        model, batch = whole("gemma3"), batch_of(58, (9, 6))
        model.config.get_text_config().final_logit_softcapping = 0.05
        add_fused_lm_head(model)
        theirs = model(**batch, fused_lm_head=True).loss.item()
        with patched(model, chunk=5):
            ours = model(**batch, fused_lm_head=True).loss.item()
        self.assertTrue(abs(ours - theirs) <= 1e-5 * theirs, (ours, theirs))

    def test_verify(self):
        for name in MODELS:
            report = sb.verify(whole(name).float(), batch_of(58, (9, 6)))
            self.assertEqual(report.verdict, "exact", f"{name}: {report}")

    def test_images_are_refused(self):
        for name in MODELS:
            model, batch = whole(name), batch_of(58, (9, 6))
            images = {"pixel_values": torch.zeros(1, 3, 28, 28, dtype=torch.float64)}
            with self.subTest(model=name):
                self.assert_refused(lambda: sb.backward(model, batch | images), "pixel_values", "only text")
                placed = {**batch, "input_ids": batch["input_ids"].index_fill(1, torch.tensor([4]), 60)}
                self.assert_refused(lambda: sb.backward(model, placed), "token 60", "image_token_id")
                if name in PATCHED:
                    with patched(model):
                        self.assert_refused(lambda: model(**batch, **images), "pixel_values", "only text")
                        self.assert_refused(lambda: model(**placed), "token 60", "image_token_id")

    def test_another_text_model_is_refused(self):
        config = transformers.Mistral3Config(vision_config={**TOWER, "model_type": "pixtral", "head_dim": 8},
                                             text_config={**TEXT, "model_type": "llama"})
        model = transformers.Mistral3ForConditionalGeneration(config)
        self.assert_refused(lambda: sb.backward(model, batch_of(58, (9, 6))), "LlamaModel", "MistralModel")


if __name__ == "__main__":
    unittest.main()
