"""The tiny models of MiniMax M3's text model, whose attention sees blocks of keys that heads of an indexer pick.

Blocks, and what is picked of them, end within a batch of 29 tokens.
"""

from goldens.models.family_models import ALL, ONE
from goldens.specs import COMMON, Model, rope

KEY_BLOCKS = {
    **COMMON,
    "vocab_size": 67,
    "intermediate_size": 10,
    "dense_intermediate_size": 15,
    "shared_intermediate_size": 9,
    "head_dim": 8,
    "rotary_dim": 4,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.7,
    "swiglu_alpha": 1.3,
    "swiglu_limit": 0.9,
    "index_n_heads": 2,
    "index_head_dim": 6,
    "index_block_size": 3,
    "index_topk_blocks": 3,
    "index_local_blocks": 1,
    "rope_parameters": rope(100.0, partial_rotary_factor=0.5),
    "router_aux_loss_coef": 0.0,  # which TRL would add
}
FULL, SPARSE = "full_attention", "minimax_m3_sparse"

KEY_BLOCK_MODELS = {
    # A dense layer that sees all tokens, and two that pick blocks.
    "minimax-m3": Model(
        "minimax_m3_vl_text",
        seed=1101,
        settings={**KEY_BLOCKS, "layer_types": [FULL, SPARSE, SPARSE], "mlp_layer_types": ["dense", "sparse", "sparse"]},
        legacy=None,
        batches=ALL,
        norms_add_one=True,
    ),
    # Each query head has blocks of its own, two of them whatever their scores, and a head rotates as a whole.
    "minimax-m3-heads": Model(
        "minimax_m3_vl_text",
        seed=1102,
        settings={
            **KEY_BLOCKS,
            "num_hidden_layers": 2,
            "index_n_heads": 4,
            "index_block_size": 4,
            "index_head_dim": 11,
            "index_local_blocks": 2,
            "rotary_dim": 8,
            "rope_parameters": rope(100.0),
            "layer_types": [SPARSE, FULL],
            "mlp_layer_types": ["sparse", "dense"],
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
    # The routers' loss, of a softmax of what weights are sigmoids of; a dense layer has no part in it.
    "minimax-m3-aux": Model(
        "minimax_m3_vl_text",
        seed=1104,
        settings={
            **KEY_BLOCKS,
            "layer_types": [SPARSE, FULL, FULL],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
        },
        legacy=None,
        batches={},  # its case replays experts: see replay.py
        norms_add_one=True,
    ),
    # One head of the indexer for all, and the own block is picked only if its score is among the highest.
    "minimax-m3-one-head": Model(
        "minimax_m3_vl_text",
        seed=1103,
        settings={
            **KEY_BLOCKS,
            "num_hidden_layers": 2,
            "index_n_heads": 1,
            "index_head_dim": 4,
            "index_block_size": 5,
            "index_topk_blocks": 2,
            "index_local_blocks": 0,
            "layer_types": [SPARSE, SPARSE],
            "mlp_layer_types": ["dense", "sparse"],
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
}
