"""The tiny models of Mistral Large 4's text model: trained rotary frequencies and scales of queries, layers without rotation.

transformers has the class since 5.24, with its tower for images alone: decoder and head without it are put together here.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.indexed_models import INDEXED
from goldens.models.text_model import register_text_model
from goldens.specs import Model, rope

register_text_model("mistral_large4", "MistralLarge4")

TRAINED = {key: value for key, value in INDEXED.items() if key not in ("q_lora_rank", "first_k_dense_replace", "norm_topk_prob")}

TRAINED_POSITION_MODELS = {
    # Layer 1 does not rotate, layer 3 sees what layer 2 has picked, and some groups of experts are left out.
    "mistral-large4": Model(
        "mistral_large4_text",
        seed=1001,
        settings={
            **TRAINED,
            "num_hidden_layers": 4,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "no_rope_layers": [1, 0, 1, 1],
            "index_topk": 6,
            "indexer_types": ["full", "full", "full", "shared"],
            "final_logit_softcapping": 3.0,
            "rope_parameters": rope(
                100.0, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.25, attention_factor=1.0, mscale_all_dim=0.7
            ),
        },
        legacy=None,
        batches=ALL,
    ),
    # Layers 2 and 4 read the latents of layer 0, and layer 3, which does not rotate, those of layer 1.
    "mistral-large4-shared": Model(
        "mistral_large4_text",
        seed=1003,
        settings={
            **TRAINED,
            "num_hidden_layers": 5,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "dense"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "index_topk": 7,
            "indexer_types": ["full", "shared", "full", "shared", "full"],
            "no_rope_layers": [1, 0, 1, 0, 1],
            "kv_source_layers": [0, 1, 0, 1, 0],
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ONE,
    ),
    # Biases, a tied head, dense layers between sparse ones, and a layer without rotation that sees what one with it has picked.
    "mistral-large4-dense": Model(
        "mistral_large4_text",
        seed=1002,
        settings={
            **TRAINED,
            "mlp_layer_types": ["dense", "sparse", "dense"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "attention_bias": True,
            "index_topk": 7,
            "indexer_types": ["full", "shared", "full"],
            "no_rope_layer_interval": 2,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ONE,
    ),
}
