"""The tiny models of Qwen4-Exp's text model: gated delta rules and attention to groups of tokens that an indexer picks, between residual streams that maps of all
of them read and add to, with embeddings of n-grams.

The token that ends n-grams is one of those that batches draw; groups, and what is picked of them, end within a batch of 29 tokens.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.recurrent_models import EXPERTS, LONG, RECURRENT, SHORT
from goldens.specs import Model, rope

QWEN4 = {
    **RECURRENT,
    **EXPERTS,
    "vocab_size": 23,
    "eos_token_id": 6,
    "hidden_size": 12,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 4,
    "hc_count": 3,
    "hc_lowrank": 5,
    "indexer_n_heads": 10,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 7,
    "indexer_budget": 6,
    "indexer_compress_ratio": 3,
    "ple_embed_dim": 8,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 20,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 4,
}
del QWEN4["intermediate_size"]
RECURS, PICKS = "linear_attention", "indexed_attention"

QWEN4_MODELS = {
    # Two layers with n-grams of two and three tokens, each with a table of its own.
    "qwen4-exp": Model(
        "qwen4_exp_text",
        seed=1201,
        settings={**QWEN4, "num_hidden_layers": 4, "layer_types": [RECURS, PICKS, RECURS, PICKS], "ple_layer_ids": [1, 3]},
        legacy=None,
        batches={**ALL, **LONG},
        norms_add_one=True,
    ),
    # Recurrent layers alone, with sigmoid gates, two streams, and the loss of routers; weights of experts that do not sum to 1.
    "qwen4-exp-recurrent": Model(
        "qwen4_exp_text",
        seed=1202,
        settings={
            **{key: value for key, value in QWEN4.items() if not key.startswith("indexer_")},
            "num_hidden_layers": 2,
            "layer_types": [RECURS, RECURS],
            "hc_count": 2,
            "output_gate_type": "sigmoid",
            "norm_topk_prob": False,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches={**ONE, **SHORT},
        norms_add_one=True,
    ),
    # As published files call attention; one token makes a group; pairs of tokens alone, behind either of two ends of texts, of which the first counts.
    "qwen4-exp-pairs": Model(
        "qwen4_exp_text",
        seed=1203,
        settings={
            **QWEN4,
            "num_hidden_layers": 2,
            "layer_types": [RECURS, "full_attention"],
            "attention_bias": True,
            "eos_token_id": [7, 4],
            "indexer_n_heads": 9,
            "indexer_head_dim": 8,
            "indexer_budget": 5,
            "indexer_compress_ratio": 1,
            "rope_parameters": rope(500.0, mrope_interleaved=True, mrope_section=[2, 1, 1]),
            "ple_layer_ids": [1],
            "ple_embed_dim": 9,
            "ngram_size": 2,
            "heads_per_ngram": 3,
            "ple_conv_kernel_size": 3,
            "seed": 77,
            "split_ngram_parts": 1,
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
}
