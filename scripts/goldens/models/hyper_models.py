"""The tiny models of which a token has several residual streams: Hunyuan 4.

What experts gate is clamped where some of it is, and layers 2 and 3 see what layer 1 has picked.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.indexed_models import INDEXED
from goldens.specs import Model, rope

HYPER_MODELS = {
    "hy-v4": Model(
        "hy_v4",
        seed=608,
        settings={
            **{key: value for key, value in INDEXED.items() if key != "first_k_dense_replace"},
            "num_hidden_layers": 4,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "index_topk": 6,
            "hc_mult": 3,
            "hc_magnitude": 1.7,
            "hc_eps": 1e-3,
            "swiglu_limit": 0.9,
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ALL,
    ),
    # Two streams, biases, a tied head, and dense layers between sparse ones.
    "hy-v4-dense": Model(
        "hy_v4",
        seed=609,
        settings={
            **{key: value for key, value in INDEXED.items() if key != "first_k_dense_replace"},
            "mlp_layer_types": ["dense", "sparse", "dense"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "attention_bias": True,
            "index_topk": 7,
            "indexer_types": ["full", "shared", "full"],
            "hc_mult": 2,
            "swiglu_limit": 1.1,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ONE,
    ),
}
